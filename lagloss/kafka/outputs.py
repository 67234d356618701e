"""Outputs: which message a record is an output of, the identity that it carries, and its beacon once it has arrived.

The same for every Kafka client, which reports the fate of a record in its own way.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

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
from lagloss.kafka.base import BaseNode, R
from lagloss.kafka.in_flight import InFlightMessage, current

Headers = dict[str, str | bytes] | list[tuple[str, str | bytes]]
Beacon = Callable[[Identity, Callable[[], str | bytes | None]], Any]
"""Reports a message of this identity as out or dead; called with a function that returns the key of its order."""
_OURS: Final = frozenset({ID_HEADER, TIME_HEADER, REPLAY_HEADER})


class NodeOutput:
    """One record on its way, and the messages that wait for it.

    Call `accepted` or `withdraw` once the client has taken or refused the record; then `arrived` and `acknowledged`, or
    `failed`, once its fate is known. Thread-safe, as the messages are.
    """

    __slots__ = (
        "_accepted_ms",
        "_beacon",
        "_is_new",
        "_key",
        "_node",
        "_retries",
        "_topic",
        "_transaction",
        "handlings",
        "identity",
    )

    def __init__(
        self,
        node: BaseNode[Any],
        handlings: tuple[InFlightMessage, ...],
        identity: Identity | None,
        topic: str,
        beacon: Beacon | None,
        *,
        is_new: bool,
        transaction: Transaction | None,
    ) -> None:
        self._node = node
        self.handlings = handlings
        self.identity = identity
        self._topic = topic
        self._beacon = beacon
        self._is_new = is_new
        self._transaction = transaction
        self._retries: list[InFlightMessage] = []
        self._accepted_ms = time.time_ns() / 1e6
        self._key: Callable[[], str | bytes | None] = lambda: None
        for handling in handlings:
            if is_new:
                handling.begin_work()
            if handling.add_output(topic):
                self._retries.append(handling)

    def headers(self, given: Headers | None) -> list[tuple[str, str | bytes]]:
        """Return the host's headers with the identity's, which replace any other."""
        pairs = list(given.items()) if isinstance(given, dict) else list(given or ())
        if self.identity is None:
            return pairs
        return [(name, value) for name, value in pairs if name not in _OURS] + self.identity.headers()

    def accepted(self) -> None:
        """Note that the client has taken the record. One that begins a message comes in here, unless it is in a
        transaction: aborted, it never was."""
        if self._is_new:
            if self._transaction is None:
                self._report_in()
            self.handlings[0].end_handling()

    def withdraw(self) -> None:
        """Note that the client refused the record."""
        for handling in self.handlings:
            handling.withdraw_output(self._topic, replaced=handling in self._retries)
            if self._is_new:
                handling.end_handling()

    def arrived(self, key: Callable[[], str | bytes | None]) -> None:
        """Note that the broker has the record; `key` returns within what its order is judged."""
        self._key = key
        if self._transaction is None:
            self._report_exit()

    def acknowledged(self) -> None:
        """End the output, which has arrived: in a transaction, once that has ended."""
        if self._transaction is None:
            self._end()
        else:
            self._transaction.add(self)

    def committed(self) -> None:
        """Note that the record's transaction is committed."""
        if self._is_new:
            self._report_in()
        self._report_exit()
        self._end()

    def failed(self) -> None:
        """Note that the record will not arrive unless it is sent again."""
        for handling in self.handlings:
            handling.failed(self._topic)

    def _end(self) -> None:
        for handling in self.handlings:
            handling.acknowledged()

    def _report_in(self) -> None:
        if self.identity is not None:
            received = self._node.emitter.received
            self.identity.report(received, observed_at=self._accepted_ms, traceparent=self.identity.traceparent)

    def _report_exit(self) -> None:
        if self.identity is None or self._beacon is None:
            return
        self._beacon(self.identity, self._key)
        for handling in self.handlings:
            if handling.identity is not None and handling.identity.is_same_message(self.identity):
                handling.exited()


class Transaction:
    """Outputs of one transaction of a producer: out once it is committed, failed if it is aborted.

    While its end is unknown, its messages stay in flight. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: list[NodeOutput] = []
        self._is_committed: bool | None = None

    def add(self, output: NodeOutput) -> None:
        """Add an output that has arrived."""
        with self._lock:
            is_committed = self._is_committed
            if is_committed is None:
                self._arrived.append(output)
        if is_committed is not None:
            self._end(output, is_committed=is_committed)

    def end(self, *, is_committed: bool) -> None:
        """Note how the transaction ended."""
        with self._lock:
            self._is_committed = is_committed
            outputs, self._arrived = self._arrived, []
        for output in outputs:
            self._end(output, is_committed=is_committed)

    @staticmethod
    def _end(output: NodeOutput, *, is_committed: bool) -> None:
        if is_committed:
            output.committed()
        else:
            output.failed()


class Outputs(Generic[R]):
    """Makes the outputs of one producer of a node.

    Args:
        node: the producer's.
        next_nodes: the reader of each topic, if the node has several next nodes.
        is_transactional: the producer has a transactional id.

    Raises:
        ValueError: for a transactional producer of a node that commits by itself.
    """

    def __init__(self, node: BaseNode[R], next_nodes: Mapping[str, str] | None, *, is_transactional: bool) -> None:
        if is_transactional and not node.observes:
            raise ValueError(
                "expected no transactional.id: a transaction can abort after its records were acknowledged. A node "
                "made with observe=True leaves commits and transactions to its host"
            )
        self._node = node
        self._next_nodes = dict(next_nodes) if next_nodes is not None else None
        self._is_transactional = is_transactional
        self._transaction = Transaction()

    def begin(
        self,
        topic: str,
        value: str | bytes | None,
        headers: Headers | None,
        *,
        source: R | Identity | None = None,
        message_id: str | None = None,
        event_time_ms: int | None = None,
        dead_lettered: str | None = None,
    ) -> NodeOutput:
        """Begin the output of a record."""
        node = self._node
        handlings, identity = self._origin(source, headers)
        is_new = identity is None and not handlings and node.emitter.first
        if is_new:
            identity = self._new_identity(mapping_of(headers), message_id, event_time_ms)
            handlings = (InFlightMessage(node.emitter, identity),)
        elif identity is None:
            node.identities.count_skipped()
        return NodeOutput(
            node,
            handlings,
            identity,
            topic,
            self._beacon(topic, dead_lettered, value),
            is_new=is_new,
            transaction=self._transaction if self._is_transactional else None,
        )

    def begin_transaction(self) -> None:
        """Note that a transaction has begun."""
        self._transaction = Transaction()

    def end_transaction(self, *, is_committed: bool) -> None:
        """Note that the transaction is committed or aborted."""
        self._transaction.end(is_committed=is_committed)

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

    def _origin(
        self, source: R | Identity | None, headers: Headers | None
    ) -> tuple[tuple[InFlightMessage, ...], Identity | None]:
        """Return the messages that wait for this record, and the identity that it carries."""
        origin = current(self._node.emitter) or self._node.polled()
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

    def _beacon(self, topic: str, dead_lettered: str | None, value: str | bytes | None) -> Beacon | None:
        """Return the beacon to send once the broker has the record; None if it is no exit of its message."""
        emitter = self._node.emitter
        if dead_lettered is not None:
            return lambda identity, _: identity.report(emitter.dead_lettered, reason=dead_lettered)
        to = None if self._next_nodes is None else self._next_nodes.get(topic)
        if self._next_nodes is not None and to is None:
            return None
        payload = self._node.payload_of(value)
        return lambda identity, key: identity.report(emitter.sent, to=to, key=key(), **payload)


def _named(named: Identity, in_flight: tuple[InFlightMessage, ...]) -> tuple[tuple[InFlightMessage, ...], Identity]:
    """Return the messages of `in_flight` with this id and event time, and the identity with their replay, unless it
    names one."""
    same = tuple(handling for handling in in_flight if handling.identity and handling.identity.is_same_message(named))
    exact = tuple(handling for handling in same if handling.identity and handling.identity.is_same_copy(named))
    if exact or not same:
        return exact, named
    return same, named if named.replay is not None else same[0].identity or named
