"""One moment by which all steps of a sending have to be done."""

from __future__ import annotations

import time


class Deadline:
    """`seconds` from now, on the monotonic clock."""

    __slots__ = ("_ends",)

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def left_s(self) -> float:
        """Seconds that are left.

        Raises:
            TimeoutError: none are.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time for one sending is over")
        return left
