"""Spans of a message, paired: the one that produced it names it, and all others take its id and event time.

Neither is in a consumer's span, so that waits for the producer's, which may well come later: each process sends its
spans by itself. The memory is bounded, and no pipeline takes the room of others. What it forgets cannot be paired any
more, and counts as `unpaired`: its message is then missing where it would have been seen, as any other that sampling
leaves out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from collector.batches import Seen, can_wait
from collector.spans.answer import UnusableSpan
from collector.spans.kafka import NO_MESSAGE, KafkaSpan, Origin
from collector.spans.messages import TRACE_BYTES, PairingScope, ProducedMessage, WaitingSpan, ids_of
from lagloss_server.model.spans import SpanPoint

MAX_MESSAGES: Final = 100_000
"""Messages that consumers' spans can be paired with, some 700 bytes each."""
MAX_WAITING: Final = 20_000
"""Spans that wait for the one that produced their message, some 1 KB each."""
WAIT_S: Final = 600.0
"""An exporter tries for 5 minutes, by default, to send a span."""
OUT_OF_RANGE: Final = "older than 7 days, or ahead of the clock"


@dataclass(frozen=True, slots=True)
class Paired:
    """Beacons of one message at one node, and the span that they are made of. `has_waited`: it came in an earlier
    request, which was answered."""

    pipeline: str
    point: SpanPoint
    seen: tuple[Seen, ...]
    span: KafkaSpan
    message: ProducedMessage
    has_waited: bool = False

    @property
    def node(self) -> str:
        return self.point.node


class Pairing:
    """Pairs spans, whichever comes first. Safe for several threads."""

    def __init__(
        self,
        *,
        max_messages: int = MAX_MESSAGES,
        max_waiting: int = MAX_WAITING,
        wait_s: float = WAIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unpaired = 0
        self._max_messages = max_messages
        self._max_waiting = max_waiting
        self._wait_s = wait_s
        self._clock = clock
        self._lock = threading.Lock()
        self._scopes: dict[tuple[str, str], PairingScope] = {}
        self._messages = 0
        self._waiting = 0

    @property
    def waiting(self) -> int:
        return self._waiting

    def take_unpaired(self) -> int:
        """Return how many spans have waited in vain since this was last called."""
        with self._lock:
            until_s = self._clock() - self._wait_s
            for scope in self._scopes.values():
                self._expire(scope, until_s)
            unpaired, self._unpaired = self._unpaired, 0
            return unpaired

    def take(self, pipeline: str, point: SpanPoint, span: KafkaSpan) -> list[Paired]:
        """Return the beacons that this span brings: its own, and of a producer's those of spans that waited for it.

        Raises:
            UnusableSpan: its message cannot be known, or is of a time that is too long ago.
        """
        with self._lock:
            scope = self._scopes.setdefault((pipeline, point.scope), PairingScope())
            self._expire(scope, self._clock() - self._wait_s)
            if point.begins:
                return self._begin(pipeline, scope, point, span)
            paired, is_too_old = [], False
            for origins in _follows(point, span):
                message = next((scope.messages[origin] for origin in origins if origin in scope.messages), None)
                if message is None:
                    if not span.is_poll or point.delivered == "receive":
                        self._wait(scope, WaitingSpan(point, span, origins, self._clock()))
                elif not can_wait(message.event_ms, time.time() * 1000, first=False):
                    is_too_old = True
                elif (beacons := _beacons(pipeline, point, span, message)) is not None:
                    paired.append(beacons)
            if is_too_old and not paired:
                raise UnusableSpan(OUT_OF_RANGE)
            return paired

    def undo(self, paired: Iterable[Paired]) -> None:
        """Forget that these were taken, since they did not arrive: their spans are sent again, or wait as before."""
        with self._lock:
            for beacons in paired:
                span = beacons.span
                beacons.message.at(beacons.node).remove(span)
                if beacons.has_waited:
                    scope = self._scopes[beacons.pipeline, beacons.point.scope]
                    self._wait(scope, WaitingSpan(beacons.point, span, beacons.message.origins, self._clock()))

    def _begin(self, pipeline: str, scope: PairingScope, point: SpanPoint, span: KafkaSpan) -> list[Paired]:
        message = self._produced(scope, point, span)
        own = _beacons(pipeline, point, span, message)
        paired = [] if own is None else [own]
        waited = [waiting for origin in message.origins for waiting in scope.waiting.get(origin, ())]
        for waiting in waited:
            if not waiting.is_done:
                self._release(scope, waiting)
                beacons = _beacons(pipeline, waiting.point, waiting.span, message)
                if beacons is not None:
                    paired.append(replace(beacons, has_waited=True))
        return paired

    def _produced(self, scope: PairingScope, point: SpanPoint, span: KafkaSpan) -> ProducedMessage:
        """Return the message that a span produced; a new one if it is not known yet."""
        if point.id == "trace":
            trace_id, _ = ids_of(span.context)
            origins: tuple[Origin, ...] = (trace_id,) if trace_id else ()
            name = trace_id.hex()
        else:
            # A topic that was deleted and made again has records of the same offsets, so the context comes first.
            origins = tuple(origin for origin in (span.context, span.record) if origin)
            name = span.record or "-".join(part.hex() for part in ids_of(span.context))
        if not origins:
            raise UnusableSpan(NO_MESSAGE)
        message = scope.messages.get(origins[0])
        if message is not None:
            return message
        if not can_wait(span.started_ms, time.time() * 1000, first=True):
            raise UnusableSpan(OUT_OF_RANGE)
        message = ProducedMessage(name, span.started_ms, span.context, origins)
        scope.messages.update(dict.fromkeys(origins, message))
        scope.order.append(message)
        self._messages += 1
        self._forget_oldest()
        return message

    def _forget_oldest(self) -> None:
        """Make room for some more: of the scope with the most messages, the oldest go."""
        if self._messages <= self._max_messages:
            return
        scope = max(self._scopes.values(), key=lambda scope: len(scope.order))
        for _ in range(min(len(scope.order), 1 + self._max_messages // 100)):
            message = scope.order.popleft()
            for origin in message.origins:
                if scope.messages.get(origin) is message:
                    del scope.messages[origin]
            self._messages -= 1

    def _wait(self, scope: PairingScope, waiting: WaitingSpan) -> None:
        self._waiting += scope.wait(waiting)
        if self._waiting > self._max_waiting:
            largest = max(self._scopes.values(), key=lambda scope: len(scope.by_key))
            for _ in range(min(len(largest.by_key), 1 + self._max_waiting // 100)):
                oldest = largest.oldest_waiting()
                assert oldest is not None
                self._release(largest, oldest)
                self._unpaired += 1

    def _expire(self, scope: PairingScope, until_s: float) -> None:
        while (oldest := scope.oldest_waiting()) is not None and oldest.since_s < until_s:
            self._release(scope, oldest)
            self._unpaired += 1

    def _release(self, scope: PairingScope, waiting: WaitingSpan) -> None:
        scope.release(waiting)
        self._waiting -= 1


def _follows(point: SpanPoint, span: KafkaSpan) -> Iterator[tuple[Origin, ...]]:
    """Yield the messages that a span is of which it does not begin, each by whatever it may be found by."""
    if point.id == "record":
        yield from span.messages
    elif point.produces:
        if not span.context:
            raise UnusableSpan(NO_MESSAGE)
        yield (span.context[:TRACE_BYTES],)
    else:
        for origins in span.messages:
            traces = [origin[:TRACE_BYTES] for origin in origins if isinstance(origin, bytes)]
            own = [span.context[:TRACE_BYTES]] if len(span.messages) == 1 and span.context else []
            yield tuple(dict.fromkeys((*traces, *own)))


def _beacons(pipeline: str, point: SpanPoint, span: KafkaSpan, message: ProducedMessage) -> Paired | None:
    """Return the beacons that a span is of a message; None of one that was taken before, and if it shows nothing new.

    A producer's span that failed has sent nothing, and a consumer's has not delivered.
    """
    counted = message.at(point.node)
    if span.context and span.context in counted.spans:
        return None
    arrivals = counted.arrivals
    counted.add(span)
    seen = []
    for place in point.places:
        is_shown = not span.failed
        observed_ms = span.ended_ms
        if place == "in":
            is_shown = point.begins or counted.arrivals > arrivals
            observed_ms = span.ended_ms if span.role == "receive" else span.started_ms
        elif not point.produces:
            is_shown = is_shown and span.role == point.delivered
        if is_shown:
            seen.append(Seen(place, message.id, message.event_ms, observed_ms, traceparent=message.traceparent))
    return Paired(pipeline, point, tuple(seen), span, message) if seen else None
