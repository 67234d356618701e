"""Shared room: what all callers may hold together is limited, and none gets more than it leaves for the others.

One that is alone gets half of it, two that want all get a third each, and so on. Whoever comes then finds some left.
"""

from __future__ import annotations

from collections import Counter


class SharedRoom:
    """Room of a size, in whatever unit; its users call it one at a time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: Counter[str] = Counter()

    @property
    def used(self) -> int:
        return self._held.total()

    def take(self, owner: str, amount: int) -> bool:
        """Return whether there is room for more of this owner's, and take it if so."""
        if self._held[owner] + amount > self.size - self.used - amount:
            return False
        self._held[owner] += amount
        return True

    def give_back(self, owner: str, amount: int) -> None:
        """Make room again."""
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]
