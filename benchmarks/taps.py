"""Taps beside a bare Spark read of the same records: JSON and Avro of 300 bytes, and the delay that a tap adds."""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from benchmarks.extraction import encoded_orders
from lagloss.broker.topics import create_topics
from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.model.taps import Extraction, Tap
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.spark_session import start_session
from taps.extraction import Extractor
from taps.kernel import BlockMaker
from taps.local_engine import LocalEngine
from taps.plan import TapPlan
from taps.planner import TopicPlanner
from taps.spark_engine import TAPS, SparkEngine
from taps.topic_reader import TopicReader

RECORDS: Final = 1_000_000
PARTITIONS: Final = 4
ROUNDS: Final = 5


def run() -> None:
    """Print rates and CPU of both engines beside the bare read, by format."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder, EmbeddedKafka(Path(folder) / "kafka") as kafka:
        create_topics(kafka.bootstrap)
        spark = start_session(TAPS, "local[2]", "4g", Path(folder) / "spark")
        try:
            hour_ago_ms = (time.time_ns() // 1_000_000 // 60_000 - 61) * 60_000
            for name, encoded in encoded_orders(hour_ago_ms).items():
                _fill(kafka.bootstrap, name, encoded.values)
                size = sum(map(len, encoded.values)) / len(encoded.values)
                _compare(spark, kafka.bootstrap, name, encoded.extraction, size)
        finally:
            spark.stop()


def _fill(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 200_000})
    for at in range(RECORDS):
        while True:
            try:
                producer.produce(topic, values[at % len(values)], partition=at % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def _compare(spark: SparkSession, bootstrap: str, topic: str, extraction: Extraction, size: float) -> None:
    reader = TopicReader(bootstrap, topic)
    try:
        tap = Tap("bench", "source", "", topic, None, ("in", "out"), extraction, first=True)
        since_ms = int(time.time() - 7 * 86_400 + 3_600) * 1_000
        maker = BlockMaker(tap, uuid.uuid4().bytes, since_ms, Extractor(extraction))
        local = LocalEngine(reader, maker, RECORDS)
        engine = SparkEngine(spark, bootstrap, bootstrap, maker, local)
        look = reader.look(reader.describe().partitions)
        first = TapPlan(0, 0, 8, SAMPLE_ALL, positions=dict.fromkeys(look.logs, 0), is_spread=True)
        plan = TopicPlanner(lambda: False).plan(first, look, None, 2 * RECORDS)
        made = engine.blocks(plan)
        beacons = sum(block.increment.beacons for block in made.blocks)
        if beacons != 2 * RECORDS:
            raise SystemExit(
                f"the tap of {topic} made {beacons} beacons of {RECORDS} records: {made.counts.unreadable}"
            )
        bare, tapped, bare_cpu, tapped_cpu = (list[float]() for _ in range(4))
        _bare_read(engine, plan)
        for _ in range(ROUNDS):  # in turns, so that a machine that drifts drifts for both
            for work, seconds, cpu in ((_bare_read, bare, bare_cpu), (_tap, tapped, tapped_cpu)):
                before, began = _cpu_s(), time.perf_counter()
                work(engine, plan)
                seconds.append(time.perf_counter() - began)
                cpu.append(_cpu_s() - before)
        before, began = time.process_time(), time.perf_counter()
        local.blocks(TapPlan(**{**_fields(plan), "is_spread": False}))
        alone, alone_cpu = time.perf_counter() - began, time.process_time() - before
        theirs, ours = statistics.median(bare), statistics.median(tapped)
        print(f"{topic}, {size:.0f} bytes a record, {RECORDS:,} records, source tap (two beacons a record, sent):")
        print(f"  bare Spark read:   {RECORDS / theirs:10,.0f} records/s, {statistics.median(bare_cpu):.1f} s of CPU")
        print(
            f"  tap by Spark:      {RECORDS / ours:10,.0f} records/s, {statistics.median(tapped_cpu):.1f} s of CPU:"
            f" {theirs / ours:.0%} of the bare read"
        )
        print(f"  tap by one process:{RECORDS / alone:10,.0f} records/s, {alone_cpu:.1f} s of CPU, blocks not sent")
    finally:
        reader.close()


def _fields(plan: TapPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__dataclass_fields__}


def _tap(engine: SparkEngine, plan: TapPlan) -> None:
    engine.blocks(plan)


def _bare_read(engine: SparkEngine, plan: TapPlan) -> None:
    """Read the values of the same records into Arrow in the same workers, and drop them."""

    def drop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.slice(0, 0) for batch in batches)

    engine.records(plan).select("value").mapInArrow(drop, "value binary").collect()


def _cpu_s() -> float:
    """Return the CPU time of this process, Spark and its workers so far, in s."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            if "kafka.Kafka" not in process.cmdline():
                times = process.cpu_times()
                total += times.user + times.system
    return total
