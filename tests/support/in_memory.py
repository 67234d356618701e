"""lagloss without servers: the aggregator's own functions over a world's records, for comparison with the oracle."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from aggregator.closing.context import JudgementContext, Versions
from aggregator.closing.judge import close
from aggregator.closing.report_state import ReportState
from aggregator.closing.window_store import Closing
from aggregator.kernel.kernel import Part, count_partitions, scatter
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import gather, to_read_again
from aggregator.reports.batch import ReportBatch, ReportRecord
from lagloss_server.judging.arithmetic import horizon
from lagloss_server.judging.evidence import EmitterState, LaneState, TallyState
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.model.definition import Definition, StoredPipeline
from tests.oracle.evidence import Record, World

TARGETS = 8
TASKS = 2


def known_in_memory(world: World, window_start_s: int) -> tuple[str, JudgementContext]:
    """The pipeline's name, and what its reports tell of one window."""
    stored = [
        StoredPipeline(document["metadata"]["name"], at, applied_ms, Definition.model_validate(document))
        for at, (applied_ms, document) in enumerate(world.definitions, start=1)
    ]
    name = stored[0].name
    followed = follow(world.reports)
    known = JudgementContext(
        reports=replace(report_state_of(followed, name, window_start_s), whole_from=world.whole_from_ms),
        versions={name: Versions(stored)},
        newest={name: newest_due(followed, stored[-1].definition, world.now_ms)},
        now_ms=world.now_ms,
    )
    return name, known


def close_in_memory(world: World, window_start_s: int, batch_size: int = 3) -> Closing:
    """The closing of one window of a world, everything through the code that runs in production but the servers."""
    name, known = known_in_memory(world, window_start_s)
    graph, evidence = known.graph(name, window_start_s), known.evidence(name, window_start_s)
    others = known.versions[name].checkpoints
    plan = WindowPlan(graph, window_start_s, horizon(graph, evidence).cuts, evidence.sample, others)
    held = [record for record in world.beacons if record.offset >= world.beacons_start.get(record.partition, 0)]
    facts = count(held, ReadPlan({plan.key: plan}, frozenset([name])), batch_size)[plan.key]
    return close(known, name, window_start_s, WindowFacts.unpack(facts.pack()) if not facts.missing else facts)


def follow(records: Sequence[Record]) -> ReportBatch:
    followed = ReportBatch()
    ordered = sorted(records, key=lambda record: (record.timestamp_ms, record.partition, record.offset))
    followed.take(
        [ReportRecord(record.partition, record.offset, record.timestamp_ms, record.value) for record in ordered], {}
    )
    return followed


def report_state_of(followed: ReportBatch, pipeline: str, window_start_s: int) -> ReportState:
    """What PostgreSQL would hold after following."""
    emitters = []
    for (owner, emitter), (report, appended_at) in followed.emitters.items():
        if owner != pipeline:
            continue
        moved = [
            tally.tally.window_start
            for (name, _, holder, _, _), tally in followed.tallies.items()
            if (name, holder) == (owner, emitter) and tally.changed_at >= appended_at - 60_000
        ]
        emitters.append(
            EmitterState(
                emitter,
                report.node,
                report.started_at,
                report.sent_at,
                report.closed,
                report.final_through,
                appended_at,
                min(moved, default=appended_at // 60_000 * 60),
                followed.accounts[owner, emitter].skew,
                report.resumes,
                followed.accounts[owner, emitter].inputs,
                report.unfinished,
            )
        )
    tallies = [
        TallyState(
            emitter,
            checkpoint.split(".")[0],
            checkpoint,
            replay or None,
            t.beacons,
            t.dropped,
            t.sample,
            t.id_sum,
            t.payload_bytes,
        )
        for (name, start, emitter, checkpoint, replay), found in followed.tallies.items()
        if (name, start) == (pipeline, window_start_s) and (t := found.tally)
    ]
    lanes = [
        LaneState(checkpoint, progress.until, holder or None, lane, reporter)
        for (name, checkpoint, lane, holder), (progress, _, reporter) in followed.lanes.items()
        if name == pipeline
    ]
    window = (pipeline, window_start_s)
    return ReportState(1, {pipeline: emitters}, {pipeline: lanes}, {window: tallies}, {window: []})


def newest_due(followed: ReportBatch, definition: Definition, now_ms: int) -> dict[str, int]:
    newest: dict[str, int] = {}
    for (_, start, _, checkpoint, _), found in followed.tallies.items():
        if found.tally.beacons > 0 and (start + 60) * 1000 + definition.spec.grace <= now_ms:
            newest[checkpoint] = max(start, newest.get(checkpoint, 0))
    return newest


def count(records: Sequence[Record], plan: ReadPlan, batch_size: int) -> dict[bytes, WindowFacts]:
    """The kernel over the records, two tasks with some partitions each as in Spark, and the shuffle path where it is
    needed."""
    parts = []
    for task in range(TASKS):
        mine = [record for record in records if record.partition % TASKS == task]
        parts += run_kernel(to_batches(mine, batch_size), plan)
    reading = gather(parts, plan)
    again = to_read_again(reading, plan)
    if not again:
        return reading.facts
    retry = ReadPlan(again, plan.pipelines)
    rows = [row for batch in scatter(to_batches(records, batch_size), TARGETS) for row in batch.to_pylist()]
    spread = []
    for task in range(TASKS):
        mine = [row for row in rows if row["partition"] % TASKS == task]
        mine.sort(key=lambda row: (row["partition"], row["offset"]))
        spread += run_kernel([pa.RecordBatch.from_pylist(mine, schema=SCHEMA)], retry)
    found = gather(spread, retry)
    return {**reading.facts, **{key: replace(facts, scattered=False) for key, facts in found.facts.items()}}


SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("appended_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)


def to_batches(records: Sequence[Record], size: int) -> list[pa.RecordBatch]:
    rows = [
        {
            "partition": record.partition,
            "offset": record.offset,
            "appended_ms": record.timestamp_ms,
            "key": record.key,
            "value": record.value,
        }
        for record in sorted(records, key=lambda record: (record.partition, record.offset))
    ]
    return [pa.RecordBatch.from_pylist(rows[at : at + size], schema=SCHEMA) for at in range(0, len(rows), size)]


def run_kernel(batches: list[pa.RecordBatch], plan: ReadPlan) -> list[Part]:
    return [
        pickle.loads(part) for batch in count_partitions(batches, plan) for part in batch.column("part").to_pylist()
    ]
