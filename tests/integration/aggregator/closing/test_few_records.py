"""Few records are read in this process: the same ones as Spark reads, to the same facts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from aggregator.kernel import spark_reader
from aggregator.kernel.plan import ReadPlan, WindowPlan
from aggregator.kernel.spark_reader import BlockReader, is_wanted, wanted
from lagloss.wire.format import OffsetRange
from lagloss_server.model.definition import Definition
from lagloss_server.queries.beacon_log import BeaconLog, LogRecord
from tests.oracle.evidence import World
from tests.oracle.worlds import make_world
from tests.support.worlds_in_kafka import PARTITIONS, put_world

NOW_MS = 1_780_000_000_000
KEYS = (
    None, b"", b"a", b"a/", b"/60", b"a/b/60", b"a/60 ", b"a/60\n", b"a/+60", b"a/6e1", b"a/-60", b"a//60", b"\xff/60",
    b"a/\xd9\xa3", b"b/1780000000", b"a/1780000000", b"a/1780000060", b"a/1779999940", b"a/999999999999",
    b"a/1780003600", b"a/9999999999999", b"a/99999999999999999999", b"a b/1780000000", b"a/1700000000", b"a/0",
)  # fmt: skip


def windows_of(world: World, start_s: int) -> ReadPlan:
    definition = Definition.model_validate(world.definitions[-1][1])
    plans = [WindowPlan(definition.graph, start_s + 60 * minute, (1e15,)) for minute in range(-1, 2)]
    return ReadPlan({plan.key: plan for plan in plans}, frozenset([definition.name]))


def in_any_order(part: Any) -> Any:
    """What a reading holds, whichever task found it first."""
    if is_dataclass(part):
        return {field.name: in_any_order(getattr(part, field.name)) for field in fields(part)}
    if isinstance(part, Mapping):
        return {key: in_any_order(value) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return sorted(repr(in_any_order(item)) for item in part)
    return repr(part)


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[BeaconLog]:
    world, _ = make_world(random.Random(3))
    with closing(BeaconLog(kafka_bootstrap, put_world(kafka_bootstrap, world).beacons)) as opened:
        yield opened


def test_spark_and_this_process_want_the_same_keys(spark: SparkSession) -> None:
    spec = {"nodes": [{"name": "n"}]}
    head = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "a"}}
    window = WindowPlan(Definition.model_validate({**head, "spec": spec}).graph, 1_780_000_000)
    records = [LogRecord(key, b"x", NOW_MS + more, 0, at) for at, key in enumerate(KEYS) for more in (0, -86_400_000)]
    for plan in (
        ReadPlan({window.key: window}, frozenset(["a"])),
        ReadPlan({}, frozenset(["a"])),
        ReadPlan({}, frozenset()),
    ):
        rows = [(record.offset, record.appended_ms, record.key) for record in records]
        frame = spark.createDataFrame(rows, "offset long, appended_ms long, key binary").where(is_wanted(plan))
        by_spark = {(row.offset, row.appended_ms) for row in frame.collect()}
        assert {(record.offset, record.appended_ms) for record in filter(wanted(plan), records)} == by_spark


@pytest.mark.parametrize("seed", [3, 7, 209, 1093])
def test_spark_and_this_process_read_the_same(seed: int, spark: SparkSession, kafka_bootstrap: str) -> None:
    world, start_s = make_world(random.Random(seed))
    topic, plan = put_world(kafka_bootstrap, world).beacons, windows_of(world, start_s)
    with closing(BeaconLog(kafka_bootstrap, topic)) as log:
        ranges = [OffsetRange(at, 0, end - 1) for at, end in log.ends().items() if end]
        kept = [record for record in log.records(ranges[:1]) if record.offset % 2]
        for targets in (PARTITIONS, 3):
            here = BlockReader(spark, kafka_bootstrap, topic, targets, log).read(ranges[1:], plan, kept)
            there = BlockReader(spark, kafka_bootstrap, topic, targets).read(ranges[1:], plan, kept)
            assert in_any_order(here) == in_any_order(there)


def test_more_than_few_are_left_to_spark(
    spark: SparkSession, kafka_bootstrap: str, log: BeaconLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = BlockReader(spark, kafka_bootstrap, log.topic, PARTITIONS, log)
    plan = ReadPlan({}, frozenset())
    ranges = [OffsetRange(at, 0, end - 1) for at, end in log.ends().items() if end]
    assert reader._few(ranges, plan, ())
    for name, limit in (("FEW_RECORDS", 3), ("FEW_BYTES", 100)):
        with monkeypatch.context() as patched:
            patched.setattr(spark_reader, name, limit)
            assert reader._few(ranges, plan, ()) is None
            assert reader.read(ranges, plan).strays.total() > 0


def test_what_retention_deletes_meanwhile_ends_the_read(kafka_bootstrap: str, log: BeaconLog) -> None:
    ranges = [OffsetRange(at, 0, end - 1) for at, end in log.ends().items() if end > 1]
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    first = TopicPartition(log.topic, ranges[0].partition, 1)
    admin.delete_records([first])[first].result(10)
    with pytest.raises(KafkaException):
        list(log.records(ranges))
    assert [record.offset for record in log.records([OffsetRange(first.partition, 1, ranges[0].last)])]
