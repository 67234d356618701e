"""Replays through taps, judged by the oracle and by the product: they find what was lost, and change nothing else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lagloss.sdk.account import Account
from lagloss.wire.format import SAMPLE_ALL, EmitterReport, Progress, encode_report
from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Tap
from taps.kernel import BlockMaker
from taps.order import PartitionOrder
from taps.plan import Mark, OffsetSpan, TapPlan
from taps.records import SpanRecords
from tests.oracle import oracle
from tests.oracle.blocks import id_hash
from tests.oracle.by_hand import document, uuid
from tests.oracle.evidence import Record, World
from tests.oracle.plan import END_MS, START_MS, START_S
from tests.support.in_memory import close_in_memory

NOW_MS = END_MS + 3_600_000
PLANNED_MS = END_MS + 600_000
PARTITIONS = 2
EXTRACTION = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("$.at"))
PIPELINE = document({"name": "shop", "to": ["enrich"]}, {"name": "enrich", "to": ["mail"]}, {"name": "mail"})
TAPS = (
    ("shop", "orders", None, ("in", "out")),
    ("enrich", "orders", "enrich", ("in",)),
    ("enrich", "enriched", None, ("out",)),
    ("mail", "enriched", "mail", ("in", "out")),
)


@dataclass(frozen=True)
class Sent:
    """A record of a topic: of the message of this number, live or of a replay."""

    topic: str
    message: int
    partition: int
    replay: str | None = None

    @property
    def event_ms(self) -> int:
        return START_MS + 5_000 * self.message

    @property
    def appended_ms(self) -> int:
        """A replay brings it back when the window is long over."""
        return self.event_ms + 300 if self.replay is None else END_MS + 120_000 + self.message

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return [] if self.replay is None else [("lagloss-replay", self.replay.encode())]


@dataclass(frozen=True)
class Traffic:
    """The messages that were sent on, of those of a window, and the records of replays, each after some live ones."""

    messages: int
    lost: frozenset[int]
    live: tuple[Sent, ...]
    replays: tuple[tuple[int, Sent], ...]

    def records(self, *, with_replays: bool) -> list[Sent]:
        records = list(self.live)
        for position, again in sorted(self.replays, key=lambda pair: -pair[0]) if with_replays else ():
            records.insert(min(position, len(records)), again)
        return records


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    messages = draw(st.integers(1, 6))
    numbers, places = st.integers(0, messages - 1), st.integers(0, PARTITIONS - 1)
    lost = frozenset(draw(st.sets(numbers)))
    live = [Sent("orders", number, draw(places)) for number in range(messages)]
    live += [Sent("enriched", number, draw(places)) for number in range(messages) if number not in lost]
    live += [Sent("orders", number, draw(places)) for number in draw(st.lists(numbers, max_size=2))]  # sent twice
    again = st.builds(
        Sent, st.sampled_from(["orders", "enriched"]), numbers, places, st.sampled_from(["june", "again", "unnamed"])
    )
    replays = draw(st.lists(st.tuples(st.integers(0, 12), again), max_size=8))
    return Traffic(messages, lost, tuple(draw(st.permutations(live))), tuple(replays))


def read(records: Sequence[Sent], topic: str, partition: int) -> tuple[SpanRecords, OffsetSpan]:
    """Return the records of a partition as its topic has them, and the span of all of them, each with a commit."""
    mine = [record for record in records if (record.topic, record.partition) == (topic, partition)]
    appended = np.array([record.appended_ms for record in mine], np.int64)
    values = [json.dumps({"id": f"m-{record.message}", "at": record.event_ms}).encode() for record in mine]
    columns = Records(appended, [None] * len(mine), values, [record.headers for record in mine])
    commits = tuple(Mark(offset + 1, int(at_ms) + 50) for offset, at_ms in enumerate(appended))
    span = OffsetSpan(partition, 0, len(mine), commits=commits)
    return SpanRecords(np.arange(len(mine)), columns, np.ones(len(mine), np.bool_)), span


def world_of(records: Sequence[Sent]) -> World:
    """Return the log of beacons and reports that the taps of these records write."""
    beacons: list[Record] = []
    reports: list[Record] = []
    for number, (node, topic, group, places) in enumerate(TAPS):
        tap = Tap("clicks", node, "", topic, group, places, EXTRACTION, node == "shop", None if group else "partition")
        emitter, account = uuid(f"{node} {topic}"), Account(node)
        by_partition = {partition: read(records, topic, partition) for partition in range(PARTITIONS)}
        spans = tuple(span for _, span in by_partition.values() if span.end)
        plan = TapPlan(1, PLANNED_MS, PARTITIONS, SAMPLE_ALL, spans)
        orders = {span.partition: PartitionOrder() for span in spans} if tap.order else None
        maker = BlockMaker(tap, emitter, START_MS, Extractor(EXTRACTION))
        blocks = maker.make(plan, {span.partition: by_partition[span.partition][0] for span in spans}, orders).blocks
        for block in blocks:
            place = block.partition, len(beacons)
            beacons.append(Record(*place, PLANNED_MS, block.key, block.value))
            account.add(block.increment, *place, PLANNED_MS / 1_000)
        lanes = [Progress(f"{node}.in", f"{topic}/{partition}", NOW_MS) for partition in by_partition if group]
        if group is None or "out" in places:
            lanes.append(Progress(f"{node}.out", topic, NOW_MS))
        report = EmitterReport(
            "clicks", node, emitter, "tap", 1, START_MS - 600_000, NOW_MS - 10, False, NOW_MS // 1_000, tuple(lanes),
            tuple(account.changed()),
        )  # fmt: skip
        reports.append(Record(0, number, NOW_MS, emitter, encode_report(report)))
    return World(((0, PIPELINE),), tuple(beacons), tuple(reports), NOW_MS)


def by_checkpoint(result: dict[str, Any], *names: str) -> dict[str, tuple[Any, ...]]:
    return {cell["name"]: tuple(cell.get(name) for name in names) for cell in result["checkpoints"]}


UNTOUCHED = (
    "messages", "unexplained", "on_time_share", "on_time_of", "e2e_lag_ms", "clock_skew_ms", "filtered", "dead",
    "reasons_by_node", "staleness_ms",
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(traffics())
@example(  # lost at a node, and found by a replay into the topic before it
    Traffic(
        2,
        frozenset({1}),
        (Sent("orders", 0, 0), Sent("orders", 1, 0), Sent("enriched", 0, 0)),
        ((3, Sent("orders", 1, 1, "june")), (3, Sent("enriched", 1, 1, "june"))),
    )
)
@example(  # replayed twice under one name and once under another, in the partition and the window of the live one
    Traffic(
        1,
        frozenset(),
        (Sent("orders", 0, 0), Sent("enriched", 0, 0)),
        tuple((position, Sent("orders", 0, 0, name)) for position, name in enumerate(["june", "june", "again"])),
    )
)
def test_replays_find_what_was_lost_and_change_nothing_else(traffic: Traffic) -> None:
    before, after = (world_of(traffic.records(with_replays=replayed)) for replayed in (False, True))
    live, both = (oracle.judge(world, START_S) for world in (before, after))
    assert close_in_memory(after, START_S).result.document() == both
    assert live["messages"] == traffic.messages
    assert live["lost"] == {"min": len(traffic.lost), "max": len(traffic.lost)}
    assert {name: both[name] for name in UNTOUCHED} == {name: live[name] for name in UNTOUCHED}
    names = ("beacons", "duplicates", "out_of_order", "lag_ms")
    cells = by_checkpoint(both, *names)
    assert {name: cells[name] for name in by_checkpoint(live)} == by_checkpoint(live, *names)
    again = Counter(record.topic for _, record in traffic.replays)
    expected = {f"{node}.{place}": again[topic] for node, topic, _, places in TAPS for place in places}
    assert {name: count for name, (count,) in by_checkpoint(both, "replayed").items()} == {
        name: expected[name] for name in cells
    }
    back = {record.message for _, record in traffic.replays if record.topic == "enriched"}
    missing = {f"m-{number}" for number in traffic.lost - back}
    assert set(oracle.missing(after, START_S)) == {id_hash(name) for name in missing}
    assert both["lost"] == {"min": len(missing), "max": len(missing)}
    assert both["delivered"] == traffic.messages - len(missing)
    assert both["reasons"] == live["reasons"] == []
