"""A message in hand: from its take-in until its own handling is over and all that became of it is acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final

from lagloss.identity import Identity
from lagloss.sdk.emitter import Emitter, Processing

HANDLER: Final = "the host's block"
BATCH: Final = "the host's batch"
"""Stand for the host's own `with` blocks among a message's outputs; no topic has such a name."""
_CURRENT: Final[ContextVar[tuple[InFlightMessage, ...]]] = ContextVar("lagloss_handling", default=())
"""What this thread or task handles: one message, or those that were read at once."""


class InFlightMessage:
    """One message in hand. Thread-safe: outputs are acknowledged on whichever thread polls the producer.

    Args:
        emitter: of the node that has it. identity: None for a message that has none: then no beacon speaks of it, and
        the rest is the same. is_redone: a consumer will take the message in again if it is never finished (its offset
        is not committed). So an output that failed keeps it in hand. Without that, what failed is over. finished: is
        called once, when everything is over.
    """

    __slots__ = ("_failed", "_finished", "_is_over", "_is_redone", "_lock", "_open", "_work", "emitter", "identity")

    def __init__(
        self,
        emitter: Emitter,
        identity: Identity | None,
        *,
        is_redone: bool = False,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.emitter = emitter
        self.identity = identity
        self._is_redone = is_redone
        self._finished = finished
        self._lock = threading.Lock()
        self._open = 1  # its own handling
        self._is_over = False
        self._failed: list[str] = []
        self._work: Processing | None = None

    def begin(self) -> None:
        """Work in hand begins."""
        self._work = self.emitter.processing()

    def take_in(self) -> None:
        """Take the message in; without an identity, no beacon is sent for it."""
        if self.identity is not None:
            self.begin()
            self.identity.tell(self.emitter.taken_in)

    # -- outputs --------------------------------------------------------------------------------------------------

    def add_output(self, topic: str) -> bool:
        """Something that became of it is on its way to `topic`. True if it takes the place of one that failed there."""
        with self._lock:
            takes_place = topic in self._failed
            if takes_place:
                self._failed.remove(topic)
            else:
                self._open += 1
            return takes_place

    def withdraw_output(self, topic: str, *, took_place: bool) -> None:
        """Withdraw an output that was not sent after all."""
        if took_place:
            self.failed(topic)
        else:
            self._close(1)

    def acknowledged(self) -> None:
        """Note that one of its outputs has arrived and that the emitter has observed it."""
        self._close(1)

    def failed(self, topic: str) -> None:
        """Note that one of its outputs will not arrive unless it is sent again."""
        if self._is_redone:
            with self._lock:
                self._failed.append(topic)
        else:
            self._close(1)

    def forgive(self) -> None:
        """Disregard failed outputs: the message is filtered or dead, or another consumer's to finish."""
        with self._lock:
            failed, self._failed = self._failed, []
        self._close(len(failed))

    # -- its own end ----------------------------------------------------------------------------------------------

    def over(self) -> None:
        """End the host's handling. Idempotent."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        self._close(0 if was_over else 1)

    def _close(self, count: int) -> None:
        with self._lock:
            before = self._open
            self._open -= count
            ended = before > 0 >= self._open
        if ended:
            if self._work is not None:
                self._work.done()
            self._finished()


def current(emitter: Emitter) -> tuple[InFlightMessage, ...]:
    """Return the messages of this emitter's node that this thread or task handles."""
    return tuple(handling for handling in _CURRENT.get() if handling.emitter is emitter)


def set_current(*handlings: InFlightMessage) -> Token[tuple[InFlightMessage, ...]]:
    """Set the messages that this thread or task handles from now on."""
    return _CURRENT.set(handlings)


@contextmanager
def handling_now(handling: InFlightMessage) -> Iterator[None]:
    """Handle this message in this thread or task for the length of the block."""
    token = set_current(handling)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_identity() -> Identity | None:
    """Return id and event time of the message that this thread or task handles; None for one without identity, or
    without any."""
    found = _CURRENT.get()
    return found[0].identity if len(found) == 1 else None
