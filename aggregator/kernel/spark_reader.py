"""Reading blocks by Spark, in one batch: exact offset ranges, filtered by key, through the kernel."""

from __future__ import annotations

import functools
import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from lagloss_server.queries.beacon_log import LogRecord
from lagloss_server.queries.offset_ranges import records_in, rounds

RECORDS_PER_BATCH: Final = 2_000
"""Blocks in an Arrow batch: 250 to 8,192 beacons each, so 6 to 200 MB."""
FEW_RECORDS: Final = 500
"""So many are counted in this process, without Spark's workers. Kafka by default takes no value above 1 MB: they stay
below `spark.driver.maxResultSize`."""
AGGREGATOR_JOB: Final = SparkJob("lagloss aggregator", "aggregator.kernel.worker_daemon", RECORDS_PER_BATCH)


@dataclass(frozen=True)
class Reading:
    """Result of one read: the facts of each wanted window by key, bad blocks (not all, if they are many), how many of
    no wanted window were looked at for the first time, by reason, and how many bytes of values were read."""

    facts: dict[bytes, WindowFacts]
    bad: tuple[BadBlock, ...]
    strays: Counter[BadReason]
    value_bytes: int


@dataclass(frozen=True)
class BlockReader:
    """Reads windows of the beacons topic."""

    spark: SparkSession
    bootstrap: str
    topic: str
    partitions: int
    """How many ranges of the id space a window that lies scattered is shuffled into."""
    few: int = FEW_RECORDS
    """Up to so many records are counted in this process."""

    def read(self, ranges: Sequence[OffsetRange], plan: ReadPlan, records: Sequence[LogRecord] = ()) -> Reading:
        """Count the planned windows in these ranges (merged, and clamped to what the broker holds), and in records that
        were read before.

        Raises:
            Py4JError: they could not be read.
        """
        reading = gather(self._count(ranges, records, plan), plan)
        again = to_read_again(reading, plan)
        if not again:
            return reading
        retry = ReadPlan(again, plan.pipelines)  # without `audited`: the first read has counted the strays
        result = gather(self._count(ranges, records, retry, self.partitions), retry)
        # bad blocks are counted by the first read: this one has split those whose fault is not in their columns
        facts = {
            key: replace(facts, scattered=False, bad=reading.facts[key].bad) for key, facts in result.facts.items()
        }
        return replace(reading, facts={**reading.facts, **facts}, value_bytes=reading.value_bytes + result.value_bytes)

    def _count(
        self, ranges: Sequence[OffsetRange], records: Sequence[LogRecord], plan: ReadPlan, targets: int = 0
    ) -> list[Part]:
        """Count the windows of a plan; `targets`: split the blocks into so many ranges of the id space first."""
        blocks = self.blocks(ranges, plan, records)
        if records_in(ranges) + len(records) <= self.few:
            return _count_here(blocks.toArrow(), plan, targets)
        if targets:
            blocks = blocks.mapInArrow(functools.partial(scatter, targets=targets), INPUT)
        is_spread = len(rounds(ranges)) > 1 or bool(records) or bool(targets)
        return self._collect(self._kernel(blocks, plan, together=is_spread))

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


def _is_one_of(expression: str, names: Sequence[str]) -> Column:
    """Return the condition that an expression is one of these names, which hold letters, digits, `-`, `_` and `/` only.
    As one text: literals would be a call into the JVM each, and there may be thousands."""
    return F.expr(f"{expression} IN ({', '.join(map(repr, names))})") if names else F.lit(False)


def _count_here(blocks: pa.Table, plan: ReadPlan, targets: int) -> list[Part]:
    if targets:
        blocks = pa.Table.from_batches(scatter(blocks.to_batches(), targets), blocks.schema)
    in_order = blocks.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()
    counted = count_partitions(in_order.to_batches(), plan)
    return [pickle.loads(part) for batch in counted for part in batch.column("part").to_pylist()]


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
