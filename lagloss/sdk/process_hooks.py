"""Hooks of the host process: its emitters are notified of a fork, and closed at exit or on SIGTERM."""

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
        """Start anew in the child, right after the fork."""

    def close(self, timeout_s: float = CLOSE_S) -> bool:
        """Close within this time."""


_registered: Final[weakref.WeakSet[ForkAware]] = weakref.WeakSet()


def register(emitter: ForkAware, *, close_on_sigterm: bool) -> None:
    """Register an emitter for fork and exit hooks, and for SIGTERM if the host installed no handler."""
    _registered.add(emitter)
    if close_on_sigterm:
        sigterm.call_on_sigterm(_close_all)


def unregister(emitter: ForkAware) -> None:
    """Remove an emitter that has closed."""
    _registered.discard(emitter)


def _close_all() -> None:
    """Close all registered emitters within the time of one."""
    deadline = time.monotonic() + CLOSE_S
    for emitter in list(_registered):
        emitter.close(max(0.1, deadline - time.monotonic()))


def _all_forked() -> None:
    for emitter in list(_registered):
        emitter.forked()


os.register_at_fork(after_in_child=_all_forked)
atexit.register(_close_all)
