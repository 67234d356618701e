"""Offsets of source connectors as they stand in the topic in which Kafka Connect stores them."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from lagloss.broker.connection import Cluster, KafkaConnection
from lagloss.broker.errors import is_of_group, needs
from lagloss.broker.partition_bounds import Key
from lagloss_server.groups.connect_offsets import OddOffset, SourcePartition, parse_source_offset

ANSWER_TIMEOUT_S: Final = 5.0
BATCH: Final = 10_000
_MORE_S: Final = 0.2
"""How long to wait for records that the client has not fetched yet."""


class SourceOffsets:
    """A consumer that belongs to no group, commits nothing, and reads each record once. Used by one thread."""

    def __init__(self, cluster: Cluster, topic: str, client_id: str = "lagloss-consumer-lag") -> None:
        self.topic = topic
        self.not_of_topics: set[str] = set()
        """Connectors that store positions in something else, as Debezium does."""
        self._standing: defaultdict[str, dict[SourcePartition, int]] = defaultdict(dict)
        self._unread: set[int] = set()
        """Partitions whose end was never reached."""
        self._assigned: set[int] = set()
        self._consumer = Consumer(
            KafkaConnection.of(cluster).client(
                {
                    "client.id": client_id,
                    "log_level": 0,
                    "group.id": client_id,  # the client wants one
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": True,
                }
            )
        )

    def read(self) -> None:
        """Read on to the end.

        Raises:
            KafkaException: the brokers do not answer or refuse, or the topic is still too long to be read in time.
        """
        self._assign()
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while time.monotonic() < deadline:
            messages = self._consumer.consume(BATCH, _MORE_S)
            for message in messages:
                self._take(message)
            if not messages and not self._unread:
                return
        if self._unread:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def committed(self, connector: str) -> dict[Key, int]:
        """Return the next offset that a connector takes of each partition, of topics that it reads in one cluster only:
        of several, it is unknown which has the topic that is measured."""
        standing = self._standing[connector]
        aliases: defaultdict[str, set[str]] = defaultdict(set)
        for source in standing:
            aliases[source.topic].add(source.alias)
        return {
            (source.topic, source.partition): offset
            for source, offset in standing.items()
            if len(aliases[source.topic]) == 1
        }

    def close(self) -> None:
        self._consumer.close()

    def _assign(self) -> None:
        """Have the consumer read partitions that are new."""
        topic = self._consumer.list_topics(self.topic, ANSWER_TIMEOUT_S).topics[self.topic]
        if topic.error is not None:
            raise KafkaException(needs(topic.error, "DESCRIBE", f"topic {self.topic}"))
        new = topic.partitions.keys() - self._assigned
        if new:
            places = [TopicPartition(self.topic, partition, OFFSET_BEGINNING) for partition in sorted(new)]
            self._consumer.incremental_assign(places)
            self._assigned |= new
            self._unread |= new

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            stored = parse_source_offset(message.key(), message.value())
            if isinstance(stored, OddOffset):
                if stored.reason == "no_topic" and stored.connector is not None:
                    self.not_of_topics.add(stored.connector)
            elif stored.next is None:
                self._standing[stored.connector].pop(stored.source, None)
            else:
                self._standing[stored.connector][stored.source] = stored.next
        elif error.code() == KafkaError._PARTITION_EOF:
            self._unread.discard(message.partition() or 0)
        elif not is_of_group(error):
            raise KafkaException(needs(error, "READ", f"topic {self.topic}"))
