"""Closing speed: a big read beside the bare Kafka-to-Arrow read of the same blocks, and the fixed cost of a small
one."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from aggregator.kernel import counter as counting
from aggregator.kernel.kernel import count_partitions
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from benchmarks.figures import Figure
from benchmarks.traffic import Sent, chain, send
from lagloss.broker.topics import BEACONS, create_topics
from lagloss.wire.format import OffsetRange
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
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
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        create_topics(kafka.bootstrap, partitions)
        starts = [WINDOW_S, WINDOW_S + 60]
        sent = send(kafka.bootstrap, starts, messages_a_second, partitions)
        size = sent.beacons / sent.blocks
        print(f"traffic: {sent.beacons:,} beacons, {sent.blocks:,} blocks of {size:.0f}, {sent.lost:,} lost")
        spark = start_session(AGGREGATOR_JOB, "local[2]", "4g", Path(folder) / "spark")
        try:
            reader = BlockReader(spark, kafka.bootstrap, BEACONS, partitions)
            in_order = _compare(reader, everything(kafka.bootstrap), sent, starts, "closing")
            _price_of_durations(reader, everything(kafka.bootstrap), starts)
            before = {place.partition: place.last + 1 for place in everything(kafka.bootstrap)}
            later = [start + 3_600 for start in starts]
            mixed = send(kafka.bootstrap, later, messages_a_second, partitions, shuffled=True)
            ranges = [
                OffsetRange(place.partition, before[place.partition], place.last)
                for place in everything(kafka.bootstrap)
            ]
            mixed_up = _compare(reader, ranges, mixed, later, "closing, ids out of order")
            return [in_order, mixed_up, _small(spark, kafka.bootstrap, partitions)]
        finally:
            spark.stop()


def run_hour(messages: int = 10_000_000, partitions: int = 8) -> list[Figure]:
    """Print and return both rates for an hour's windows that a job has imported at once, as the closer reads them."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        create_topics(kafka.bootstrap, partitions)
        starts = [WINDOW_S + 60 * minute for minute in range(60)]
        sent = send(kafka.bootstrap, starts, messages // 3_600, partitions, steps=FLUSHES_OF_FILES)
        print(f"an hour: {sent.messages:,} messages, {sent.beacons:,} beacons, {sent.blocks:,} blocks")
        spark = start_session(AGGREGATOR_JOB, "local[2]", "4g", Path(folder) / "spark")
        try:
            reader = BlockReader(spark, kafka.bootstrap, BEACONS, partitions)
            return [_compare(reader, everything(kafka.bootstrap), sent, starts, "closing an hour")]
        finally:
            spark.stop()


def read_plan(starts: list[int]) -> ReadPlan:
    """To close these windows of the benchmark's pipeline."""
    graph = chain().graph
    plans = {plan.key: plan for plan in (WindowPlan(graph, start, (1e12,)) for start in starts)}
    return ReadPlan(plans, frozenset(["bench"]))


def _compare(reader: BlockReader, ranges: list[OffsetRange], sent: Sent, starts: list[int], label: str) -> Figure:
    plan = read_plan(starts)
    closing, bare = [], []
    _bare_read(reader, ranges)  # warms up both: the JVM, the workers, the broker's page cache
    reader.read(ranges, plan)
    for _ in range(ROUNDS):  # in turns, so that a machine that drifts drifts for both
        bare.append(_timed(lambda: _bare_read(reader, ranges)))
        closing.append(_timed(lambda: reader.read(ranges, plan)))
    facts = list(reader.read(ranges, plan).facts.values())
    missing = sum(p.count for found in facts for p in found.patterns if p.seen_last_ms is not None)
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
        with_them.append(_timed(lambda: list(count_partitions(batches, read_plan(starts)))))
        sampled, counting.TIMED_SAMPLE = counting.TIMED_SAMPLE, 0
        without.append(_timed(lambda: list(count_partitions(batches, read_plan(starts)))))
        counting.TIMED_SAMPLE = sampled
    more = statistics.median(with_them[1:]) - statistics.median(without[1:])
    share = more / statistics.median(with_them[1:])
    print(f"durations by message:      {share:.1%} of the kernel's time (asked for: 5 % of closing)")


def _small(spark: SparkSession, bootstrap: str, partitions: int) -> Figure:
    start = WINDOW_S + 600
    before = {place.partition: place.last + 1 for place in everything(bootstrap)}
    sent = send(bootstrap, [start], 100, partitions, steps=60)
    ranges = [OffsetRange(place.partition, before[place.partition], place.last) for place in everything(bootstrap)]
    reader = BlockReader(spark, bootstrap, BEACONS, partitions)
    window = WindowPlan(chain().graph, start, (1e12,))
    plan = ReadPlan({window.key: window}, frozenset(["bench"]))
    reader.read(ranges, plan)
    seconds = [_timed(lambda: reader.read(ranges, plan)) for _ in range(5)]
    nothing = [_timed(lambda: spark.range(8).count()) for _ in range(5)]
    print(f"a small window:           {sent.beacons:,} beacons, {sent.blocks:,} blocks")
    print(
        f"one small window, warm:   {statistics.median(seconds):.2f} s (runs {_runs(seconds)}; asked for: {SMALL_S} s)"
    )
    print(f"an empty Spark job:       {statistics.median(nothing):.2f} s (runs {_runs(nothing)})")
    return Figure(
        "a small window", statistics.median(seconds), "s", SMALL_S, statistics.median(nothing), "empty Spark job"
    )


def _bare_read(reader: BlockReader, ranges: list[OffsetRange]) -> None:
    """Read the values of the same records into Arrow in the same workers: no filter, no key, no work on them."""

    def drop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, 0) for batch in batches)

    reader.records(ranges).select("value").mapInArrow(drop, "value binary").collect()


def everything(bootstrap: str) -> list[OffsetRange]:
    """All that the beacons topic holds."""
    log = BeaconLog(bootstrap, BEACONS)
    try:
        return [
            OffsetRange(partition, marks.low, marks.high - 1) for partition, marks in sorted(log.watermarks().items())
        ]
    finally:
        log.close()


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _runs(seconds: list[float]) -> str:
    return ", ".join(f"{each:.2f}" for each in seconds)
