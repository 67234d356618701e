"""A service between Kafka topics as a node, whose aiokafka consumers and producers send the beacons.

    async with AIOKafkaNode("orders", "enrich") as node:
        consumer = node.consumer("orders", bootstrap_servers=servers, group_id="enrich")
        producer = node.producer(bootstrap_servers=servers)

The rest of the service stays as it was: `consumer` and `producer` are aiokafka's, with the same methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from types import TracebackType
from typing import Any, Final, Self

from aiokafka import ConsumerRecord

from lagloss.aiokafka.consumer import AIONodeConsumer
from lagloss.aiokafka.producer import AIONodeProducer
from lagloss.identity import Carrier, mapping_of
from lagloss.kafka.base import BaseNode, RecordPosition
from lagloss.kafka.in_flight import InFlightMessage

CLOSE_S: Final = 10.0


class AIOKafkaNode(BaseNode[ConsumerRecord]):
    """One process of a node that reads from Kafka, writes to Kafka, or both, with aiokafka on one event loop.

    `BaseNode` has its arguments and what it promises.
    """

    @cached_property
    def _consumers(self) -> list[AIONodeConsumer]:
        return []

    @cached_property
    def _producers(self) -> list[AIONodeProducer]:
        return []

    # -- clients --------------------------------------------------------------------------------------------------

    def consumer(self, *topics: str, explicit_done: bool = False, **config: Any) -> AIONodeConsumer:
        """Make an AIOKafkaConsumer that sends beacons for the messages it reads; `enable_auto_commit` is overridden,
        unless the node observes. Call this where the event loop runs.

        Args:
            topics: to subscribe to.
            explicit_done: a message's handling is over at `consumer.done(record)`, or at the end of `with
                consumer.handling(record)`, and not when the next one is read: for hosts that collect messages, or hand
                them to tasks.
            config: as for aiokafka's.
        """
        consumer_ = AIONodeConsumer(self, topics, config, explicit_done=explicit_done)
        self._consumers.append(consumer_)
        return consumer_

    def producer(self, *, next_nodes: Mapping[str, str] | None = None, **config: Any) -> AIONodeProducer:
        """Make an AIOKafkaProducer that sends the beacon of a message once its record is acknowledged; in a
        transaction, once that is committed. Call this where the event loop runs.

        Args:
            next_nodes: if the node has several next nodes, the reader of each topic. A record to a topic that is not
                named is no `out`. Without it, every record is an `out` to the one next node.
            config: as for aiokafka's.

        Raises:
            ValueError: for a transactional producer, unless the node observes: an acknowledged record may still be
                aborted.
        """
        producer_ = AIONodeProducer(self, config, next_nodes)
        self._producers.append(producer_)
        return producer_

    async def flush_producers(self, timeout_s: float) -> None:
        """Wait for outstanding acknowledgements."""
        flushes = [asyncio.ensure_future(producer.flush()) for producer in self._producers]
        if flushes:
            _, late = await asyncio.wait(flushes, timeout=timeout_s)
            for flush in late:
                flush.cancel()

    def polled(self) -> tuple[InFlightMessage, ...]:
        return tuple(handling for consumer in self._consumers for handling in consumer.polled_elsewhere)

    # -- the client's records -----------------------------------------------------------------------------------------

    def place_of(self, record: ConsumerRecord) -> RecordPosition:
        return (record.topic, record.partition), record.offset

    def carrier_of(self, record: ConsumerRecord) -> Carrier:
        return Carrier(mapping_of(record.headers), self._body(record), record)

    def record_key_of(self, record: ConsumerRecord) -> str | bytes | None:
        return self.payload_bytes(record.key)

    def value_of(self, record: ConsumerRecord) -> str | bytes | None:
        return self.payload_bytes(record.value)

    @staticmethod
    def payload_bytes(value: Any) -> str | bytes | None:
        """Return a key or value as it is on the wire; None for what a deserializer made of it."""
        return value if isinstance(value, str | bytes) else None

    def _body(self, record: ConsumerRecord) -> bytes:
        value = self.value_of(record)
        return value.encode() if isinstance(value, str) else value or b""

    # -- closing ------------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Close everything in the right order: wait for records in flight, commit finished messages, close the emitter,
        then the consumers and producers. Idempotent.

        A message that is not finished is another process's to do again: the emitter then reports that work was in
        flight at its end, so that the message is late and not lost.

        Returns:
            False if the broker did not acknowledge the emitter's last report.
        """
        await self.flush_producers(timeout_s)
        for consumer in self._consumers:
            await consumer.settle()
        ended = await asyncio.to_thread(self.emitter.close)
        for consumer in self._consumers:
            await consumer.stop()
        for producer in self._producers:
            await producer.stop()
        return ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
