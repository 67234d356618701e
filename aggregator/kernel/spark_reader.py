"""Reading blocks: exact offset ranges, filtered by key, through the kernel. By Spark, in one batch; few, in this
process."""

from __future__ import annotations

import functools
import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from aggregator.kernel.kernel import INPUT, OUTPUT, BadBlock, Part, Totals, count_partitions, scatter
from aggregator.kernel.picking import settle
from aggregator.kernel.plan import ReadPlan, WindowPlan
from lagloss.broker.connection import KafkaConnection
from lagloss.wire.checks import is_in_reach
from lagloss.wire.format import BadReason, OffsetRange
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.net.kafka_clients import java_options
from lagloss_server.ops.spark_session import FETCHING, SparkJob
from lagloss_server.queries.beacon_log import BeaconLog, LogRecord
from lagloss_server.queries.offset_ranges import records_in, rounds

RECORDS_PER_BATCH: Final = 2_000
"""Blocks in an Arrow batch: 250 to 8,192 beacons each, so 6 to 200 MB."""
FEW_RECORDS: Final = 10_000
FEW_BYTES: Final = 16 << 20
"""Of values. So few are read in this process, in a tenth of the time that Spark takes to begin."""
AGGREGATOR_JOB: Final = SparkJob("lagloss aggregator", "aggregator.kernel.worker_daemon", RECORDS_PER_BATCH)


_KEY: Final = re.compile(rb"([A-Za-z0-9_-]+)/([0-9]{1,12})")


@dataclass(frozen=True)
class Reading:
    """Result of one read: the facts of each wanted window by key, bad blocks (not all, if they are many), how many of
    no wanted window were looked at for the first time, by reason, and how many bytes of values were read."""

    facts: dict[bytes, WindowFacts]
    bad: tuple[BadBlock, ...]
    strays: Counter[BadReason]
    value_bytes: int


Count = Callable[[ReadPlan, int], Iterable[Part]]
"""Counts the windows of a plan; where the second is not 0, the blocks are split into so many ranges of the id space
first."""


@dataclass(frozen=True)
class BlockReader:
    """Reads windows of the beacons topic."""

    spark: SparkSession
    bootstrap: str
    topic: str
    partitions: int
    """How many ranges of the id space a window that lies scattered is shuffled into."""
    log: BeaconLog | None = None
    """What reads few records; without it, Spark reads all."""

    def read(self, ranges: Sequence[OffsetRange], plan: ReadPlan, records: Sequence[LogRecord] = ()) -> Reading:
        """Count the planned windows in these ranges (merged, and clamped to what the broker holds), and in records that
        were read before.

        Raises:
            KafkaException, Py4JError: they could not be read.
        """
        few = self._few(ranges, plan, records)
        return self._settled(self._by_spark(ranges, records) if few is None else _in_this_process(few), plan)

    def _settled(self, count: Count, plan: ReadPlan) -> Reading:
        reading = gather(count(plan, 0), plan)
        again = to_read_again(reading, plan)
        if not again:
            return reading
        retry = ReadPlan(again, plan.pipelines)  # without `audited`: the first read has counted the strays
        result = gather(count(retry, self.partitions), retry)
        # bad blocks are counted by the first read: this one has split those whose fault is not in their columns
        facts = {
            key: replace(facts, scattered=False, bad=reading.facts[key].bad) for key, facts in result.facts.items()
        }
        return replace(reading, facts={**reading.facts, **facts}, value_bytes=reading.value_bytes + result.value_bytes)

    def _few(
        self, ranges: Sequence[OffsetRange], plan: ReadPlan, records: Sequence[LogRecord]
    ) -> list[LogRecord] | None:
        """Return the records that the plan wants; None if they are too many for this process."""
        if self.log is None or records_in(ranges) + len(records) > FEW_RECORDS:
            return None
        wants = wanted(plan)
        few, size = [record for record in records if wants(record)], 0
        with closing(self.log.records(ranges)) as logged:
            for record in filter(wants, logged):
                few.append(record)
                size += len(record.value)
                if size > FEW_BYTES:
                    return None
        return few

    def _by_spark(self, ranges: Sequence[OffsetRange], records: Sequence[LogRecord]) -> Count:
        is_spread = len(rounds(ranges)) > 1 or bool(records)

        def count(plan: ReadPlan, targets: int) -> list[Part]:
            blocks = self.blocks(ranges, plan, records)
            if targets:
                blocks = blocks.mapInArrow(functools.partial(scatter, targets=targets), INPUT)
            return self._collect(self._kernel(blocks, plan, together=is_spread or bool(targets)))

        return count

    def records(self, ranges: Sequence[OffsetRange], records: Sequence[LogRecord] = ()) -> DataFrame:
        """Read the records of these ranges, columns as in INPUT."""
        frames = [self._range(layer) for layer in rounds(ranges)]
        if records or not frames:
            rows = [
                (record.partition, record.offset, record.appended_ms, record.key, record.value) for record in records
            ]
            frames.append(self.spark.createDataFrame(rows, INPUT))
        return functools.reduce(DataFrame.unionByName, frames)

    def blocks(self, ranges: Sequence[OffsetRange], plan: ReadPlan, records: Sequence[LogRecord] = ()) -> DataFrame:
        """Keep the blocks that the plan wants, and those with a key that no good block has."""
        return self.records(ranges, records).where(is_wanted(plan))

    def _range(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        starts = {str(item.partition): item.first for item in ranges}
        ends = {str(item.partition): item.last + 1 for item in ranges}
        return (
            self.spark.read.format("kafka")
            .options(**java_options(KafkaConnection.of(self.bootstrap)))
            .option("assign", json.dumps({self.topic: sorted(item.partition for item in ranges)}))
            .option("startingOffsets", json.dumps({self.topic: starts}))
            .option("endingOffsets", json.dumps({self.topic: ends}))
            # what retention deletes meanwhile leaves the evidence incomplete (rule 7); failing would fail all windows
            .option("failOnDataLoss", "false")
            .options(**FETCHING)
            .load()
            .select("partition", "offset", F.unix_millis("timestamp").alias("appended_ms"), "key", "value")
        )

    def _kernel(self, blocks: DataFrame, plan: ReadPlan, *, together: bool) -> DataFrame:
        """Run the kernel over blocks; `together` first brings the blocks of each partition into one task, in log order.

        A task takes its partitions one after another, so there need be no more tasks than cores: starting one costs a
        tenth of a second.
        """
        tasks = self.spark.sparkContext.defaultParallelism
        if together:
            blocks = blocks.repartition(tasks, "partition").sortWithinPartitions("partition", "offset")
        else:
            blocks = blocks.coalesce(tasks)

        pickled = pickle.dumps(plan)  # Spark would pickle it in Python code, which takes three times as long

        def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return count_partitions(batches, pickle.loads(pickled))

        return blocks.mapInArrow(kernel, OUTPUT)

    def _collect(self, counted: DataFrame) -> list[Part]:
        return [pickle.loads(row.part) for row in counted.collect()]


def is_wanted(plan: ReadPlan) -> Column:
    """Return the condition for blocks of the wanted windows by key, and for every block whose key no good block could
    have."""
    key = F.col("key").cast("string")
    is_known = _is_one_of("substring_index(CAST(key AS string), '/', 1)", sorted(plan.pipelines))
    # No plain cast: Spark may take the expression out of the alternatives that keep it from keys without a number. And
    # none to a long: a product that overflows would end the read of every window.
    start_ms = F.substring_index(key, "/", -1).try_cast("double") * 1000
    in_reach: Column = is_in_reach(start_ms, F.col("appended_ms"))
    odd = ~key.rlike(r"^[A-Za-z0-9_-]+/[0-9]{1,12}\z") | ~is_known | ~in_reach
    is_wanted_window = _is_one_of("CAST(key AS string)", [key.decode() for key in plan.windows])
    return is_wanted_window | key.isNull() | odd


def wanted(plan: ReadPlan) -> Callable[[LogRecord], bool]:
    """Return what `is_wanted` is for Spark: whether a record is of a wanted window by its key, or has one that no good
    block could have."""

    def wants(record: LogRecord) -> bool:
        key = record.key
        if key is None or key in plan.windows:
            return True
        match = _KEY.fullmatch(key)
        if match is None or match[1].decode() not in plan.pipelines:
            return True
        return not is_in_reach(int(match[2]) * 1000, record.appended_ms)

    return wants


def _is_one_of(expression: str, names: Sequence[str]) -> Column:
    """Return the condition that an expression is one of these names, which hold letters, digits, `-`, `_` and `/` only.
    As one text: literals would be a call into the JVM each, and there may be thousands."""
    return F.expr(f"{expression} IN ({', '.join(map(repr, names))})") if names else F.lit(False)


def _in_this_process(records: Sequence[LogRecord]) -> Count:
    def count(plan: ReadPlan, targets: int) -> Iterator[Part]:
        batches: Iterable[pa.RecordBatch] = [batch_of(records)]
        if targets:
            batches = [_by_partition(batch) for batch in scatter(batches, targets)]
        for counted in count_partitions(batches, plan):
            yield from map(pickle.loads, counted.column("part").to_pylist())

    return count


def batch_of(records: Iterable[LogRecord]) -> pa.RecordBatch:
    """Return records as the kernel takes them (columns as in INPUT), in the order of the log."""
    ordered = sorted(records, key=lambda record: (record.partition, record.offset))
    kinds = {"partition": pa.int32(), "offset": pa.int64(), "appended_ms": pa.int64()}
    columns = {
        name: pa.array([getattr(record, name) for record in ordered], kinds.get(name, pa.binary()))
        for name in ("partition", "offset", "appended_ms", "key", "value")
    }
    return pa.RecordBatch.from_pydict(columns)


def _by_partition(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.sort_by([("partition", "ascending"), ("offset", "ascending")])


def gather(parts: Iterable[Part], plan: ReadPlan) -> Reading:
    by_window: dict[bytes, list[WindowFacts]] = {key: [] for key in plan.windows}
    bad: list[BadBlock] = []
    strays: Counter[BadReason] = Counter()
    size = 0
    for part in parts:
        if isinstance(part, BadBlock):
            bad.append(part)
        elif isinstance(part, Totals):
            strays.update(part.strays)
            size += part.value_bytes
        else:
            by_window[part.key].append(part.facts)
    facts = {
        key: settle(WindowFacts.merged(facts), plan.windows[key]) if facts else WindowFacts(cuts=plan.windows[key].cuts)
        for key, facts in by_window.items()
    }
    return Reading(facts, tuple(bad), strays, size)


def to_read_again(reading: Reading, plan: ReadPlan) -> dict[bytes, WindowPlan]:
    """Return windows whose ids lie scattered, or whose partitions were sampled differently."""
    return {
        key: replace(plan.windows[key], sample=facts.sample)
        for key, facts in reading.facts.items()
        if facts.scattered or facts.mixed_samples
    }
