"""Whatever a record holds, following and reading pass over it, and what is counted can be judged and stored."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.kernel.kernel import Counted, Part, Totals, count_partitions
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.reports.batch import ReportBatch, ReportRecord
from lagloss.wire.format import unpack_ranges
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import judge
from lagloss_server.judging.evidence import Evidence
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph
from tests.support.odd_records import Keyed, blocks, damaged, reports

GRAPH = Graph(
    parse_definition(
        "{apiVersion: lagloss/v1, kind: Pipeline, metadata: {name: odd}, "
        "spec: {nodes: [{name: src, to: [snk]}, {name: snk}]}}"
    )
)
START_S = 1_780_000_020
APPENDED_MS = START_S * 1000 + 30_000
PLAN = ReadPlan({plan.key: plan for plan in [WindowPlan(GRAPH, START_S)]}, frozenset(["odd"]))
BLOCKS = blocks("odd", GRAPH.checkpoints, START_S)
REPORTS = reports("odd", "src", ["src.in", "src.out"], START_S)
MAX_BIGINT = (1 << 63) - 1


def parts_of(records: list[Keyed]) -> list[Part]:
    """What the kernel makes of these records of one partition."""
    keys, values = zip(*records, strict=True)
    columns: list[Any] = [
        pa.array([0] * len(records), pa.int32()),
        pa.array(range(len(records)), pa.int64()),
        pa.array([APPENDED_MS] * len(records), pa.int64()),
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
    ]
    batch = pa.RecordBatch.from_arrays(columns, ["partition", "offset", "appended_ms", "key", "value"])
    return [
        pickle.loads(packed) for made in count_partitions([batch], PLAN) for packed in made.column("part").to_pylist()
    ]


@settings(max_examples=400)
@given(st.lists(BLOCKS | damaged(BLOCKS), min_size=1, max_size=5))
def test_any_blocks_are_counted_or_set_aside(records: list[Keyed]) -> None:
    parts = parts_of(records)
    facts = WindowFacts.merged(part.facts for part in parts if isinstance(part, Counted))
    (totals,) = (part for part in parts if isinstance(part, Totals))
    assert "failed" not in facts.bad
    assert "failed" not in totals.strays
    if not facts.scattered and not facts.mixed_samples:
        evidence = Evidence(START_S, APPENDED_MS + 600_000, emitters=(), tallies=(), lanes=())
        document = json.dumps(judge(GRAPH, facts, evidence).document(), allow_nan=False)
        assert "\\u0000" not in document
        assert WindowFacts.unpack(facts.pack()).patterns == facts.patterns


@settings(max_examples=400)
@given(st.lists(REPORTS | damaged(REPORTS) | BLOCKS, min_size=1, max_size=5))
def test_any_reports_come_to_rows_that_tables_can_hold_or_are_set_aside(records: list[Keyed]) -> None:
    batch = ReportBatch()
    for offset, (_, value) in enumerate(records):
        batch.take([ReportRecord(0, offset, APPENDED_MS, value)], {"odd": frozenset(GRAPH.checkpoints)})
    assert batch.positions == {0: len(records)}
    for report, _ in batch.emitters.values():
        fits(report.seq, report.started_at, report.sent_at, report.final_through)
        fits(report.pipeline, report.node, report.host, *report.labels, *report.labels.values())
    for history in batch.accounts.values():
        fits(history.skew.ms, *(number for pair in (*history.skew.smallest, *history.skew.set_back) for number in pair))
    for (_, checkpoint, lane, _), (progress, _, _) in batch.lanes.items():
        fits(checkpoint, lane, progress.until)
    tallies = [found.tally for found in batch.tallies.values()]
    for tally in tallies:
        fits(tally.checkpoint, tally.replay or "", tally.sample, tally.beacons, tally.payload_bytes, tally.dropped)
        ranges, lags = unpack_ranges(tally.ranges), Sketch.from_bytes(tally.lag_sketch)
        fits(*(number for place in ranges for number in (place.partition, place.first, place.last)))
        assert all(value is None or math.isfinite(value) for value in lags.quantiles_ms((0, 0.5, 1)))
    fits(sum(tally.beacons for tally in tallies))


def fits(*values: float | str) -> None:
    """These can be stored: texts without NUL, numbers that a BIGINT holds."""
    for value in values:
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()
        else:
            assert -MAX_BIGINT - 1 <= value <= MAX_BIGINT
