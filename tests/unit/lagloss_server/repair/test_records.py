"""Records in a cluster that librdkafka simulates: found by their ids, read where they are, sent as they were."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from lagloss.identity import ID_HEADER, REPLAY_HEADER, TIME_HEADER
from lagloss.wire.format import OffsetRange, hash_id
from lagloss_server.repair.lost import LostId
from lagloss_server.repair.records import RecordPosition, TopicRecord, TopicRecords
from lagloss_server.repair.sender import OutgoingRecord, RepairSender
from lagloss_server.repair.site import HEADERS, RecordSource
from tests.support.mock_kafka import mock_kafka

START_S: Final = 1_795_250_400
"""Of the window of all events; records are appended now, far from it."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with mock_kafka() as bootstrap:
        yield bootstrap


@pytest.fixture
def topic() -> str:
    return f"orders-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def records(cluster: str) -> Iterator[TopicRecords]:
    with closing(TopicRecords(cluster)) as opened:
        yield opened


def put(cluster: str, topic: str, *names: str, partition: int = 0, replay: str | None = None, **more: Any) -> None:
    """Append records of messages to a partition."""
    producer = Producer({"bootstrap.servers": cluster, "log_level": 0})
    for name in names:
        headers = [(ID_HEADER, name), (TIME_HEADER, str(START_S * 1_000 + 5)), ("kind", b"\xff"), ("kind", None)]
        headers += [] if replay is None else [(REPLAY_HEADER, replay)]
        producer.produce(topic, f"value of {name}", name, partition, headers=headers, **more)
    assert producer.flush(20) == 0


def lost(*names: str) -> list[LostId]:
    return [LostId(START_S, hash_id(name), name, "lost", START_S * 1_000.0) for name in names]


def source(topic: str, target: str = "") -> RecordSource:
    return RecordSource(topic, HEADERS, target or topic)


def read_all(records: TopicRecords, topic: str) -> list[TopicRecord]:
    marks = records.watermarks(topic)
    ranges = [OffsetRange(partition, 0, mark.high - 1) for partition, mark in marks.items() if mark.high]
    return [record for batch in records.read(topic, ranges) for record in batch]


def test_records_are_found_by_id_and_window_wherever_they_are(cluster: str, topic: str, records: TopicRecords) -> None:
    put(cluster, topic, "a", "x", "b", partition=0)
    put(cluster, topic, "y", "c", partition=2)
    put(cluster, topic, *(f"other-{number}" for number in range(300)), partition=1)
    elsewhere = LostId(START_S + 60, hash_id("x"), "x", "lost", 0.0)  # the same id in another window
    located = records.locate([source(topic)], [*lost("a", "b", "c", "gone"), elsewhere])
    assert located == {
        (START_S, hash_id("a")): RecordPosition(topic, 0, 0, topic),
        (START_S, hash_id("b")): RecordPosition(topic, 0, 2, topic),
        (START_S, hash_id("c")): RecordPosition(topic, 2, 1, topic),
    }


def test_an_original_comes_before_what_a_replay_sent_and_the_first_before_others(
    cluster: str, topic: str, records: TopicRecords
) -> None:
    put(cluster, topic, "a", "b", replay="earlier", timestamp=START_S * 1_000)
    put(cluster, topic, "a", partition=3, timestamp=START_S * 1_000 + 9_000)
    put(cluster, topic, "a", partition=1, timestamp=START_S * 1_000 + 1_000)
    located = records.locate([source(topic)], lost("a", "b"))
    assert located[START_S, hash_id("a")] == RecordPosition(topic, 1, 0, topic)
    assert located[START_S, hash_id("b")] == RecordPosition(topic, 0, 1, topic)


def test_a_later_source_is_asked_for_what_the_first_does_not_have(
    cluster: str, topic: str, records: TopicRecords
) -> None:
    put(cluster, topic, "a")
    put(cluster, f"{topic}-dead", "a", "b", partition=1)
    sources = [source(topic), source(f"{topic}-dead", topic)]
    assert records.locate(sources, lost("a", "b")) == {
        (START_S, hash_id("a")): RecordPosition(topic, 0, 0, topic),
        (START_S, hash_id("b")): RecordPosition(f"{topic}-dead", 1, 1, topic),
    }


def test_single_records_are_read_where_they_are(cluster: str, topic: str, records: TopicRecords) -> None:
    put(cluster, topic, *(f"m-{number}" for number in range(5_000)))
    places = [RecordPosition(topic, 0, offset, topic) for offset in (0, 7, 4_999, 60_000)]
    found = records.read_at(places)
    assert {place.offset: record.key for place, record in found.items()} == {0: b"m-0", 7: b"m-7", 4_999: b"m-4999"}


def outgoing(record: TopicRecord, target: str, *, keeps_partition: bool = True) -> OutgoingRecord:
    headers = record.headers_to_send(target, HEADERS, "repair-1")
    return OutgoingRecord(target, record, headers, keeps_partition=keeps_partition)


def test_a_copy_is_the_record_as_it_was_in_its_own_partition(cluster: str, topic: str, records: TopicRecords) -> None:
    put(cluster, topic, "a", partition=2, timestamp=START_S * 1_000)
    (record,) = read_all(records, topic)
    odd = record._replace(key=b"", value=None)
    repair_id = uuid.uuid4().hex
    with RepairSender(cluster, repair_id, f"repair-{repair_id}", topic) as sender:
        assert sender.begin() is None
        sender.send([outgoing(record, topic), outgoing(odd, topic)], 2)
    original, copy, other = read_all(records, topic)
    assert copy[2:5] == original[2:5]
    assert (copy.partition, other.partition) == (2, 2)
    assert list(copy.headers) == [*original.headers, (REPLAY_HEADER, b"repair-1")]
    assert (other.key, other.value) == (b"", None)


def test_a_record_of_another_topic_goes_where_its_key_belongs(cluster: str, topic: str, records: TopicRecords) -> None:
    put(cluster, topic, "a", partition=0)
    dead = [TopicRecord(3, 0, START_S * 1_000, key, b"v", []) for key in (b"one", b"two", b"one")]
    repair_id = uuid.uuid4().hex
    with RepairSender(cluster, repair_id, f"repair-{repair_id}", topic) as sender:
        sender.begin()
        sender.send([outgoing(record, topic, keeps_partition=False) for record in dead], 3)
    partitions = [(record.key, record.partition) for record in read_all(records, topic) if record.replay]
    assert len(partitions) == 3
    assert len(set(partitions)) == 2  # equal keys in one partition
