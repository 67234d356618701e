"""Readers that share few consumers read what they would with their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from taps.consumers import SharedConsumers
from taps.plan import OffsetSpan
from taps.topic_reader import TopicReader
from tests.support.mock_kafka import mock_kafka

RECORDS = 30


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    with mock_kafka() as bootstrap:
        producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        for topic in ("a", "b", "c"):
            for number in range(RECORDS):
                producer.produce(topic, f"{topic}{number}", partition=0)
        producer.flush()
        yield bootstrap


def test_readers_take_turns_with_one_consumer(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taps.consumers.IDLE_S", 0.0)
    consumers = SharedConsumers(kafka, kept=1)
    readers = {topic: TopicReader(kafka, topic, consumers=consumers, peeks=consumers) for topic in ("a", "b", "c")}
    clients = set()
    for start in range(0, RECORDS, 5):
        for topic, reader in readers.items():
            read = reader.read([OffsetSpan(0, start, start + 5)])[0]
            assert read.records.values == [f"{topic}{number}".encode() for number in range(start, start + 5)]
            clients |= {consumer for consumer, _ in consumers._lent.values()}
            if start % 2:
                consumers.tidy()
    assert len(clients) == 1
    for reader in readers.values():
        reader.close()
    consumers.close()
    assert not consumers._lent
    assert not consumers._free


def test_more_consumers_are_open_only_while_more_read(kafka: str) -> None:
    consumers = SharedConsumers(kafka, kept=1)
    readers = [TopicReader(kafka, topic, consumers=consumers, peeks=consumers) for topic in ("a", "b")]
    taken = [consumers.take(reader) for reader in readers]
    assert taken[0] is not taken[1]
    for reader, consumer in zip(readers, taken, strict=True):
        consumers.give_back(reader, consumer)
    assert list(consumers._lent) == [readers[1]]
    assert consumers.take(readers[0]) is taken[1]
    consumers.give_back(readers[0], taken[1])
    consumers.close()
