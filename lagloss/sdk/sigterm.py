"""SIGTERM, which ends Python without `atexit`: where the host does not handle it, something is done first.

A handler in Python runs in the main thread once that comes back from C, which it may not for as long as no message
comes (`consumer.consume(10)`). So the signal's number also goes through a pipe to a thread that waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

_ending: Final = threading.RLock()
_first: list[Callable[[], None]] = []
_pipe: list[int] = []
"""The end to read and the end to write, while a thread listens."""


def do_first(what: Callable[[], None]) -> None:
    """Call this on SIGTERM, and then end the process by the signal as before.

    A handler that the host has, or sets later, is left alone. Does nothing outside of the main thread, in which alone
    Python sets handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, _handle):
        return
    _first[:] = [what]
    signal.signal(signal.SIGTERM, _handle)
    if not _pipe:
        _listen()


def _handle(number: int, frame: FrameType | None) -> None:
    with _ending:
        for what in _first:
            what()
        # `signal.signal` would do in the main thread only.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)
        os.kill(os.getpid(), signal.SIGTERM)
        if os.getpid() == 1:  # for which the kernel ignores signals without a handler
            os._exit(128 + signal.SIGTERM)


def _listen() -> None:
    """Begin to listen, unless another listener, asyncio's for example, has the wake-up descriptor already."""
    others = signal.set_wakeup_fd(-1)
    if others != -1:
        signal.set_wakeup_fd(others)
        return
    _pipe[:] = os.pipe()
    os.set_blocking(_pipe[1], False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    threading.Thread(target=_hear, args=(_pipe[0],), name="lagloss-sigterm", daemon=True).start()


def _hear(end: int) -> None:
    while signals := os.read(end, 64):
        if signal.SIGTERM in signals and signal.getsignal(signal.SIGTERM) is _handle:
            _handle(signal.SIGTERM, None)


def _before_fork() -> None:
    """Keep a signal to the child from reaching the parent's thread."""
    if _pipe:
        with contextlib.suppress(ValueError):  # not in the main thread
            if signal.set_wakeup_fd(-1) != _pipe[1]:
                _pipe.clear()  # another listener's by now


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


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
