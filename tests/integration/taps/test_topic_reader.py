"""Reading a topic while transactions are open and retention deletes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from taps.plan import OffsetSpan
from taps.topic_reader import TopicReader


def test_what_an_open_transaction_hides_is_not_waited_for(kafka_bootstrap: str) -> None:
    topic = f"open-{uuid.uuid4().hex[:8]}"
    settings = {"message.timestamp.type": "LogAppendTime"}
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    assert producer.flush(30) == 0
    reader, starts, later_ms = TopicReader(kafka_bootstrap, topic), {0: 1}, time.time_ns() // 1_000_000 + 60_000
    look = reader.look(starts)
    assert (look.logs[0].stable_end, look.logs[0].end) == (0, 1)
    assert reader.appended_before(later_ms, starts, look) == set()
    producer.commit_transaction(30)
    while (look := reader.look(starts)).logs[0].stable_end < 1:
        time.sleep(0.01)
    assert reader.appended_before(later_ms, starts, look) == {0}
    reader.close()


def test_what_retention_takes_of_a_later_span_is_counted_there(kafka_bootstrap: str) -> None:
    topic = f"overtaken-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})

    def produce(count: int) -> None:
        for _ in range(count):
            producer.produce(topic, b"1")
        assert producer.flush(30) == 0

    produce(20)
    reader = TopicReader(kafka_bootstrap, topic)
    consumer = reader._consumers.take(reader)
    consume = consumer.consume

    def overtaken(*args: Any) -> list[Message]:
        """Have retention overtake the consumer behind the 20 records that it has fetched for the first span."""
        messages: list[Message] = []
        while len(messages) < 20:
            messages += consume(*args)
        produce(10)
        place = TopicPartition(topic, 0, 25)
        admin.delete_records([place])[place].result(30)
        overtaking.consume = consume
        return [*messages, Message(topic=topic, partition=0, error=KafkaError(KafkaError.OFFSET_OUT_OF_RANGE))]

    overtaking: Any = ConsumerWith(consumer, overtaken)
    reader._consumers.give_back(reader, overtaking)
    first = reader.read([OffsetSpan(0, 0, 10)])[0]
    second = reader.read([OffsetSpan(0, 10, 30)])[0]
    reader.close()
    assert (first.offsets.tolist(), first.gone) == (list(range(10)), 0)
    assert (second.offsets.tolist(), second.gone) == (list(range(25, 30)), 15)


class ConsumerWith:
    """A consumer whose `consume` is another."""

    def __init__(self, consumer: Consumer, consume: Callable[..., list[Message]]) -> None:
        self._consumer, self.consume = consumer, consume

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)
