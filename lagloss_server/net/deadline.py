"""A common deadline for all steps of one delivery."""

from __future__ import annotations

import time


class Deadline:
    """A moment `seconds` from now, on the monotonic clock."""

    __slots__ = ("_ends",)

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the remaining seconds.

        Raises:
            TimeoutError: none remain.
        """
        left_s = self._ends - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the delivery timed out")
        return left_s
