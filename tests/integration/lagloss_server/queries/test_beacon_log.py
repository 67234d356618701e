"""A topic's log that changes while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lagloss.wire.format import OffsetRange
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import clamp
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
