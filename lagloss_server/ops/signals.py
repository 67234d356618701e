"""The life of a service without a server of its own: its work in a thread, until a signal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""


def run_until_signal(name: str, work: Callable[[], None], stop: Callable[[], None]) -> bool:
    """Run `work` in a thread of this name, call `stop` at a signal, and wait for its end. Return whether it ended
    before a signal came; raise what it raised.

    Call from the main thread. Signals that are ignored stay so, as nohup wants it.
    """
    # The handler writes a byte and no more: setting an Event there can interrupt a wait on it in this thread, and lock
    # up. Blocking the signals and sigwait would not do: libraries have started threads before that do not block them.
    wake_read, wake_write = os.pipe()
    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: os.write(wake_write, b"."))
    ended = threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        finally:
            ended.set()
            os.write(wake_write, b".")

    worker = threading.Thread(target=run, name=name)
    worker.start()
    os.read(wake_read, 1)
    by_itself = ended.is_set()
    stop()
    worker.join()
    for error in failures:
        raise error
    return by_itself
