"""What a reader can say of a topic whose last records belong to an open transaction."""

from __future__ import annotations

import time
import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

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
