"""Hooks of the host process: its emitters are notified of a fork, and closed at exit or on SIGTERM.

SIGTERM by default ends Python without `atexit`. A handler in Python runs in the main thread once that returns from C,
which it does not while no message comes (`consumer.consume(10)`). So the signal's number also goes through a pipe to a
thread that waits for it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import threading
import time
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Final

import lagloss.broker.fork_gate  # noqa: F401  # in a child its hook runs before those of this module

if TYPE_CHECKING:
    from lagloss.sdk.emitter import Emitter

CLOSE_S: Final = 2.0

_registered: Final[weakref.WeakSet[Emitter]] = weakref.WeakSet()
_ending: Final = threading.RLock()
_pipe: list[int] = []
"""Read end and write end, while a thread listens for SIGTERM."""


def register(emitter: Emitter, *, close_on_sigterm: bool) -> None:
    """Register an emitter for fork and exit hooks, and for SIGTERM if the host installed no handler."""
    _registered.add(emitter)
    if close_on_sigterm:
        _handle_sigterm()


def unregister(emitter: Emitter) -> None:
    """Remove an emitter that has closed."""
    _registered.discard(emitter)


def _close_all() -> None:
    """Close all registered emitters within the time of one."""
    deadline = time.monotonic() + CLOSE_S
    for emitter in list(_registered):
        emitter.close(max(0.1, deadline - time.monotonic()))


# -- SIGTERM ------------------------------------------------------------------------------------------------------


def _handle_sigterm() -> None:
    """Close all emitters on SIGTERM, and then end the process by the signal as ever.

    A handler that the host has, or sets later, is left alone. Does nothing outside of the main thread, the only one in
    which Python sets handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _handle):
        return
    signal.signal(signal.SIGTERM, _handle)
    if not _pipe:
        _listen()


def _handle(number: int, frame: FrameType | None) -> None:
    with _ending:
        _close_all()
        # `signal.signal` works in the main thread only.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
        os.kill(os.getpid(), signal.SIGTERM)
        if os.getpid() == 1:  # for which the kernel ignores signals without a handler
            os._exit(128 + signal.SIGTERM)


def _listen() -> None:
    """Start to listen, unless another part of the host, such as asyncio, has set a wake-up descriptor."""
    others = signal.set_wakeup_fd(-1)
    if others != -1:
        signal.set_wakeup_fd(others)
        return
    _pipe[:] = os.pipe()
    os.set_blocking(_pipe[1], False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(_pipe[0],), name="lagloss-sigterm", daemon=True).start()


def _hear(end: int) -> None:
    while numbers := os.read(end, 64):
        if signal.SIGTERM in numbers and signal.getsignal(signal.SIGTERM) is _handle:
            _handle(signal.SIGTERM, None)


# -- forks --------------------------------------------------------------------------------------------------------


def _before_fork() -> None:
    """Detach the pipe, so that a signal to the child is not passed to the parent's thread."""
    if _pipe:
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.set_wakeup_fd(-1) != _pipe[1]:
                _pipe.clear()  # replaced by another part of the host


def _in_parent() -> None:
    if _pipe:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)


def _in_child() -> None:
    if _pipe:
        with contextlib.suppress(ValueError):
            signal.set_wakeup_fd(-1)
        for end in _pipe:
            os.close(end)
        _pipe.clear()


def _all_forked() -> None:
    for emitter in list(_registered):
        emitter.forked()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
os.register_at_fork(after_in_child=_all_forked)
atexit.register(_close_all)
