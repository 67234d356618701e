"""Closing speed: a big read beside the bare Kafka-to-Arrow read of the same blocks, and the fixed cost of a small
one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from aggregator.kernel import counter as counting
from aggregator.kernel.kernel import count_partitions
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from benchmarks.database import fresh_kafka
from benchmarks.figures import Figure
from benchmarks.timing import timed_s
from benchmarks.traffic import STEPS, Sent, chain, send
from lagloss.broker.topics import BEACONS
from lagloss.wire.format import OffsetRange
from lagloss_server.ops.spark_session import start_session
from lagloss_server.queries.beacon_log import BeaconLog

WINDOW_S = (int(time.time()) - 4 * 3_600) // 60 * 60
"""Recent: blocks of windows older than 7 days are set aside."""
ROUNDS = 5
SHARE = 0.75
"""Of the bare read's rate, asked for."""
SMALL_S = 1.5
FLUSHES_OF_FILES = 33
"""Of a window's records at each checkpoint: some 5,000 records each, as of 15 files imported within a second."""


def run(messages_a_second: int = 20_000, partitions: int = 8) -> list[Figure]:
    """Print and return both rates, then the cost of a small window."""
    with _reading(partitions) as reading:
        starts = [WINDOW_S, WINDOW_S + 60]
        sent, ranges = reading.send(starts, messages_a_second)
        size = sent.beacons / sent.blocks
        print(f"traffic: {sent.beacons:,} beacons, {sent.blocks:,} blocks of {size:.0f}, {sent.lost:,} lost")
        in_order = _compare(reading.reader, ranges, sent, starts, "closing")
        _price_of_durations(reading.reader, ranges, starts)
        later = [start + 3_600 for start in starts]
        mixed, ranges = reading.send(later, messages_a_second, shuffled=True)
        mixed_up = _compare(reading.reader, ranges, mixed, later, "closing, ids out of order")
        return [in_order, mixed_up, _small(reading)]


def run_hour(messages: int = 10_000_000, partitions: int = 8) -> list[Figure]:
    """Print and return both rates for an hour's windows that a job has imported at once, as the closer reads them."""
    with _reading(partitions) as reading:
        starts = [WINDOW_S + 60 * minute for minute in range(60)]
        sent, ranges = reading.send(starts, messages // 3_600, steps=FLUSHES_OF_FILES)
        print(f"an hour: {sent.messages:,} messages, {sent.beacons:,} beacons, {sent.blocks:,} blocks")
        return [_compare(reading.reader, ranges, sent, starts, "closing an hour")]


@dataclass(frozen=True, slots=True)
class _Reading:
    """A broker, and the closer's reader of its beacons."""

    bootstrap: str
    spark: SparkSession
    reader: BlockReader

    def send(
        self, starts: list[int], messages_a_second: int, steps: int = STEPS, *, shuffled: bool = False
    ) -> tuple[Sent, list[OffsetRange]]:
        """Send these windows; return what was sent, and where it lies."""
        before = {place.partition: place.last + 1 for place in everything(self.bootstrap)}
        sent = send(self.bootstrap, starts, messages_a_second, len(before), steps, shuffled=shuffled)
        places = everything(self.bootstrap)
        return sent, [OffsetRange(place.partition, before[place.partition], place.last) for place in places]


@contextmanager
def _reading(partitions: int) -> Iterator[_Reading]:
    with (
        fresh_kafka(partitions) as (folder, kafka),
        start_session(AGGREGATOR_JOB, "local[2]", "4g", folder / "spark") as spark,
    ):
        yield _Reading(kafka.bootstrap, spark, BlockReader(spark, kafka.bootstrap, BEACONS, partitions))


def read_plan(starts: list[int]) -> ReadPlan:
    """To close these windows of the benchmark's pipeline."""
    graph = chain().graph
    plans = {plan.key: plan for plan in (WindowPlan(graph, start, (1e12,)) for start in starts)}
    return ReadPlan(plans, frozenset(["bench"]))


def _compare(reader: BlockReader, ranges: list[OffsetRange], sent: Sent, starts: list[int], label: str) -> Figure:
    plan = read_plan(starts)
    closing, bare = [], []
    drop_values(reader.records(ranges))  # warms up both: the JVM, the workers, the broker's page cache
    reader.read(ranges, plan)
    for _ in range(ROUNDS):  # in turns, so that a machine that drifts drifts for both
        bare.append(timed_s(lambda: drop_values(reader.records(ranges))))
        closing.append(timed_s(lambda: reader.read(ranges, plan)))
    facts = list(reader.read(ranges, plan).facts.values())
    missing = sum(p.count for fact in facts for p in fact.patterns if p.seen_last_ms is not None)
    if missing != sent.lost:
        raise SystemExit(f"closing found {missing} missing messages, the traffic lost {sent.lost}")
    ours, theirs, beacons = statistics.median(closing), statistics.median(bare), sent.beacons
    print(f"bare Kafka-to-Arrow read:  {theirs:.2f} s, {beacons / theirs / 1e6:.1f} M beacons/s (runs {_runs(bare)})")
    print(f"{label + ':':26} {ours:.2f} s, {beacons / ours / 1e6:.1f} M beacons/s (runs {_runs(closing)})")
    print(f"  of the bare read's rate: {theirs / ours:.0%} (asked for: {SHARE:.0%})")
    bare_rate = beacons / theirs / 1e6
    return Figure(
        label, beacons / ours / 1e6, "M beacons/s", SHARE * bare_rate, bare_rate, "bare read", more_is_better=True
    )


def _price_of_durations(reader: BlockReader, ranges: list[OffsetRange], starts: list[int]) -> None:
    """Measure the cost of the distributions of process duration and queue time in the kernel alone: in this process,
    on one partition's blocks."""
    mine = [place for place in ranges if place.partition == 0]
    batches = reader.blocks(mine, read_plan(starts)).toArrow().combine_chunks().to_batches()
    with_them, without = [], []
    for _ in range(ROUNDS + 1):
        with_them.append(timed_s(lambda: list(count_partitions(batches, read_plan(starts)))))
        sampled, counting.TIMED_SAMPLE = counting.TIMED_SAMPLE, 0
        without.append(timed_s(lambda: list(count_partitions(batches, read_plan(starts)))))
        counting.TIMED_SAMPLE = sampled
    more = statistics.median(with_them[1:]) - statistics.median(without[1:])
    share = more / statistics.median(with_them[1:])
    print(f"durations by message:      {share:.1%} of the kernel's time (asked for: 5 % of closing)")


def _small(reading: _Reading) -> Figure:
    start = WINDOW_S + 600
    sent, ranges = reading.send([start], 100, steps=60)
    plan = read_plan([start])
    reading.reader.read(ranges, plan)
    seconds = [timed_s(lambda: reading.reader.read(ranges, plan)) for _ in range(ROUNDS)]
    nothing = [timed_s(lambda: reading.spark.range(8).count()) for _ in range(ROUNDS)]
    ours, theirs = statistics.median(seconds), statistics.median(nothing)
    print(f"a small window:           {sent.beacons:,} beacons, {sent.blocks:,} blocks")
    print(f"one small window, warm:   {ours:.2f} s (runs {_runs(seconds)}; asked for: {SMALL_S} s)")
    print(f"an empty Spark job:       {theirs:.2f} s (runs {_runs(nothing)})")
    return Figure("a small window", ours, "s", SMALL_S, theirs, "empty Spark job")


def drop_values(records: DataFrame) -> None:
    """Read the values of records into Arrow in Spark's workers: no filter, no key, no work on them."""

    def drop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, 0) for batch in batches)

    records.select("value").mapInArrow(drop, "value binary").collect()


def everything(bootstrap: str) -> list[OffsetRange]:
    """All that the beacons topic holds."""
    log = BeaconLog(bootstrap, BEACONS)
    try:
        return [
            OffsetRange(partition, marks.low, marks.high - 1) for partition, marks in sorted(log.watermarks().items())
        ]
    finally:
        log.close()


def _runs(seconds: list[float]) -> str:
    return ", ".join(f"{time_s:.2f}" for time_s in seconds)
