"""What a service's threads leave for the flushing thread, without a lock between them.

All that callers touch are single calls in C on built-in containers, which the interpreter does whole or not at all:
`list.extend`, `next(itertools.count())`, `dict.setdefault`.
"""

from __future__ import annotations

import itertools
from time import time_ns
from types import TracebackType
from typing import Any, Final, Self

from lagloss.sdk.packing import STRIDE, TallyKey

MAX_OVERFLOW_KEYS: Final = 65_536


class Count:
    """Adds one without a lock; read by one thread at a time."""

    __slots__ = ("_count", "_looks", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._looks = 0
        self.add = self._count.__next__
        """Adds one, from any thread."""

    def read(self) -> int:
        """Return how many were added so far."""
        value = next(self._count) - self._looks  # a look adds one, too
        self._looks += 1
        return value


class Processing:
    """Work in hand, from its construction to `done` (or the end of the with block)."""

    __slots__ = ("_hand", "_token")
    _tokens = itertools.count()

    def __init__(self, hand: dict[int, int]) -> None:
        self._hand = hand
        self._token = next(Processing._tokens)
        hand[self._token] = time_ns() // 1_000_000

    def done(self) -> None:
        """End the work: all that was taken in for it is out, filtered or dead. Idempotent."""
        self._hand.pop(self._token, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.done()

    def __del__(self) -> None:
        self.done()


class BeaconBuffer:
    """Beacons that wait, and counts of those that could not."""

    def __init__(self) -> None:
        self.buffer: list[Any] = []
        self.hand: dict[int, int] = {}
        """When work in hand was begun, epoch ms."""
        self.has_hand = False
        self.refused = Count()
        self.unplaced = Count()
        self.errors = Count()
        self.lost_count = Count()
        """Beacons dropped of more windows than are counted apart."""
        self._overflow: dict[TallyKey, Count] = {}
        self._overflow_taken: dict[TallyKey, int] = {}

    def __len__(self) -> int:
        return len(self.buffer) // STRIDE

    def overflow(self, key: TallyKey) -> None:
        """Count a beacon for which there was no room; from any thread."""
        counter = self._overflow.get(key)
        if counter is None:
            if len(self._overflow) >= MAX_OVERFLOW_KEYS:
                self.lost_count.add()
                return
            counter = self._overflow.setdefault(key, Count())
        counter.add()

    def take(self) -> list[Any]:
        """Take the beacons present at the call, `STRIDE` values each."""
        n = len(self.buffer)
        taken = self.buffer[:n]
        del self.buffer[:n]
        return taken

    def take_overflow(self) -> dict[TallyKey, int]:
        """Take what overflowed since the last call."""
        found = {}
        for key, counter in list(self._overflow.items()):
            total = counter.read()
            new = total - self._overflow_taken.get(key, 0)
            if new:
                self._overflow_taken[key] = total
                found[key] = new
        return found

    def in_hand_since(self) -> int | None:
        """Return when the oldest work in hand began, in epoch ms; None if there is none."""
        return min(list(self.hand.values()), default=None)
