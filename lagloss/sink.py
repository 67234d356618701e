"""A batch sink: messages that leave together in one acknowledged request.

with batch(emitter) as messages:
    for row in rows:
        messages.received(row.id, row.time)
    post(rows)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lagloss.identity import Identity
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.packing import EventTime

ObservedMessage = tuple[str, EventTime] | tuple[str, EventTime, str | None] | Identity
"""Id, event time and, for a replayed message, the replay's name."""


class Batch:
    """Messages that leave together."""

    def __init__(self, emitter: Emitter, messages: Iterable[ObservedMessage]) -> None:
        self._emitter = emitter
        self.messages = list(messages)

    def received(
        self, message_id: str, event_time: EventTime, replay: str | None = None, traceparent: str | None = None
    ) -> None:
        """Record that this message has come in, as part of `replay` and in the trace of `traceparent` if given, and add
        it to the batch; an `Identity` has these four values."""
        self._emitter.received(message_id, event_time, replay=replay, traceparent=traceparent)
        self.messages.append((message_id, event_time, replay))


@contextmanager
def batch(emitter: Emitter, messages: Iterable[ObservedMessage] = (), *, to: str | None = None) -> Iterator[Batch]:
    """Hold work in flight for the duration of the block, and report all messages as sent out at its end.

    Put collecting and sending into one block, retries included: a batch held back for two minutes is then late and not
    lost. If the block raises, no beacon is sent for its messages and none is in flight any more: until the host sends
    them out in another batch, or calls `filtered` or `dead_lettered` for them, they count as lost at this node,
    which they are.

    Args:
        emitter: of this node.
        messages: those already reported by `emitter.received`; add others by `received`.
        to: the next node, if there are several.
    """
    with emitter.processing():
        collected = Batch(emitter, messages)
        yield collected
        for message in collected.messages:
            emitter.sent(message[0], message[1], to=to, replay=message[2] if len(message) > 2 else None)
