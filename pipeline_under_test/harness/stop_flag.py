"""A flag that a signal handler may set: `threading.Event` takes a lock, which the interrupted thread may hold."""

from __future__ import annotations

import time
from typing import Final

LOOK_EVERY_S: Final = 0.05


class StopFlag:
    """Not set at first, and set for good by `set`."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Return True as soon as it is set, False if it is not after so many seconds."""
        deadline = time.monotonic() + seconds
        while not self._is_set and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_EVERY_S))
        return self._is_set
