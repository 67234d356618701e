"""A service between Kafka topics as a node, whose consumers and producers send the beacons.

    with KafkaNode("orders", "enrich") as node:
        consumer, producer = node.consumer({...}), node.producer({...})

The rest of the service stays as it was: `consumer` and `producer` are confluent_kafka's, with the same methods.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import Message

from lagloss.broker.headers import headers_of
from lagloss.identity import Carrier, mapping_of
from lagloss.kafka.base import BaseNode, RecordPosition
from lagloss.kafka.commits import place_of
from lagloss.kafka.consumer import NodeConsumer
from lagloss.kafka.producer import NodeProducer

__all__ = ["KafkaNode", "NodeConsumer", "NodeProducer", "carrier_of"]

CLOSE_S: Final = 10.0


class KafkaNode(BaseNode[Message]):
    """One process of a node that reads from Kafka, writes to Kafka, or both, with confluent_kafka.

    `BaseNode` has its arguments and what it promises.
    """

    @cached_property
    def _consumers(self) -> list[NodeConsumer]:
        return []

    @cached_property
    def _producers(self) -> list[NodeProducer]:
        return []

    # -- clients --------------------------------------------------------------------------------------------------

    def consumer(self, config: Mapping[str, Any], *, explicit_done: bool = False) -> NodeConsumer:
        """Make a confluent_kafka Consumer that sends beacons for the messages it reads; `enable.auto.commit` is
        overridden, unless the node observes.

        Args:
            config: as for confluent_kafka's.
            explicit_done: a message's handling is over at `consumer.done(message)`, or at the end of `with
                consumer.handling(message)`, and not when the next one is polled: for hosts that collect messages, or
                hand them to threads or tasks.
        """
        consumer_ = NodeConsumer(self, config, explicit_done=explicit_done)
        self._consumers.append(consumer_)
        return consumer_

    def producer(
        self, config: Mapping[str, Any], *, next_nodes: Mapping[str, str] | None = None, polls: bool = False
    ) -> NodeProducer:
        """Make a confluent_kafka Producer that sends the beacon of a message once its record is acknowledged; in a
        transaction, once that is committed.

        Args:
            config: as for confluent_kafka's.
            next_nodes: if the node has several next nodes, the reader of each topic. A record to a topic that is not
                named is no `out`. Without it, every record is an `out` to the one next node.
            polls: start a thread that waits for delivery reports, for services without a loop that calls `poll`.

        Raises:
            ValueError: for a transactional producer, unless the node observes: an acknowledged record may still be
                aborted.
        """
        producer_ = NodeProducer(self, config, next_nodes, polls=polls)
        self._producers.append(producer_)
        return producer_

    def poll_producers(self) -> None:
        """Call the delivery reports that have arrived."""
        for producer in self._producers:
            producer.poll(0)

    def flush_producers(self, timeout_s: float) -> None:
        """Wait for outstanding delivery reports."""
        deadline = time.monotonic() + timeout_s
        for producer in self._producers:
            producer.flush(max(0.0, deadline - time.monotonic()))

    # -- the client's records -----------------------------------------------------------------------------------------

    def place_of(self, record: Message) -> RecordPosition:
        return place_of(record)

    def carrier_of(self, record: Message) -> Carrier:
        return carrier_of(record)

    def record_key_of(self, record: Message) -> str | bytes | None:
        key: str | bytes | None = record.key()
        return key

    def value_of(self, record: Message) -> str | bytes | None:
        value: str | bytes | None = record.value()
        return value

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Close everything in the right order: wait for records in flight, commit finished messages, close the emitter,
        then the consumers. Idempotent.

        A message that is not finished is another process's to do again: the emitter then reports that work was in
        flight at its end, so that the message is late and not lost.

        Returns:
            False if the broker did not acknowledge the emitter's last report.
        """
        self.flush_producers(timeout_s)
        for consumer in self._consumers:
            consumer.settle()
        ended = self.emitter.close()
        for consumer in self._consumers:
            consumer.close()
        for producer in self._producers:
            producer.stop_polling()
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def carrier_of(message: Message) -> Carrier:
    """Return the parts of a Kafka message in which an identity is searched; unreadable headers are none."""
    return Carrier(mapping_of(headers_of(message)), message.value() or b"", message)
