"""Messages of spans, and spans that wait for theirs, as one topic of a pipeline has them in memory."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from collector.spans.kafka import KafkaSpan, Origin
from lagloss.wire.traces import write_traceparent
from lagloss_server.model.spans import SpanPoint

MAX_SPANS: Final = 100
"""Spans of a message at a node that are recognised when they are sent again."""
TRACE_BYTES: Final = 16
WaitingKey = tuple[str, bytes | int, tuple[Origin, ...]]


def ids_of(context: bytes) -> tuple[bytes, bytes]:
    """Return the ids of a trace and of a span."""
    return context[:TRACE_BYTES], context[TRACE_BYTES:]


@dataclass(slots=True)
class NodeArrivals:
    """The spans of a node that were of one message. A consumer may have both a span for receiving it and one for
    processing it, which are one arrival; two of a kind are two. Tuples and lists take half the memory of sets and
    dictionaries here, since they mostly have one item."""

    node: str
    spans: tuple[bytes, ...] = ()
    received: int = 0
    processed: int = 0

    @property
    def arrivals(self) -> int:
        return max(self.received, self.processed)

    def add(self, span: KafkaSpan) -> None:
        self.spans = (*self.spans[1 - MAX_SPANS :], span.context)
        self._count(span, 1)

    def remove(self, span: KafkaSpan) -> None:
        self.spans = tuple(context for context in self.spans if context != span.context)
        self._count(span, -1)

    def _count(self, span: KafkaSpan, number: int) -> None:
        if span.role == "receive":
            self.received += number
        elif span.role == "process":
            self.processed += number


@dataclass(slots=True)
class ProducedMessage:
    """A message as the span that produced it names it; `context`: of that span, `origins`: by what it is found."""

    id: str
    event_ms: float
    context: bytes
    origins: tuple[Origin, ...]
    nodes: list[NodeArrivals] = field(default_factory=list)

    @property
    def traceparent(self) -> str | None:
        return write_traceparent(*ids_of(self.context)) if self.context else None

    def at(self, node: str) -> NodeArrivals:
        counted = next((counted for counted in self.nodes if counted.node == node), None)
        if counted is None:
            counted = NodeArrivals(node)
            self.nodes.append(counted)
        return counted


@dataclass(slots=True, eq=False)
class WaitingSpan:
    """A span of a message that no span has produced yet, as far as is known. Equal to itself alone: its key takes time
    to hash."""

    point: SpanPoint
    span: KafkaSpan
    origins: tuple[Origin, ...]
    since_s: float
    is_done: bool = False

    @property
    def key(self) -> WaitingKey:
        """The same for the same span of the same message."""
        return self.point.node, self.span.context or id(self), self.origins


@dataclass(slots=True)
class PairingScope:
    """The messages of a topic, or of a side of the graph, of one pipeline, and the spans that wait for some; each also
    in the order in which they came. `by_key`: the spans that wait, once each."""

    messages: dict[Origin, ProducedMessage] = field(default_factory=dict)
    order: deque[ProducedMessage] = field(default_factory=deque)
    waiting: dict[Origin, dict[WaitingSpan, None]] = field(default_factory=dict)
    waiting_order: deque[WaitingSpan] = field(default_factory=deque)
    by_key: dict[WaitingKey, WaitingSpan] = field(default_factory=dict)

    def wait(self, waiting: WaitingSpan) -> bool:
        """Let a span wait; return False if it does already: it was sent again."""
        key = waiting.key
        if key in self.by_key:
            return False
        self.by_key[key] = waiting
        for origin in waiting.origins:
            self.waiting.setdefault(origin, {})[waiting] = None
        self.waiting_order.append(waiting)
        return True

    def release(self, waiting: WaitingSpan) -> None:
        """End a span's waiting."""
        del self.by_key[waiting.key]
        waiting.is_done = True
        for origin in waiting.origins:
            others = self.waiting[origin]
            del others[waiting]
            if not others:
                del self.waiting[origin]

    def oldest_waiting(self) -> WaitingSpan | None:
        while self.waiting_order and self.waiting_order[0].is_done:
            self.waiting_order.popleft()
        return self.waiting_order[0] if self.waiting_order else None
