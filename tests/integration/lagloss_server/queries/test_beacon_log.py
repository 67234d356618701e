"""A topic's log that changes while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import clamp
from tests.support.closers import wait_until
from tests.support.worlds_in_kafka import make_topics

RECORDS, DELETED = 10, 6


@pytest.fixture
def log(kafka_bootstrap: str) -> Iterator[BeaconLog]:
    """A log of one partition with records."""
    (topic,) = make_topics(kafka_bootstrap, "beacons", partitions=1)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "enable.idempotence": True, "log_level": 0})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    with closing(BeaconLog(kafka_bootstrap, topic)) as found:
        yield found


def test_a_range_whose_start_retention_deletes_before_it_is_read_does_not_count_as_read(
    log: BeaconLog, kafka_bootstrap: str
) -> None:
    ranges = clamp([OffsetRange(0, 0, RECORDS - 1)], log.watermarks())
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    place = TopicPartition(log.topic, 0, DELETED)
    admin.delete_records([place])[place].result(30)
    with pytest.raises(KafkaException):
        list(log.records(ranges))
    again = log.records(clamp(ranges, log.watermarks()))
    assert [record.offset for record in again] == list(range(DELETED, RECORDS))


def test_a_broker_that_names_fewer_partitions_than_are_known_is_not_believed(
    log: BeaconLog,
) -> None:
    assert log.partitions() == [0]
    log.know(1)
    assert log.ends() == {0: RECORDS}
    log.know(2)  # as of a position that is stored
    for ask in (log.partitions, log.ends, log.watermarks, lambda: log.offsets_at(0)):
        with pytest.raises(KafkaException, match="has 2 partitions"):
            ask()


def test_partitions_that_were_once_listed_are_not_forgotten(log: BeaconLog, kafka_bootstrap: str) -> None:
    before = log._admin.list_topics(log.topic, timeout=10)
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(30)
    wait_until(lambda: len(log.partitions()) == 3)
    log._admin.list_topics = lambda *_, **__: before  # type: ignore[method-assign]
    with pytest.raises(KafkaException, match="has 3 partitions"):
        log.watermarks()
