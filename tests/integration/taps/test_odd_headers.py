"""Headers that clients in other languages than Java can send: names are bytes to them."""

from __future__ import annotations

import uuid
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.kafka import carrier_of
from lagloss_server.extraction import Extractor
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction
from taps.plan import OffsetSpan
from taps.topic_reader import TopicReader


class NoUtf8(str):
    """A header's name that Kafka's client writes as bytes that are no text."""

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"caf\xe9"


@pytest.fixture
def odd_topic(kafka_bootstrap: str) -> str:
    """Make a topic of three records, of which the second has a header whose name is no text."""
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    topic = f"odd-headers-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = kafka.KafkaProducer(bootstrap_servers=kafka_bootstrap)
    for number, headers in enumerate(([("id", b"a")], [(NoUtf8("x"), b"1"), ("id", b"b")], [("id", b"c")])):
        producer.send(topic, b'{"id": %d}' % number, headers=headers, partition=0).get(30)
    producer.close(timeout=10)
    return topic


def test_a_header_whose_name_is_no_text_stops_no_tap(kafka_bootstrap: str, odd_topic: str) -> None:
    reader = TopicReader(kafka_bootstrap, odd_topic)
    for _ in range(10):  # a loop that is warm checks less of what the client returns
        records = reader.read([OffsetSpan(0, 0, 3)])[0].records
    reader.close()
    by_header = Extractor(Extraction(IdExpression.parse("header:id"), TimeExpression.parse("timestamp")))
    found = by_header.extract(records)
    assert (found.ids, found.unreadable) == ([b"a", b"c"], {"bad_headers": (1, 1)})
    where = ConditionExpression.parse("exists header:id")
    kept = Extractor(Extraction(IdExpression.parse("$.id"), TimeExpression.parse("timestamp"), where)).extract(records)
    assert (kept.left_out, kept.unreadable) == (0, {"bad_headers": (1, 1)})  # it may have been any message
    by_value = Extractor(Extraction(IdExpression.parse("$.id"), TimeExpression.parse("timestamp")))
    assert by_value.extract(records).ids == [b"0", b"1", b"2"]


def test_a_node_takes_such_a_record_as_one_without_identity(kafka_bootstrap: str, odd_topic: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": "none"})
    for _ in range(10):
        consumer.assign([TopicPartition(odd_topic, 0, 0)])
        messages = consumer.consume(3, 30)
        assert [carrier_of(message).headers.get("id") for message in messages] == [b"a", None, b"c"]
        assert messages[1].headers() == []  # what a service would see that asks after the node
    consumer.close()
