"""The producer of a node with aiokafka: sends id and event time along, and a message's beacon once its record is
acknowledged. `lagloss.kafka.outputs` has which message a record belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from aiokafka import AIOKafkaProducer, ConsumerRecord
from aiokafka.structs import RecordMetadata

from lagloss.identity import Identity
from lagloss.kafka.outputs import NodeOutput, Outputs

if TYPE_CHECKING:
    from lagloss.aiokafka.node import AIOKafkaNode

UNKNOWN_PARTITION = -1
"""That of a record which the broker does not acknowledge, with `acks=0`."""


class AIONodeProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """An aiokafka AIOKafkaProducer; made by `AIOKafkaNode.producer`.

    A record is an output of the message that this task handles, or of `source`. The broker's acknowledgement sends the
    `out`, whether or not the host waits for it; in a transaction, its commit does.
    """

    def __init__(self, node: AIOKafkaNode, config: Mapping[str, Any], next_nodes: Mapping[str, str] | None) -> None:
        is_transactional = config.get("transactional_id") is not None
        self._outputs: Outputs[ConsumerRecord] = Outputs(node, next_nodes, is_transactional=is_transactional)
        super().__init__(**config)
        self._node = node

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        *,
        source: ConsumerRecord | Identity | None = None,
        message_id: str | None = None,
        event_time_ms: int | None = None,
        dead_lettered: str | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Send as aiokafka does, with the headers `lagloss-id` and `lagloss-event-time` added, and `lagloss-replay` for
        a replayed message.

        Args:
            source: the message that this is an output of; by default the one that this task handles.
            message_id: at the first node, the id of a message that was not taken in; by default a fresh one.
            event_time_ms: likewise its event time; by default now.
            dead_lettered: the reason, if the topic is a dead-letter queue; reported once the record is acknowledged.
        """
        given: list[tuple[str, str | bytes]] = list(headers or ())
        output = self._outputs.begin(
            topic,
            self._payload(value),
            given,
            source=source,
            message_id=message_id,
            event_time_ms=event_time_ms,
            dead_lettered=dead_lettered,
        )
        sent = [(name, text.encode() if isinstance(text, str) else text) for name, text in output.headers(given)]
        try:
            arrival = await super().send(topic, value, key, partition, timestamp_ms, sent)
        except BaseException:
            output.withdraw()
            raise
        output.accepted()
        arrival.add_done_callback(partial(self._report, output, topic, self._key(key)))
        return asyncio.shield(arrival)  # cancelled by the host, the record is still sent, and its fate awaited here

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        *,
        source: ConsumerRecord | Identity | None = None,
        message_id: str | None = None,
        event_time_ms: int | None = None,
        dead_lettered: str | None = None,
    ) -> RecordMetadata:
        """Send, and wait for the acknowledgement; see `send`."""
        arrival = await self.send(
            topic,
            value,
            key,
            partition,
            timestamp_ms,
            headers,
            source=source,
            message_id=message_id,
            event_time_ms=event_time_ms,
            dead_lettered=dead_lettered,
        )
        return await arrival

    async def send_batch(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise NotImplementedError: the records of a batch are made before their messages are known."""
        raise NotImplementedError("use send(): send_batch() cannot add the headers for id and event time")

    def _report(
        self, output: NodeOutput, topic: str, key: str | bytes | None, arrival: asyncio.Future[RecordMetadata | None]
    ) -> None:
        if arrival.cancelled() or arrival.exception() is not None:
            output.failed()
            return
        metadata = arrival.result()
        partition = UNKNOWN_PARTITION if metadata is None else metadata.partition
        output.arrived(lambda: self._node.order_key(topic, partition, key))
        output.acknowledged()

    def _payload(self, value: Any) -> str | bytes | None:
        """Return what is sent as the value, if its checksum is."""
        if not self._node.sends_checksums:
            return None
        serialize = self._value_serializer
        return self._node.payload_bytes(value if serialize is None else serialize(value))

    def _key(self, key: Any) -> str | bytes | None:
        serialize = self._key_serializer
        return self._node.payload_bytes(key if serialize is None or key is None else serialize(key))

    # -- transactions, of a node that observes --------------------------------------------------------------------

    async def begin_transaction(self) -> None:
        """Begin a transaction as aiokafka does."""
        await super().begin_transaction()
        self._outputs.begin_transaction()

    async def commit_transaction(self) -> None:
        """Commit the transaction as aiokafka does; its messages are out once this has succeeded."""
        await super().commit_transaction()
        self._outputs.end_transaction(is_committed=True)

    async def abort_transaction(self) -> None:
        """Abort the transaction as aiokafka does; its messages are not out, and stay in flight."""
        await super().abort_transaction()
        self._outputs.end_transaction(is_committed=False)
