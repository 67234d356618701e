"""The spool: a directory of an emitter's own in which each flush is written, and synced, before it is sent.

It takes what the broker does not, up to a size. If the process dies, another one sends the unsent rest and closes the
account (lagloss/sdk/spool/recovery.py). Below the directory that the host gives::

    PIPELINE.NODE.EMITTER/      one per process; only its owner holds the lock
        lock
        00000001.log            flushes (journal.py); a new file every 4 MiB, removed when all is reported
        00000001.sent           positions in the log of the acknowledged ones
        00000002.base           tallies as they stood before 00000002.log, if an older file was removed
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lagloss.broker.topics import BEACONS_PARTITIONS
from lagloss.sdk.account import Account
from lagloss.sdk.flush import Flush
from lagloss.sdk.packing import TallyKey
from lagloss.sdk.shipper import Position
from lagloss.sdk.spool.directory import Segment, SpoolDirectory
from lagloss.sdk.spool.journal import (
    Head,
    StoredFlush,
    end_frame,
    entries,
    flush_frames,
    head_frame,
    positions_frame,
    tally_frames,
)
from lagloss.wire.format import Tally

SEGMENT_BYTES: Final = 4 * 1024 * 1024
MAX_BYTES: Final = 1024 * 1024 * 1024
"""Default size of a spool: 10 minutes of 5,000 beacons/s are 40 to 200 MB."""
RETRY_S: Final = 10.0
"""Pause before a disk that failed is tried again."""
TICK_MS: Final = 10_000
"""Interval at which an emitter without observations writes an empty flush."""


@dataclass(slots=True)
class _Touched:
    """The segment that holds a tally's base, and the newest one with a flush that changes it."""

    base: int
    last: int


class Spool:
    """A backlog on disk (see `lagloss.sdk.backlog.Backlog`).

    While the disk fails (full, read-only, gone), flushes stay in memory one at a time, as without a spool. The disk is
    tried again every 10 s, and then takes the one in memory too.

    Args:
        account: of the flushes that were shipped.
        note: called with each error of the disk.
        max_bytes: maximum size of the waiting files; past that, beacons wait in the buffer.
    """

    presumed_partitions: int | None = BEACONS_PARTITIONS

    def __init__(
        self,
        directory: SpoolDirectory,
        head: Head,
        account: Account,
        note: Callable[[Exception], None],
        *,
        max_bytes: int = MAX_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        self._head_frame = head_frame(head)
        self._account = account
        self._note = note
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._segments: deque[Segment] = deque()
        self._begun = 0
        """Segments begun so far; their numbers are never reused."""
        self._touched: dict[TallyKey, _Touched] = {}
        self._written = self._shipped = 0
        """Numbers of the newest flush on disk, and of the newest that was shipped."""
        self._shipped_ms = 0
        """Time of the latter's drain, epoch ms."""
        self._in_memory: deque[Flush] = deque()
        """Flushes after those on disk."""
        self._before_current: dict[TallyKey, Tally] = {}
        """Tallies that the first of them changes, as they stood when it became the head."""
        self._is_stale = False
        """True if a flush was accounted for that is not in the files, and perhaps in no report either."""
        self._is_kept = False
        """An oldest file could not be removed in time: all of them stay until nothing waits."""
        self._ticked_ms = 0
        self._not_before = 0.0
        self._current: Flush | None = None
        self._newest: Flush | None = None
        """The only unshipped flush on disk, if there is one: it need not be read."""
        self._read: Iterator[StoredFlush] = iter(())
        self._read_up_to = (0, 0)
        """Segment and position."""

    # -- putting --------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """Size of its files: of all unreported flushes, and at most two files more."""
        return sum(segment.size for segment in self._segments)

    def make_room(self, report_seq: int) -> bool:
        self._write_kept(report_seq)
        return not self._keeps_content and (self._disk_is_done or self.waiting_bytes < self._max_bytes)

    @property
    def is_durable(self) -> bool:
        return not self._is_stale and not self._keeps_content

    @property
    def _keeps_content(self) -> bool:
        return any(map(_has_content, self._in_memory))

    def put(self, flush: Flush, report_seq: int) -> bool:
        """Add a flush; see `Backlog.put`. An empty one is written every 10 s, and only if nothing waits."""
        self._write_kept(report_seq)
        if not self._keeps_content:
            self._in_memory.clear()  # this one makes all of their claims
            self._current = self._current if not self._disk_is_done else None
        is_quiet = not _has_content(flush)
        if is_quiet and abs(flush.observed_until_ms - self._ticked_ms) < TICK_MS:
            return self._keep(flush)
        if self._in_memory or not self._may_write or not self._write(flush, self._account.tally, report_seq):
            return self._keep(flush)
        return True

    def _write_kept(self, report_seq: int) -> None:
        """Write the flushes that a failing disk did not take, if it may be tried again."""
        while self._keeps_content and self._may_write:
            flush = self._in_memory[0]
            # Of the head, blocks may be in the account already.
            before = self._before_current.get if flush is self._current else self._account.tally
            if not self._write(flush, before, report_seq):
                return
            self._in_memory.popleft()

    @property
    def _may_write(self) -> bool:
        return not self._is_stale and time.monotonic() >= self._not_before

    @property
    def _disk_is_done(self) -> bool:
        """True if every flush on disk is shipped."""
        return self._shipped >= self._written

    def _keep(self, flush: Flush) -> bool:
        self._in_memory.append(flush)
        return not self._keeps_content

    def _write(self, flush: Flush, before: Callable[[TallyKey], Tally | None], report_seq: int) -> bool:
        """Write a flush; return False if the disk failed. `before`: state of a tally before this flush, if nothing on
        disk waits to change it.
        """
        try:
            self._append(flush, before, report_seq)
        except OSError as error:
            self._not_before = time.monotonic() + RETRY_S
            self._note(error)
            return False
        self._newest = flush if self._disk_is_done else None
        self._written = flush.number
        self._ticked_ms = flush.observed_until_ms
        return True

    def _append(self, flush: Flush, before: Callable[[TallyKey], Tally | None], report_seq: int) -> None:
        if not self._segments or self._segments[-1].size >= self._segment_bytes:
            self._begin_segment()
        tail = self._segments[-1]
        if self._disk_is_done and not tail.last:
            self._touched.clear()
        fresh = _existing(flush.keys - self._touched.keys(), before)
        tail.append(tally_frames(fresh) + flush_frames(flush, self._written, report_seq, self._account.final_through))
        tail.last = flush.number
        for key in flush.keys:
            self._touched.setdefault(key, _Touched(tail.number, tail.number)).last = tail.number

    def _begin_segment(self) -> None:
        self._begun += 1
        segment = Segment(self._directory.path, self._begun)
        segment.begin(self._head_frame)
        self._segments.append(segment)

    def end(self, closed_at_ms: int) -> None:
        if self._segments and self.is_durable:
            with contextlib.suppress(OSError):
                self._segments[-1].append(end_frame(closed_at_ms))

    # -- taking ---------------------------------------------------------------------------------------------------

    def head(self) -> Flush | None:
        if self._current is None:
            self._current = self._next()
        return self._current

    def _next(self) -> Flush | None:
        if self._disk_is_done:
            return self._next_kept()
        return self._newest or self._next_read()

    def _next_kept(self) -> Flush | None:
        if not self._in_memory:
            return None
        self._before_current = _existing(self._in_memory[0].keys, self._account.tally)
        return self._in_memory[0]

    def _next_read(self) -> Flush:
        """Return the next flush from disk. Damage that no summary accounts for makes it blind. Raises OSError."""
        while (stored := self._next_stored()) is not None:
            flush = stored.flush
            if flush.number == 0:
                return replace(flush, number=self._shipped + 1)
            if flush.number > self._shipped:
                return replace(flush, is_blind=flush.is_blind or stored.after > self._shipped)
        return Flush(self._written, 0, is_blind=True)

    def _next_stored(self) -> StoredFlush | None:
        while (stored := next(self._read, None)) is None:
            segment = self._segment_to_read()
            if segment is None:
                return None
            number, position = self._read_up_to
            data = segment.read(position if segment.number == number else 0)
            self._read_up_to = segment.number, segment.size
            self._read = (entry for entry in entries(data) if isinstance(entry, StoredFlush))
        return stored

    def _segment_to_read(self) -> Segment | None:
        number, position = self._read_up_to
        for segment in self._segments:
            if segment.number > number or (segment.number == number and position < segment.size):
                return segment
        return None

    def shipped(self, flush: Flush, positions: Sequence[Position]) -> None:
        self._current = None
        if self._disk_is_done:
            self._in_memory.remove(flush)
            self._is_stale = self._is_stale or _has_content(flush)
        else:
            self._newest = None
            segment = next((segment for segment in self._segments if segment.last >= flush.number), None)
            if segment is not None and positions:
                segment.note_positions(positions_frame(flush.number, positions))
        self._shipped, self._shipped_ms = flush.number, flush.observed_until_ms

    # -- making room ----------------------------------------------------------------------------------------------

    @property
    def wants_report(self) -> bool:
        """True at the end of a file, so that the account stands exactly between two files when one is removed."""
        return self._is_stale or self._may_retire

    @property
    def _may_retire(self) -> bool:
        return not self._is_kept and len(self._segments) > 1 and self._segments[0].last <= self._shipped

    def reported(self, report_seq: int) -> None:
        while self._may_retire:
            self._retire_oldest()
        if self._disk_is_done and (self._is_stale or self.waiting_bytes >= self._segment_bytes):
            self._start_over(report_seq)

    def _retire_oldest(self) -> None:
        """Remove a file whose flushes are all reported; the next one gets its bases of tallies."""
        oldest, following = self._segments[0], self._segments[1]
        for key in [key for key, touched in self._touched.items() if touched.last <= oldest.number]:
            del self._touched[key]
        moved = [key for key, touched in self._touched.items() if touched.base <= oldest.number]
        if moved and self._shipped > oldest.last:  # their state between the two files is not known any more
            self._is_kept = True
            return
        try:
            self._segments[-1].trim()  # recovery may find a flush there whose base is in the oldest file
            if moved:
                following.write_base(tally_frames(_existing(moved, self._account.tally)))
        except OSError as error:
            self._is_kept = True
            self._note(error)
            return
        for key in moved:
            self._touched[key].base = following.number
        self._segments.popleft().remove()

    def _start_over(self, report_seq: int) -> None:
        """Replace all files, which have nothing left to do, by a new one that says that the emitter lives."""
        done = len(self._segments)
        quiet = Flush(self._shipped, self._shipped_ms)
        try:
            self._begin_segment()
            self._segments[-1].append(flush_frames(quiet, self._written, report_seq, self._account.final_through))
        except OSError as error:
            self._note(error)
            if not self._is_stale:
                return
        for _ in range(done):
            self._segments.popleft().remove()
        self._touched.clear()
        self._is_stale = self._is_kept = False

    # -- closing ------------------------------------------------------------------------------------------------------

    def close(self, *, settled: bool) -> None:
        for segment in self._segments:
            segment.close()
        if settled:
            self._directory.remove()
        else:
            self._directory.release()

    def detach_after_fork(self) -> None:
        """Close this process's copies of the descriptors; the lock stays with the parent."""
        self.close(settled=False)


def _existing(keys: Iterable[TallyKey], tally_of: Callable[[TallyKey], Tally | None]) -> dict[TallyKey, Tally]:
    return {key: tally for key in keys if (tally := tally_of(key)) is not None}


def _has_content(flush: Flush) -> bool:
    return bool(flush.keys) or flush.is_blind
