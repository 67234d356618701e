"""A batch sink: many messages leave in one acknowledged request.

with batch(emitter) as messages:
    for row in rows:
        messages.take(row.id, row.time)
    post(rows)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from lagloss.sdk.emitter import Emitter
from lagloss.sdk.packing import EventTime

ObservedMessage = tuple[str, EventTime] | tuple[str, EventTime, str | None]
"""Id, event time and, if one brought it, the replay: an `Identity`, too."""


class Batch:
    """Messages that will leave together."""

    def __init__(self, emitter: Emitter, messages: Iterable[ObservedMessage]) -> None:
        self._emitter = emitter
        self.messages = list(messages)

    def take(self, message_id: str, event_time: EventTime, replay: str | None = None) -> None:
        """Take a message into the batch; it will leave with the others. `replay` names the replay that brought it, if
        one did."""
        self._emitter.taken_in(message_id, event_time, replay=replay)
        self.messages.append((message_id, event_time, replay))


@contextmanager
def batch(emitter: Emitter, messages: Iterable[ObservedMessage] = (), *, to: str | None = None) -> Iterator[Batch]:
    """Work in hand while the block lasts; at its end, all of its messages are out.

    Put collecting and sending into one block, retries too: then a batch held back for two minutes is late and not lost.
    If the block raises, no message is observed as out, and nothing is in hand any more: until the host sends them
    out in another batch, or calls `filtered` or `dead` for them, they count as lost at this node, which they are.

    Args:
        emitter: of this node.
        messages: those that the emitter has observed by `taken_in` already; more come in by `take`.
        to: the next node, where there are several.
    """
    with emitter.processing():
        collected = Batch(emitter, messages)
        yield collected
        for message_id, event_time, *replay in collected.messages:
            emitter.sent_out(message_id, event_time, to=to, replay=replay[0] if replay else None)
