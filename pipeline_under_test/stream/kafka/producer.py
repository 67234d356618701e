"""Producers whose acknowledgement can be relied on, and one that sends an event until it is acknowledged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from lagloss.broker.connection import KafkaConnection
from pipeline_under_test.stream.events.event import Event

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 10_000
"""Unacknowledged records a producer may have before its node stops taking in more."""
RETRY_S: Final = 0.5
NEVER_TAKEN: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD})
"""Errors that another try cannot end: they are the record's."""


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


Content = tuple[Any, Any, Any]
"""A record's value, key and headers, as the client library gives and takes them."""
Acknowledged = Callable[[], None]
Rejected = Callable[[str], None]


def is_fatal(error: KafkaError) -> bool:
    """Return whether a client is at its end with this. A delivery report says so by its code alone."""
    return error.fatal() or error.code() == KafkaError._FATAL


def _never(reason: str) -> None:
    raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))


class ReliableProducer:
    """Sends events until they are acknowledged; a record that the client library gave up on is sent again."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self._producer = Producer(producer_config(bootstrap, client_id))
        self._again: list[tuple[float, Callable[[], None]]] = []
        self.in_flight = 0

    def send(self, topic: str, event: Event, acknowledged: Acknowledged, rejected: Rejected = _never) -> None:
        """Send `event`; `acknowledged` is called from `poll`, once all in-sync replicas have it, or `rejected` with the
        reason, from here or from `poll`, if no broker will ever take it: where that cannot be, an error."""
        self._send(topic, (event.body, event.id.encode(), event.headers()), acknowledged, rejected)

    def forward(self, topic: str, record: Message, acknowledged: Acknowledged) -> None:
        """Send a record that was read elsewhere as it is; likewise."""
        self._send(topic, (record.value(), record.key(), record.headers()), acknowledged, _never)

    def _send(self, topic: str, content: Content, acknowledged: Acknowledged, rejected: Rejected) -> None:
        self.in_flight += 1
        self._produce(topic, content, acknowledged, rejected)

    def _produce(self, topic: str, content: Content, acknowledged: Acknowledged, rejected: Rejected) -> None:
        value, key, headers = content

        def ended(error: KafkaError | None) -> None:
            self.in_flight -= 1
            if error is None:
                acknowledged()
            else:
                rejected(f"not taken by {topic}: {error.str()}")

        def report(error: KafkaError | None, _record: Message) -> None:
            if error is None or error.code() in NEVER_TAKEN:
                ended(error)
                return
            if is_fatal(error):  # the idempotent producer cannot go on; what is not committed is read again
                raise KafkaException(error)
            log.warning("sending %s to %s again: %s", key, topic, error)
            self._again.append((time.monotonic() + RETRY_S, produce))

        def produce() -> None:
            self._produce(topic, content, acknowledged, rejected)

        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=report)
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
        due = [produce for at, produce in self._again if at <= now]
        self._again = [(at, produce) for at, produce in self._again if at > now]
        for produce in due:
            produce()

    @property
    def ready(self) -> bool:
        return self.in_flight < MAX_IN_FLIGHT
