"""The end of a service in bounded time: a call into Spark, Kafka or PostgreSQL that blocks cannot hold it up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Final

import psutil
import structlog

ENDING_S: Final = 12.0
"""From the signal to SIGKILL, so that a service is gone after 15 s."""
LOGGING_S: Final = 0.5
ENDING_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

_log = structlog.get_logger("lagloss")


def end_in_time(within_s: float = ENDING_S) -> None:
    """Have this process end within `within_s` of SIGTERM, SIGINT or SIGHUP, if it handles that: then it kills what it
    started (Spark's JVM, its Python workers) and itself. Call it in the main thread.

    Python tells of a signal by a byte in a pipe even while the main thread is in a call that does not return, and its
    handler has to wait.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def watch() -> None:
        while ENDING_SIGNALS.isdisjoint(os.read(read, 64)):
            pass
        start_ending(within_s)

    threading.Thread(target=watch, name="ending", daemon=True).start()


@cache
def start_ending(within_s: float) -> None:
    """Kill this process, and what it started, after `within_s`; once."""
    threading.Thread(target=_end, args=[within_s], name="end", daemon=True).start()


def _end(within_s: float) -> None:
    time.sleep(within_s)
    # Another thread may hold the lock of a stream that nobody reads any more.
    threading.Thread(target=_say, args=[within_s], daemon=True).start()
    time.sleep(LOGGING_S)
    own = psutil.Process()
    _kill(own.children(recursive=True))
    os.kill(own.pid, signal.SIGKILL)


def _say(within_s: float) -> None:
    _log.error("shutdown timed out", reason=f"the process did not end within {within_s:g} s of the signal")


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            process.kill()
