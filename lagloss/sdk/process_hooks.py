"""Hooks of the host process: its emitters start anew after a fork, and are closed at exit or SIGTERM."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from typing import Final, Protocol

import lagloss.broker.fork_gate  # noqa: F401  # in a child its hook runs before the one of this module
from lagloss.sdk import sigterm

CLOSE_S: Final = 2.0


class ForkAware(Protocol):
    """An emitter, as its process sees it."""

    def forked(self) -> None:
        """Start anew in a child, right after the fork."""

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """End within this time."""


_guests: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()


def welcome(guest: ForkAware, *, close_on_sigterm: bool) -> None:
    """Register an emitter for fork and exit hooks, and for SIGTERM if the host installed no handler."""
    _guests.add(guest)
    if close_on_sigterm:
        sigterm.do_first(_close_all)


def farewell(guest: ForkAware) -> None:
    """Unregister an emitter that has ended by itself."""
    _guests.discard(guest)


def _close_all() -> None:
    """Close all emitters within the time of one."""
    deadline = time.monotonic() + CLOSE_S
    for guest in list(_guests):
        guest.close(max(0.1, deadline - time.monotonic()))


def _all_forked() -> None:
    for guest in list(_guests):
        guest.forked()


os.register_at_fork(after_in_child=_all_forked)
atexit.register(_close_all)
