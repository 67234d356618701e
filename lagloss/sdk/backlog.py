"""The backlog: flushes that were drained and are not yet reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from lagloss.sdk.flush import Flush
from lagloss.sdk.shipper import Position


class Backlog(Protocol):
    """Flushes in the order in which they were put. Used by one thread."""

    presumed_partitions: int | None
    """How many partitions blocks are made for while no broker was ever reached; None: none are made."""

    @property
    def has_room(self) -> bool:
        """Whether the next flush may be put. While not, beacons wait in the intake."""

    @property
    def waiting_bytes(self) -> int:
        """What it takes on disk."""

    @property
    def is_durable(self) -> bool:
        """Whether all that it holds outlives this process."""

    def put(self, flush: Flush, report_seq: int) -> bool:
        """Take a flush; return True if it outlives this process from now on. `report_seq`: of the newest report so
        far."""

    def head(self) -> Flush | None:
        """Return the oldest flush that is not `shipped`; the same object until it is."""

    def shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        """Note that the head is accounted for, with the positions of its blocks."""

    @property
    def wants_report(self) -> bool:
        """Whether the flushes shipped so far are to be reported before the next one is shipped."""

    def reported(self, report_seq: int) -> None:
        """Note that the broker has a report, of that seq, that covers all that was shipped."""

    def end(self, closed_at_ms: int) -> None:
        """Note that the emitter has put its last flush."""

    def close(self, *, settled: bool) -> None:
        """Stop using it. `settled`: nothing is left to do for a successor either."""

    def leak(self) -> None:
        """Release the parent's resources in a forked child."""


class MemoryBacklog:
    """Holds one flush, so that what waits for the broker waits in the intake, where it is bounded."""

    presumed_partitions: int | None = None
    waiting_bytes = 0
    wants_report = False
    is_durable = False

    def __init__(self) -> None:
        self._flushes: deque[Flush] = deque()

    @property
    def has_room(self) -> bool:
        return not self._flushes

    def put(self, flush: Flush, report_seq: int) -> bool:
        self._flushes.append(flush)
        return False

    def head(self) -> Flush | None:
        return self._flushes[0] if self._flushes else None

    def shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        self._flushes.popleft()

    def reported(self, report_seq: int) -> None:
        """Do nothing: it keeps nothing that a report could free."""

    def end(self, closed_at_ms: int) -> None:
        """Do nothing: there is no successor."""

    def close(self, *, settled: bool) -> None:
        self._flushes.clear()

    def leak(self) -> None:
        self._flushes.clear()
