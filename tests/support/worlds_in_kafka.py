"""Puts a random world (tests/oracle) into real topics, with its append times and the order of its log."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from tests.oracle.evidence import Record, World
from tests.support.closers import wait_until

PARTITIONS = 16


@dataclass(frozen=True)
class Placed:
    """The topics that hold a world."""

    beacons: str
    reports: str


def make_topics(bootstrap: str, *kinds: str, partitions: int) -> list[str]:
    """Topics of a test's own, with CreateTime so that append times are those that the test gives, and no retention."""
    word = uuid.uuid4().hex[:8]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    config = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    names = [f"{kind}-{word}" for kind in kinds]
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=config) for name in names]).values():
        made.result(20)
    wait_until(lambda: _are_known(admin, names), what="for the broker to know its new topics")
    return names


def _are_known(admin: AdminClient, names: list[str]) -> bool:
    """Whether the broker answers questions about them: a moment after it made them."""
    try:
        return all(found.result(20).partitions for found in admin.describe_topics(TopicCollection(names)).values())
    except KafkaException:
        return False


def put_world(bootstrap: str, world: World) -> Placed:
    """Topics of this world's own.

    Offsets are the broker's: what the tallies name as ranges lies elsewhere, so it takes a closer that looks at all of
    a new log once. Records that the world's log no longer holds are left out.
    """
    placed = Placed(*make_topics(bootstrap, "beacons", "reports", partitions=PARTITIONS))
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0})
    held = [record for record in world.beacons if record.offset >= world.beacons_start.get(record.partition, 0)]
    _put(producer, placed.beacons, sorted(held, key=lambda record: record.offset))
    _put(producer, placed.reports, sorted(world.reports, key=lambda record: (record.timestamp_ms, record.offset)))
    assert producer.flush(30) == 0
    return placed


def _put(producer: Producer, topic: str, records: Iterable[Record]) -> None:
    for record in records:
        producer.produce(topic, record.value, record.key, record.partition, timestamp=record.timestamp_ms)
