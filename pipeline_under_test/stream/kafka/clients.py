"""How clients of Kafka are set up here, and a producer that sends an event until it is acknowledged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from lagloss.broker.connection import KafkaConnection
from pipeline_under_test.stream.events.event import Event

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 10_000
"""Unacknowledged records a producer may have before its node stops taking in more."""
RETRY_S: Final = 0.5
NEVER_TAKEN: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors that another try cannot end: they are the record's."""


PREFETCHED_KB: Final = 8_192
"""Limit of records fetched and not read: what waits belongs in the topic, not in memory."""


def consumer_config(bootstrap: str, group: str, client_id: str) -> dict[str, Any]:
    """Return a consumer that forgets nothing: it begins at the oldest record and commits only when asked to. It
    reads no record of a transaction that is not committed."""
    return KafkaConnection.of(bootstrap).client(
        {
            "group.id": group,
            "client.id": client_id,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,  # transactions leave markers behind, which only this shows
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6_000,  # a killed process's partitions are taken over after this
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": PREFETCHED_KB,
        }
    )


def consumer_for(bootstrap: str, group: str, client_id: str) -> Consumer:
    """Return such a consumer."""
    return Consumer(consumer_config(bootstrap, group, client_id))


def producer_config(bootstrap: str, client_id: str) -> dict[str, Any]:
    """Return a producer whose acknowledgement means that every in-sync replica has the record, once and in order."""
    return KafkaConnection.of(bootstrap).client(
        {
            "client.id": client_id,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            "compression.type": "lz4",
        }
    )


Record = dict[str, Any]
"""A record as arguments of `produce`."""
Acknowledged = Callable[[], None]
Rejected = Callable[[str], None]


def is_fatal(error: KafkaError) -> bool:
    """Return whether a client is at its end with this. A delivery report says so by its code alone."""
    return error.fatal() or error.code() == KafkaError._FATAL


def _never(reason: str) -> None:
    raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))


class ReliableProducer:
    """Sends events until they are acknowledged; a record that the client library gave up on is sent again.

    `producer` may be one of a `KafkaNode`: then `source` names the record that it reads an event from.
    """

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._again: list[tuple[float, Callable[[], None]]] = []
        self.in_flight = 0

    @classmethod
    def of(cls, bootstrap: str, client_id: str) -> ReliableProducer:
        """Return one with a client of its own."""
        return cls(Producer(producer_config(bootstrap, client_id)))

    def send(
        self,
        topic: str,
        event: Event,
        acknowledged: Acknowledged,
        rejected: Rejected = _never,
        source: Message | None = None,
    ) -> None:
        """Send `event`; `acknowledged` is called from `poll`, once all in-sync replicas have it, or `rejected` with the
        reason, from here or from `poll`, if no broker will ever take it: where that cannot be, an error."""
        record = {"value": event.body, "key": event.id.encode(), "headers": event.headers()}
        self._send(topic, record | ({"source": source} if source is not None else {}), acknowledged, rejected)

    def forward(self, topic: str, record: Message, acknowledged: Acknowledged) -> None:
        """Send a record that was read elsewhere as it is; likewise."""
        self._send(
            topic, {"value": record.value(), "key": record.key(), "headers": record.headers()}, acknowledged, _never
        )

    def _send(self, topic: str, record: Record, acknowledged: Acknowledged, rejected: Rejected) -> None:
        self.in_flight += 1
        self._produce(topic, record, acknowledged, rejected)

    def _produce(self, topic: str, record: Record, acknowledged: Acknowledged, rejected: Rejected) -> None:
        def ended(error: KafkaError | None) -> None:
            self.in_flight -= 1
            if error is None:
                acknowledged()
            else:
                rejected(f"{topic} did not accept the record: {error.str()}")

        def report(error: KafkaError | None, _record: Message) -> None:
            if error is None or error.code() in NEVER_TAKEN:
                ended(error)
                return
            if is_fatal(error):  # the idempotent producer cannot go on; what is not committed is read again
                raise KafkaException(error)
            log.warning("retrying to send %s to %s: %s", record["key"], topic, error)
            self._again.append((time.monotonic() + RETRY_S, produce))

        def produce() -> None:
            self._produce(topic, record, acknowledged, rejected)

        while True:
            try:
                self._producer.produce(topic, **record, on_delivery=report)
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as refusal:
                error = refusal.args[0]
                if not isinstance(error, KafkaError) or error.code() not in NEVER_TAKEN:
                    raise
                ended(error)
                return

    def poll(self, timeout_s: float = 0.0) -> None:
        """Handle what the broker answered, waiting up to `timeout_s` for the first answer."""
        self._producer.poll(timeout_s)
        now = time.monotonic()
        due = [produce for retry_at, produce in self._again if retry_at <= now]
        self._again = [(retry_at, produce) for retry_at, produce in self._again if retry_at > now]
        for produce in due:
            produce()

    @property
    def ready(self) -> bool:
        return self.in_flight < MAX_IN_FLIGHT
