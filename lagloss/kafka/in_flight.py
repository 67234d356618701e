"""A message in flight: from its take-in until its own handling is over and all its outputs are acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Final, Unpack

from lagloss.checksums import Payload
from lagloss.identity import Identity
from lagloss.sdk.emitter import Emitter, Processing

HANDLER: Final = "the host's block"
BATCH: Final = "the host's batch"
"""Names of the host's own `with` blocks among a message's outputs; no topic has such a name."""
_CURRENT: Final[ContextVar[tuple[InFlightMessage, ...]]] = ContextVar("lagloss_handling", default=())
"""The messages that this thread or task handles: one, or those that were read at once."""


class InFlightMessage:
    """One message in flight. Thread-safe: outputs are acknowledged on whichever thread polls the producer.

    Args:
        emitter: of the node that has it.
        identity: None for a message without identity, which sends no beacon and is otherwise treated alike.
        is_redelivered: the message is taken in again if it is never finished (its offset is not committed). So a
            failed output keeps it in flight. Without that, a failed output is over.
        finished: called once, when everything is over.
    """

    __slots__ = (
        "_awaits_exit",
        "_failed",
        "_finished",
        "_is_over",
        "_is_redelivered",
        "_lock",
        "_open",
        "_work",
        "emitter",
        "identity",
    )

    def __init__(
        self,
        emitter: Emitter,
        identity: Identity | None,
        *,
        is_redelivered: bool = False,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        self.emitter = emitter
        self.identity = identity
        self._is_redelivered = is_redelivered
        self._finished = finished
        self._lock = threading.Lock()
        self._open = 1  # its own handling
        self._is_over = False
        self._awaits_exit = False
        self._failed: list[str] = []
        self._work: Processing | None = None

    def begin_work(self) -> None:
        """Begin work in flight."""
        self._work = self.emitter.processing()

    def received(self, key: str | bytes | None = None, **payload: Unpack[Payload]) -> None:
        """Put the message in flight and send its `in`, with its checksum and size if given, and its order judged within
        `key` if there is one; does nothing for one without identity."""
        if self.identity is not None:
            self.begin_work()
            self.identity.report(self.emitter.received, traceparent=self.identity.traceparent, key=key, **payload)

    # -- outputs --------------------------------------------------------------------------------------------------

    def add_output(self, topic: str) -> bool:
        """Add an output on its way to `topic`. True if it replaces one that failed there."""
        with self._lock:
            replaces = topic in self._failed
            if replaces:
                self._failed.remove(topic)
            else:
                self._open += 1
            return replaces

    def withdraw_output(self, topic: str, *, replaced: bool) -> None:
        """Remove an output that was never sent."""
        if replaced:
            self.failed(topic)
        else:
            self._close(1)

    def acknowledged(self) -> None:
        """Note that one of its outputs is acknowledged, and its beacon is with the emitter."""
        self._close(1)

    def failed(self, topic: str) -> None:
        """Note that one of its outputs failed and will not arrive unless it is sent again."""
        if self._is_redelivered:
            with self._lock:
                self._failed.append(topic)
        else:
            self._close(1)

    def discard_failed(self) -> None:
        """Drop failed outputs: the message is filtered or dead, or another consumer's to handle."""
        with self._lock:
            failed, self._failed = self._failed, []
        self._close(len(failed))

    # -- its exit -------------------------------------------------------------------------------------------------

    def await_exit(self) -> None:
        """Keep the message in flight until it has `exited`, even if its handling and all its outputs are over."""
        with self._lock:
            self._awaits_exit = True
            self._open += 1

    def exited(self) -> None:
        """Note that the message is out, filtered or dead, and that its beacon is with the emitter. Idempotent."""
        with self._lock:
            was_awaited, self._awaits_exit = self._awaits_exit, False
        self._close(int(was_awaited))

    # -- its own handling -----------------------------------------------------------------------------------------

    def end_handling(self) -> None:
        """End the host's handling of the message. Idempotent."""
        with self._lock:
            was_over, self._is_over = self._is_over, True
        self._close(0 if was_over else 1)

    def abandon(self) -> None:
        """Report it as in flight no longer, unfinished as it is: another consumer has it by now, or this one again."""
        with self._lock:
            was_open, self._open = self._open > 0, 0
        if was_open and self._work is not None:
            self._work.done()

    @property
    def is_work(self) -> bool:
        """Whether the emitter reports it as in flight."""
        return self._work is not None and self._open > 0

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
def handling_now(message: InFlightMessage) -> Iterator[None]:
    """Handle this message in this thread or task for the duration of the block."""
    token = set_current(message)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current_identity() -> Identity | None:
    """Return the identity of the message that this thread or task handles.

    None for a message without identity, for none, or for several.
    """
    current = _CURRENT.get()
    return current[0].identity if len(current) == 1 else None
