"""Taps beside a bare Spark read of the same records: JSON and Avro of 300 bytes, and the delay that a tap adds."""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from benchmarks.closing import drop_values
from benchmarks.database import fresh_kafka
from benchmarks.extraction import encoded_orders
from benchmarks.timing import Stopwatch
from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.extraction import Extractor
from lagloss_server.model.taps import Extraction, Tap
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.spark_session import start_session
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
    with fresh_kafka() as (folder, kafka), start_session(TAPS, "local[2]", "4g", folder / "spark") as spark:
        hour_ago_ms = (time.time_ns() // 1_000_000 // 60_000 - 61) * 60_000
        for name, encoded in encoded_orders(hour_ago_ms).items():
            _fill(kafka.bootstrap, name, encoded.values)
            size = sum(map(len, encoded.values)) / len(encoded.values)
            _compare(spark, kafka, name, encoded.extraction, size)


def _fill(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 200_000})
    for index in range(RECORDS):
        while True:
            try:
                producer.produce(topic, values[index % len(values)], partition=index % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush()


def _compare(spark: SparkSession, kafka: EmbeddedKafka, topic: str, extraction: Extraction, size: float) -> None:
    reader = TopicReader(kafka.bootstrap, topic)
    try:
        tap = Tap("bench", "source", "", topic, None, ("in", "out"), extraction, first=True)
        since_ms = int(time.time() - 7 * 86_400 + 3_600) * 1_000
        maker = BlockMaker(tap, uuid.uuid4().bytes, since_ms, Extractor(extraction))
        local = LocalEngine(reader, maker, RECORDS)
        engine = SparkEngine(spark, kafka.bootstrap, kafka.bootstrap, maker, local)
        look = reader.look(reader.describe().partitions)
        first = TapPlan(0, 0, 8, SAMPLE_ALL, positions=dict.fromkeys(look.logs, 0), is_spread=True)
        plan = TopicPlanner().plan(first, look, None, 2 * RECORDS)
        blocks = engine.blocks(plan)
        beacons = sum(block.increment.beacons for block in blocks.blocks)
        if beacons != 2 * RECORDS:
            raise SystemExit(
                f"the tap of {topic} made {beacons} beacons of {RECORDS} records: {blocks.counts.unreadable}"
            )
        broker, bare, tapped = kafka.processes[0].pid, list[Stopwatch](), list[Stopwatch]()
        drop_values(engine.records(plan))
        for _ in range(ROUNDS):  # in turns, so that a machine that drifts drifts for both
            with Stopwatch(os.getpid(), broker) as spent:
                drop_values(engine.records(plan))
            bare.append(spent)
            with Stopwatch(os.getpid(), broker) as spent:
                engine.blocks(plan)
            tapped.append(spent)
        with Stopwatch() as alone:
            local.blocks(replace(plan, is_spread=False))
        theirs, ours = (statistics.median(spent.wall_s for spent in spents) for spents in (bare, tapped))
        their_cpu, our_cpu = (
            statistics.median(spent.others_s[os.getpid()] - spent.others_s[broker] for spent in spents)
            for spents in (bare, tapped)
        )
        print(f"{topic}, {size:.0f} bytes a record, {RECORDS:,} records, source tap (two beacons a record, sent):")
        print(f"  bare Spark read:   {RECORDS / theirs:10,.0f} records/s, {their_cpu:.1f} s of CPU")
        print(
            f"  tap by Spark:      {RECORDS / ours:10,.0f} records/s, {our_cpu:.1f} s of CPU:"
            f" {theirs / ours:.0%} of the bare read"
        )
        print(
            f"  tap by one process:{RECORDS / alone.wall_s:10,.0f} records/s, {alone.own_s:.1f} s of CPU,"
            " blocks not sent"
        )
    finally:
        reader.close()
