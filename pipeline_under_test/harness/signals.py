"""Signals that end a command: SIGTERM, as by a supervisor, or SIGINT, as by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def on_end(call: Callable[[], None]) -> None:
    """Call `call` each time that this process is asked to end."""
    for number in ENDING:
        signal.signal(number, lambda *_: call())
