"""The host process: its emitters are told when it forks, and closed when it ends or is told to end."""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
import weakref
from typing import Final, Protocol

from lagloss import sigterm

CLOSE_S: Final = 2.0
FORK_WAIT_S: Final = 1.0
"""How long a fork waits for a client that is being made or ended."""


class Guest(Protocol):
    """An emitter, as its process sees it."""

    def forked(self) -> None:
        """In the child, right after the fork."""

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Ends within this time."""


class _ForkGate:
    """Held while a client library starts or ends its threads: a child that is forked in the midst of that may inherit a
    lock of the library that nobody ever releases. Two threads that made and closed emitters without a pause left 3 of
    80 forked children mute; with this 1 of 470: what its threads do right after they were started is beyond us."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_shut = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def before_fork(self) -> None:
        self._is_shut = self._lock.acquire(timeout=FORK_WAIT_S)

    def in_parent(self) -> None:
        if self._is_shut:
            self._lock.release()

    def in_child(self) -> None:
        self._lock = threading.Lock()


fork_gate: Final = _ForkGate()

_guests: Final[weakref.WeakSet[Guest]] = weakref.WeakSet()


def welcome(guest: Guest, *, close_on_sigterm: bool) -> None:
    """From now on it is told; of SIGTERM where nobody else handles that."""
    _guests.add(guest)
    if close_on_sigterm:
        sigterm.do_first(_close_all)


def farewell(guest: Guest) -> None:
    """It has ended by itself."""
    _guests.discard(guest)


def _close_all() -> None:
    """All of them within the time of one."""
    deadline = time.monotonic() + CLOSE_S
    for guest in list(_guests):
        guest.close(max(0.1, deadline - time.monotonic()))


def _all_forked() -> None:
    for guest in list(_guests):
        guest.forked()


# A Kafka client of the parent that is garbage must not be collected in the child: its end joins threads that are not
# there, and on whose stacks threads of the child may run by now, which is a segmentation fault.
os.register_at_fork(after_in_child=gc.freeze)
os.register_at_fork(
    before=fork_gate.before_fork, after_in_parent=fork_gate.in_parent, after_in_child=fork_gate.in_child
)
os.register_at_fork(after_in_child=_all_forked)
atexit.register(_close_all)
