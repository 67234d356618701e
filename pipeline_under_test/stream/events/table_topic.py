"""A compacted topic as a table: read whole at the start, followed from then on, written one row at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from lagloss.broker.connection import KafkaConnection

READ_TIMEOUT_S: Final = 30.0
WRITE_TIMEOUT_S: Final = 15.0

Row = tuple[str, bytes | None]
"""Key and value; None: the row is gone."""


class TableTopic:
    """One partition, no consumer group: each process reads all of it for itself."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap = bootstrap
        self._place = TopicPartition(topic, 0, OFFSET_BEGINNING)
        self._consumer = Consumer(
            KafkaConnection.of(bootstrap).client(
                {
                    "group.id": f"{topic}.nobody",  # the client wants one; nothing is committed
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                }
            )
        )
        self._consumer.assign([self._place])

    def read_whole(self) -> Iterator[Row]:
        """Return all rows from the beginning to the present end, in the order they were written.

        Raises:
            TimeoutError: if the end is not reached in time.
            KafkaException: if the broker refuses.
        """
        deadline = time.monotonic() + READ_TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield (message.key() or b"").decode(errors="replace"), message.value()
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif not error.retriable():
                raise KafkaException(error)
        raise TimeoutError(f"expected to read {self._place.topic} within {READ_TIMEOUT_S:.0f} s")

    def changes(self) -> Iterator[Row]:
        """Return the rows written since; never wait."""
        while (message := self._consumer.poll(0)) is not None:
            if message.error() is None:
                yield (message.key() or b"").decode(errors="replace"), message.value()

    def write(self, key: str, value: bytes | None) -> None:
        """Write a row, or delete it; return once all in-sync replicas have it.

        Raises:
            KafkaException: if the broker does not take it in time.
        """
        failed: list[KafkaError] = []
        producer = Producer(KafkaConnection.of(self._bootstrap).client({"acks": "all", "enable.idempotence": True}))
        producer.produce(
            self._place.topic,
            value,
            key.encode(),
            partition=0,
            on_delivery=lambda error, _record: failed.append(error) if error is not None else None,
        )
        if producer.flush(WRITE_TIMEOUT_S):
            failed.append(KafkaError(KafkaError._MSG_TIMED_OUT))
        if failed:
            raise KafkaException(failed[0])

    def close(self) -> None:
        self._consumer.close()
