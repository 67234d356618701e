"""The buffer between a service's threads and the flushing thread, without a lock.

Callers only make single calls in C on built-in containers, which the interpreter executes atomically: `list.extend`,
`next(itertools.count())`, `dict.setdefault`.
"""

from __future__ import annotations

import itertools
from time import time_ns
from types import TracebackType
from typing import Any, Final, Self

from lagloss.sdk.packing import STRIDE, Columns, TallyKey

MAX_OVERFLOW_KEYS: Final = 65_536


class Count:
    """A counter that increments without a lock; read by one thread at a time."""

    __slots__ = ("_count", "_reads", "add")

    def __init__(self) -> None:
        self._count = itertools.count()
        self._reads = 0
        self.add = self._count.__next__
        """Add one, from any thread."""

    def add_many(self, n: int) -> None:
        """Add `n`, from any thread."""
        for _ in range(n):
            self.add()

    def read(self) -> int:
        """Return the count so far."""
        value = next(self._count) - self._reads  # each read adds one, too
        self._reads += 1
        return value


class Processing:
    """Work in flight, from its construction to `done` (or the end of the with block)."""

    __slots__ = ("_hand", "_token")
    _tokens = itertools.count()

    def __init__(self, hand: dict[int, int]) -> None:
        self._hand = hand
        self._token = next(Processing._tokens)
        hand[self._token] = time_ns() // 1_000_000

    def done(self) -> None:
        """End the work: all messages taken in for it are out, filtered or dead, and reported so. Idempotent."""
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
    """Beacons that wait to be flushed, `max_beacons` at most, and counts of those that cannot."""

    def __init__(self, max_beacons: int) -> None:
        self.max_beacons = max_beacons
        self.values: list[Any] = []
        self.columns: list[Columns] = []
        self.hand: dict[int, int] = {}
        """Start of each work in flight, epoch ms."""
        self.has_hand = False
        self.refused = Count()
        self.unplaced = Count()
        self.errors = Count()
        self.lost_count = Count()
        """Beacons dropped in more windows than are counted apart."""
        self._overflow: dict[TallyKey, Count] = {}
        self._overflow_taken: dict[TallyKey, int] = {}

    def __len__(self) -> int:
        return len(self.values) // STRIDE + sum(map(len, list(self.columns)))

    def overflow(self, key: TallyKey, beacons: int = 1) -> None:
        """Count beacons for which there was no room; from any thread."""
        counter = self._overflow.get(key)
        if counter is None:
            if len(self._overflow) >= MAX_OVERFLOW_KEYS:
                self.lost_count.add()
                return
            counter = self._overflow.setdefault(key, Count())
        counter.add_many(beacons)

    def take(self) -> list[Any]:
        """Remove and return the beacons present at the time of the call, `STRIDE` values each."""
        n = len(self.values)
        taken = self.values[:n]
        del self.values[:n]
        return taken

    def take_columns(self) -> list[Columns]:
        """Remove and return the columns present at the time of the call."""
        n = len(self.columns)
        taken = self.columns[:n]
        del self.columns[:n]
        return taken

    def take_overflow(self) -> dict[TallyKey, int]:
        """Return the overflow since the last call, by tally."""
        dropped = {}
        for key, counter in list(self._overflow.items()):
            total = counter.read()
            new = total - self._overflow_taken.get(key, 0)
            if new:
                self._overflow_taken[key] = total
                dropped[key] = new
        return dropped

    def in_flight_since(self) -> int | None:
        """Return the start of the oldest work in flight, epoch ms; None if there is none."""
        return min(list(self.hand.values()), default=None)
