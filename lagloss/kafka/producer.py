"""The producer of a node: sends id and event time along, and a message's beacon once its record is acknowledged."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn

from confluent_kafka import KafkaError, Message, Producer

from lagloss.identity import (
    ID_HEADER,
    REPLAY_HEADER,
    TIME_HEADER,
    Carrier,
    Identity,
    draw_identity,
    mapping_of,
    recorded_traceparent,
    replay_of,
    traceparent_of,
)
from lagloss.kafka.in_flight import InFlightMessage, current, handling_now

if TYPE_CHECKING:
    from lagloss.kafka.node import KafkaNode

log = logging.getLogger("lagloss")

OnDelivery = Callable[[KafkaError | None, Message], Any]
Observe = Callable[[Identity, Message], Any]
"""Takes a record that the broker has, and the identity that it carries."""
Headers = dict[str, str | bytes] | list[tuple[str, str | bytes]]
POLL_S: Final = 0.1
_OURS: Final = frozenset({ID_HEADER, TIME_HEADER, REPLAY_HEADER})


class NodeProducer(Producer):
    """A confluent_kafka Producer; made by `KafkaNode.producer`.

    A record is an output of the message that this thread or task handles, or of `source`. Its delivery report sends the
    `out`; delivery reports are called in `poll` and `flush`, as ever, and in those of the node's consumers.
    """

    def __init__(
        self, node: KafkaNode, config: Mapping[str, Any], next_nodes: Mapping[str, str] | None, *, polls: bool
    ) -> None:
        if config.get("transactional.id"):
            raise ValueError(
                "expected no transactional.id: a transaction can abort after its records were acknowledged"
            )
        super().__init__(dict(config))
        self._node = node
        self._next_nodes = dict(next_nodes) if next_nodes is not None else None
        self._reporting: set[int] = set()
        """Threads that run the host's part of a delivery report."""
        self._is_stopping = threading.Event()
        if polls:
            threading.Thread(target=self._poll_on, name="lagloss-delivery-reports", daemon=True).start()

    def _poll_on(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self.poll(POLL_S)
            except Exception:
                log.exception("lagloss: on_delivery raised")

    def poll(self, timeout: float | None = -1) -> int:
        """Poll as confluent_kafka does; within a delivery report, where the client's own would abort the process at the
        next report, do nothing. So `poll` and `close` of the node's consumers may be called there."""
        return 0 if threading.get_ident() in self._reporting else super().poll(timeout)

    def flush(self, timeout: float | None = -1) -> int:
        """Flush as confluent_kafka does; within a delivery report, do nothing, as `poll`."""
        return len(self) if threading.get_ident() in self._reporting else super().flush(timeout)

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Run the host's part of a delivery report in the block."""
        thread = threading.get_ident()
        self._reporting.add(thread)
        try:
            yield
        finally:
            self._reporting.discard(thread)

    def stop_polling(self) -> None:
        """Stop the polling thread."""
        self._is_stopping.set()

    def produce(  # type: ignore[override]  # more keywords than confluent_kafka's
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: OnDelivery | None = None,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        source: Message | Identity | None = None,
        message_id: str | None = None,
        event_time_ms: int | None = None,
        dead_lettered: str | None = None,
    ) -> None:
        """Produce as confluent_kafka does, with the headers `lagloss-id` and `lagloss-event-time` added, and
        `lagloss-replay` for a replayed message.

        Args:
            source: the message that this is an output of; by default the one that this thread or task handles.
            message_id: at the first node, the id of a message that was not taken in; by default a fresh one. With
                `lagloss-replay` among `headers`, the record is part of that replay. Its trace is that of `traceparent`
                among them, else of OpenTelemetry's active span.
            event_time_ms: likewise its event time; by default now.
            dead_lettered: the reason, if the topic is a dead-letter queue; reported once the record is acknowledged.
        """
        handlings, identity = self._origin(source, headers)
        is_new = identity is None and not handlings and self._node.emitter.first
        if is_new:
            identity = self._new_identity(mapping_of(headers), message_id, event_time_ms)
            handlings = (InFlightMessage(self._node.emitter, identity),)
        elif identity is None:
            self._node.identities.count_skipped()
        observe = self._observer(topic, dead_lettered, value)
        output = _Output(self, handlings, identity, topic, observe, on_delivery or callback)
        observed_at = time.time_ns() / 1e6
        output.begin(is_new=is_new)
        try:
            super().produce(
                topic,
                value,
                key,
                partition,
                on_delivery=output.report,
                timestamp=timestamp,
                headers=_with_identity(headers, identity),
            )
        except BaseException:
            output.withdraw(is_new=is_new)
            raise
        if is_new and identity is not None:  # only now: a full queue rejects the record, and the host retries
            emitter = self._node.emitter
            identity.report(emitter.received, observed_at=observed_at, traceparent=identity.traceparent)
            handlings[0].end_handling()

    def _new_identity(
        self, headers: Mapping[str, bytes], message_id: str | None, event_time_ms: int | None
    ) -> Identity:
        """Return the identity of a message that begins with this record."""
        fresh = draw_identity()
        keeps_trace = self._node.emitter.keeps_traces
        return Identity(
            message_id or fresh.message_id,
            event_time_ms or fresh.event_time_ms,
            replay_of(headers),
            recorded_traceparent(traceparent_of(headers)) if keeps_trace else None,
        )

    def produce_batch(self, *_arguments: Any, **_options: Any) -> NoReturn:
        """Raise NotImplementedError: confluent_kafka's batches have no headers, in which id and event time travel."""
        raise NotImplementedError("use produce(): produce_batch() cannot send the headers for id and event time")

    def _origin(
        self, source: Message | Identity | None, headers: Headers | None
    ) -> tuple[tuple[InFlightMessage, ...], Identity | None]:
        """Return the messages that wait for this record, and the identity that it carries."""
        origin = current(self._node.emitter)
        if isinstance(source, Identity):
            return _named(source, origin)
        if source is not None:
            handling = self._node.in_flight(source)
            return (handling,) if handling is not None else (), self._node.identity_of(source)
        if len(origin) == 1:
            return origin, origin[0].identity
        named = self._node.identities.find(Carrier(mapping_of(headers), b"", None)) if headers else None
        if named is None:
            return origin, None
        same, named = _named(named, origin)
        return same or origin, named

    def _observer(self, topic: str, dead_lettered: str | None, value: str | bytes | None) -> Observe:
        """Return the call of the emitter to make once the broker has the record."""
        emitter = self._node.emitter
        if dead_lettered is not None:
            return lambda identity, _: identity.report(emitter.dead_lettered, reason=dead_lettered)
        to = None if self._next_nodes is None else self._next_nodes.get(topic)
        if self._next_nodes is not None and to is None:
            return lambda identity, _: None
        payload = self._node.payload_of(value)
        key_of = self._node.key_of
        return lambda identity, record: identity.report(emitter.sent, to=to, key=key_of(record), **payload)


class _Output:
    """One record in flight, and the messages that wait for it."""

    __slots__ = ("_handlings", "_host", "_identity", "_observe", "_producer", "_retries", "_topic")

    def __init__(
        self,
        producer: NodeProducer,
        handlings: tuple[InFlightMessage, ...],
        identity: Identity | None,
        topic: str,
        observe: Observe,
        host: OnDelivery | None,
    ) -> None:
        self._producer = producer
        self._handlings = handlings
        self._identity = identity
        self._topic = topic
        self._observe = observe
        self._host = host
        self._retries: list[InFlightMessage] = []

    def begin(self, *, is_new: bool) -> None:
        for handling in self._handlings:
            if is_new:
                handling.begin_work()
            if handling.add_output(self._topic):
                self._retries.append(handling)

    def withdraw(self, *, is_new: bool) -> None:
        for handling in self._handlings:
            handling.withdraw_output(self._topic, replaced=handling in self._retries)
            if is_new:
                handling.end_handling()

    def report(self, error: KafkaError | None, record: Message) -> None:
        """Handle the delivery report.

        Records that the host produces in its own callback are outputs of the same message, and replace this one if it
        failed.
        """
        if error is not None:
            for handling in self._handlings:
                handling.failed(self._topic)
        elif self._identity is not None:
            self._observe(self._identity, record)
        try:
            if self._host is not None:
                self._call_host(self._host, error, record)
        finally:
            if error is None:
                for handling in self._handlings:
                    handling.acknowledged()

    def _call_host(self, host: OnDelivery, error: KafkaError | None, record: Message) -> None:
        with ExitStack() as stack:
            stack.enter_context(self._producer.reporting())
            if len(self._handlings) == 1:
                stack.enter_context(handling_now(self._handlings[0]))
            host(error, record)


def _named(named: Identity, in_flight: tuple[InFlightMessage, ...]) -> tuple[tuple[InFlightMessage, ...], Identity]:
    """Return the messages of `in_flight` with this id and event time, and the identity with their replay, unless it
    names one."""
    same = tuple(handling for handling in in_flight if handling.identity and handling.identity.is_same_message(named))
    exact = tuple(handling for handling in same if handling.identity and handling.identity.is_same_copy(named))
    if exact or not same:
        return exact, named
    return same, named if named.replay is not None else same[0].identity or named


def _with_identity(headers: Headers | None, identity: Identity | None) -> list[tuple[str, str | bytes]] | None:
    """Return the host's headers with this identity's, which replace any other."""
    pairs = list(headers.items()) if isinstance(headers, dict) else list(headers or ())
    if identity is None:
        return pairs or None
    return [(name, value) for name, value in pairs if name not in _OURS] + identity.headers()
