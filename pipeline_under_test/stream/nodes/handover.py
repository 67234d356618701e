"""Work that another process does again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Final

from lagloss.sdk.emitter import Processing

HANDOVER_S: Final = 30.0
"""By then a partition's new owner has taken in what its last one had in hand, or the group has no owner for it."""


class Handover:
    """The work of records that were taken in, and whose partition has gone to another process.

    Ended at once, it would say that nothing is in hand any more while these records are nowhere: in at the node, not
    out, and not taken in again yet, so lost for certain until they are. So it ends a while later.
    """

    def __init__(self) -> None:
        self._left: deque[tuple[float, Processing]] = deque()

    def __bool__(self) -> bool:
        """Return whether there is such work."""
        return bool(self._left)

    def take(self, work: Iterable[Processing]) -> None:
        ends = time.monotonic() + HANDOVER_S
        self._left.extend((ends, each) for each in work)

    def step(self) -> None:
        """End the work that has waited long enough."""
        while self._left and self._left[0][0] <= time.monotonic():
            self._left.popleft()[1].done()
