"""Catching up: until when all reports have been followed. It is the clock of every judgement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Catchup:
    """The newest moment (epoch ms) whose end offsets of the reports topic the follower has passed; 0 before the first.

    Judging by the wall clock instead would take emitters for silent whose reports merely wait to be followed.
    """

    caught_up_ms: int = 0
    _asked_ms: int = 0
    _ends: Mapping[int, int] = field(default_factory=dict)

    def update(self, now_ms: int, positions: Mapping[int, int], ends: Callable[[], Mapping[int, int]]) -> int:
        """Compare the follower's positions with the ends asked for last; ask anew once they are passed."""
        if not self._asked_ms:
            self._asked_ms, self._ends = now_ms, ends()
        if all(positions.get(partition, 0) >= end for partition, end in self._ends.items()):
            self.caught_up_ms, self._asked_ms = self._asked_ms, 0
        return self.caught_up_ms
