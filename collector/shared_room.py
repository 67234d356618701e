"""Room that callers share so that each newcomer still finds some, however much the others want.

A holder may take no more than is then left free: dynamic thresholds, as switches share their buffers (Choudhury and
Hahne 1998). Alone it gets half; where n go on wanting more than there is, each comes to a share of n + 1.
"""

from __future__ import annotations

from collections import Counter


class SharedRoom:
    """Counts who holds how much of `total`. Not locked: the caller is one thread, or has a lock."""

    def __init__(self, total: int) -> None:
        self._free = total
        self._held: Counter[str] = Counter()
        self.taken = 0

    def take(self, holder: str, amount: int) -> bool:
        """Take room for a holder; return whether there was enough for it."""
        if self._held[holder] + amount > self._free - amount:
            return False
        self._move(holder, amount)
        return True

    def give_back(self, holder: str, amount: int) -> None:
        self._move(holder, -amount)
        if not self._held[holder]:
            del self._held[holder]

    def _move(self, holder: str, amount: int) -> None:
        self._held[holder] += amount
        self._free -= amount
        self.taken += amount
