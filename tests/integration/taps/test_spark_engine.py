"""Plans carried out by Spark: the same blocks as by one process, and each sent once."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from lagloss.broker.topics import create_topics
from lagloss.wire.format import SAMPLE_ALL, decode_block, hash_id
from lagloss_server.extraction import Extractor
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, Order, Tap
from taps.kernel import BlockMaker, Blocks
from taps.local_engine import LocalEngine
from taps.plan import OffsetSpan, TapPlan
from taps.planner import TopicPlanner
from taps.runner import Engine
from taps.spark_engine import SparkEngine
from taps.topic_reader import TopicReader
from tests.support.kafka_log import blocks_of

EXTRACTION = Extraction(
    IdExpression.parse("header:id"), TimeExpression.parse("$.at"), ConditionExpression.parse('key != "left out"')
)
QUOTED = Extraction(
    IdExpression.parse("header:quoted as json"),
    TimeExpression.parse("timestamp"),
    ConditionExpression.parse('$ != null and header:quoted as json != "m-5"'),
)
HASHED = Extraction(IdExpression.parse("hash(key, header:quoted, $.id)"), TimeExpression.parse("$.at"))
GROUPED = replace(EXTRACTION, id=IdExpression.parse("$.id"), where=None)

REPLAYS = [b"june", b"", b"x" * 501, b"\xff"]


def produce(bootstrap: str, topic: str) -> None:
    """300 records in 3 partitions: some aborted, some left out, some tombstones, some without what is asked of them,
    some of replays."""
    now_ms = time.time_ns() // 1_000_000
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    for batch in range(10):
        producer.begin_transaction()
        for row in range(30):
            number = batch * 30 + row
            value = json.dumps({"id": f"m-{number}", "at": now_ms - 1_000 * number})
            headers = [("id", f"m-{number}".encode())] if number % 13 else [("other", b"x")]
            headers.append(("quoted", f'"m-{number}"'.encode()))
            if number % 10 < len(REPLAYS):
                headers += [("lagloss-replay", b"earlier"), ("lagloss-replay", REPLAYS[number % 10])]
            key = "left out" if number % 7 == 0 else f"k{number % 9}"
            written = None if number % 11 == 0 else "{" if number % 17 == 0 else value
            producer.produce(topic, written, key, number % 3, headers=headers)
        assert producer.flush(30) == 0  # else, of one that is aborted, brokers may know nothing, and refuse its end
        if batch % 4 == 3:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def facts(made: Blocks) -> dict[int, tuple[object, ...]]:
    return {
        block.seq: (block.increment.key, block.increment.beacons, block.increment.id_sum, block.increment.payload_bytes)
        for block in made.blocks
    }


def test_records_before_a_span_are_read_by_both_as_far_as_retention_has_left_them(
    kafka_bootstrap: str, spark: SparkSession
) -> None:
    create_topics(kafka_bootstrap)
    topic = f"spark-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    produce(kafka_bootstrap, topic)
    for future in admin.delete_records([TopicPartition(topic, 0, 40), TopicPartition(topic, 1, 62)]).values():
        future.result(30)
    reader = TopicReader(kafka_bootstrap, topic)
    try:
        tap = Tap("spark", "source", "", topic, None, ("in", "out"), GROUPED, first=True, order="partition")
        maker = BlockMaker(tap, uuid.uuid4().bytes, 0, Extractor(GROUPED))
        local = LocalEngine(reader, maker)
        spans = tuple(OffsetSpan(partition, 60, 80) for partition in range(3))
        plan = TapPlan(1, time.time_ns() // 1_000_000, 4, SAMPLE_ALL, spans, is_spread=True)
        by_spark = SparkEngine(spark, kafka_bootstrap, kafka_bootstrap, maker, local).blocks(plan)
        by_process = local.blocks(plan)
    finally:
        reader.close()
    assert by_process.counts.gone == by_spark.counts.gone == 2, "of the span alone"
    assert by_spark.dropped == by_process.dropped
    assert {stored.block.seq: stored.block.out_of_order for stored in blocks_of(kafka_bootstrap, maker.emitter)} == {
        block.seq: decode_block(block.value).out_of_order for block in by_process.blocks
    }
    assert facts(by_spark) == facts(by_process)


def placed(topic: str) -> Extraction:
    return Extraction(IdExpression.parse("partition-offset"), TimeExpression.parse("$.at"), origins=(topic,))


@pytest.mark.parametrize(
    "extraction",
    [EXTRACTION, GROUPED, QUOTED, HASHED, None],
    ids=["headers and keys", "values", "tombstones", "hashes", "positions"],
)
def test_spark_makes_the_blocks_that_one_process_makes(
    kafka_bootstrap: str, spark: SparkSession, extraction: Extraction | None
) -> None:
    create_topics(kafka_bootstrap)
    topic = f"spark-{uuid.uuid4().hex[:8]}"
    extraction = extraction or placed(topic)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    produce(kafka_bootstrap, topic)
    reader = TopicReader(kafka_bootstrap, topic)
    try:
        order: Order = "partition" if extraction is GROUPED else "key"
        tap = Tap("spark", "source", "", topic, None, ("in", "out"), extraction, first=True, order=order)
        maker = BlockMaker(tap, uuid.uuid4().bytes, 0, Extractor(extraction))
        local = LocalEngine(reader, maker)
        engine = SparkEngine(spark, kafka_bootstrap, kafka_bootstrap, maker, local)
        first = TapPlan(0, 0, 4, SAMPLE_ALL, positions=dict.fromkeys(range(3), 0), is_spread=True)
        plan = TopicPlanner().plan(first, reader.look(range(3)), None, 150)
        plans = [plan, TopicPlanner().plan(plan, reader.look(range(3)), None, 10_000)]
        by_spark = Blocks.merged([engine.blocks(plan) for plan in plans])
        by_process = Blocks.merged([local.blocks(plan) for plan in plans])
    finally:
        reader.close()
    assert facts(by_spark) == facts(by_process)
    assert {stored.block.seq: stored.block.out_of_order for stored in blocks_of(kafka_bootstrap, maker.emitter)} == {
        block.seq: decode_block(block.value).out_of_order for block in by_process.blocks
    }
    assert (by_spark.counts, by_spark.dropped) == (by_process.counts, by_process.dropped)
    assert by_spark.counts.seen == 240  # of 300, 60 were aborted
    assert by_spark.counts.unreadable
    assert {block.increment.key.replay for block in by_spark.blocks} == {None, "june", "unnamed", "\ufffd"}
    if extraction.id.is_own_position:
        hashes = {int(each) for block in by_process.blocks for each in decode_block(block.value).id_hash}
        assert hashes <= {hash_id(f"{topic}/{partition}/{at}") for partition in range(3) for at in range(120)}
        assert len(hashes) == 240 - sum(found.count for found in by_spark.counts.unreadable.values())
    sent = blocks_of(kafka_bootstrap, maker.emitter)
    assert sorted((stored.partition, stored.offset) for stored in sent) == sorted(by_spark.positions or ())
    assert {stored.block.seq: stored.block.count for stored in sent} == {
        block.seq: block.increment.beacons for block in by_spark.blocks
    }


@pytest.mark.parametrize("engine_of", ["spark", "process"])
def test_any_timestamp_is_read_and_counts_by_the_looks_alone(
    kafka_bootstrap: str, spark: SparkSession, engine_of: str
) -> None:
    create_topics(kafka_bootstrap)
    topic = f"stamps-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    config = {"message.timestamp.after.max.ms": str((1 << 63) - 1), "retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(30)
    now_ms = time.time_ns() // 1_000_000
    stamps = [1, now_ms // 1_000, now_ms, now_ms * 1_000, now_ms * 1_000_000, (1 << 63) - 1]
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for number, stamp_ms in enumerate(stamps):
        value = json.dumps({"id": f"m-{number}", "at": now_ms - 10})
        producer.produce(topic, value, timestamp=stamp_ms)
        producer.flush(30)
    reader = TopicReader(kafka_bootstrap, topic)
    try:
        tap = Tap("stamps", "source", "", topic, None, ("out",), GROUPED, first=False)
        maker = BlockMaker(tap, uuid.uuid4().bytes, 0, Extractor(GROUPED))
        engine: Engine = LocalEngine(reader, maker)
        if engine_of == "spark":
            engine = SparkEngine(spark, kafka_bootstrap, kafka_bootstrap, maker, LocalEngine(reader, maker))
        first = TapPlan(0, 0, 4, SAMPLE_ALL, positions={0: 0}, through_ms=now_ms - 5, is_spread=engine.is_spread)
        look = reader.look([0])
        made = engine.blocks(TopicPlanner().plan(first, look, None, 150))
    finally:
        reader.close()
    blocks = [decode_block(block.value) for block in made.blocks if block.value]
    blocks += [stored.block for stored in blocks_of(kafka_bootstrap, maker.emitter)]
    lags = [float(lag_ms) for block in blocks for lag_ms in block.lag_ms]
    assert len(lags) == len(stamps)
    assert min(lags) == 5
    assert max(lags) <= look.by_ms - now_ms + 10
