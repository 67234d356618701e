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
    """Number of partitions to make blocks for before a broker was ever reached; None to make none."""

    def make_room(self, report_seq: int) -> bool:
        """Try again to write what could not be written, and return True if the next flush can be put. Otherwise,
        beacons wait in the buffer.

        `report_seq`: as for `put`.
        """

    @property
    def waiting_bytes(self) -> int:
        """Size on disk."""

    @property
    def is_durable(self) -> bool:
        """True if all its flushes outlive this process."""

    def put(self, flush: Flush, report_seq: int) -> bool:
        """Add a flush; return True if it outlives this process from now on.

        `report_seq`: that of the newest report so far.
        """

    def head(self) -> Flush | None:
        """Return the oldest flush that is not `shipped`; the same object until it is. Raises OSError if it cannot be
        read: it is there, and may be read later."""

    def shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        """Mark the head as accounted for, with the positions of its blocks."""

    @property
    def wants_report(self) -> bool:
        """True if the flushes shipped so far are to be reported before the next one is shipped."""

    def reported(self, report_seq: int) -> None:
        """Note that the broker has a report, of that seq, that covers all shipped flushes."""

    def end(self, closed_at_ms: int) -> None:
        """Note that the emitter has put its last flush."""

    def close(self, *, settled: bool) -> None:
        """Close the backlog. `settled`: no process has anything left to do."""

    def detach_after_fork(self) -> None:
        """Let go of the parent's backlog in a forked child."""


class MemoryBacklog:
    """A backlog of one flush, so that beacons that wait for the broker wait in the buffer, which is bounded."""

    presumed_partitions: int | None = None
    waiting_bytes = 0
    wants_report = False
    is_durable = False

    def __init__(self) -> None:
        self._flushes: deque[Flush] = deque()

    def make_room(self, report_seq: int) -> bool:
        return not self._flushes

    def put(self, flush: Flush, report_seq: int) -> bool:
        self._flushes.append(flush)
        return False

    def head(self) -> Flush | None:
        return self._flushes[0] if self._flushes else None

    def shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        self._flushes.popleft()

    def reported(self, report_seq: int) -> None:
        """Do nothing: no flush is kept after shipping."""

    def end(self, closed_at_ms: int) -> None:
        """Do nothing: no other process continues."""

    def close(self, *, settled: bool) -> None:
        self._flushes.clear()

    def detach_after_fork(self) -> None:
        self._flushes.clear()
