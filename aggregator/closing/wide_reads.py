"""Wide windows: those whose tallies name more of the log than one turn may read, or more than their beacons explain.

Their ranges are checked against the log, and read a little in each turn: their pipeline alone waits for them. What an
SDK names may be that wide, where late beacons trickle in for days and the nearest ranges are merged.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import structlog

from aggregator.closing.report_state import WindowKey
from aggregator.outage import is_outage
from lagloss.wire.format import OffsetRange, block_key
from lagloss_server.queries.beacon_log import BeaconLog, LogRecord
from lagloss_server.queries.named_ranges import NamedRanges
from lagloss_server.queries.offset_ranges import (
    MANY_RECORDS,
    Watermarks,
    clamp,
    fewer_ranges,
    merge_ranges,
    records_in,
    without,
)

log = structlog.get_logger()

READ_S: Final = 0.5
"""How long wide windows are read in one turn, those of one pipeline."""
RECENT_MS: Final = 300_000
"""One pipeline may have as many records read in a turn as the log took in this long, and `MANY_RECORDS` at least."""
ASKED_EVERY_S: Final = 60.0
MOST_RANGES: Final = 2
"""Ranges of a partition that a turn reads for one pipeline: where early blocks lie, and where late ones do. Of more,
the nearest are joined: each costs a read of its own, up to a second on a busy machine."""
MOST_PLACES: Final = 16
"""The same for a window with more blocks than are kept."""
KEPT_BYTES: Final = 64 << 20
"""Bytes of blocks that a read of wide windows keeps; of one that has more, only their places."""
WINDOWS_AT_ONCE: Final = 64
READS_AT_ONCE: Final = 4
"""Pipelines whose wide windows are read by turns; others wait until one is done."""
UNUSED_S: Final = 120.0
"""A read whose windows no turn has asked for this long is given up: they were sealed, or proven meanwhile."""


@dataclass(frozen=True)
class Share:
    """What to read of one window: `ranges` of the log, beside blocks that were read before. `refused`: ranges that its
    tallies name and that begin or end with no block of it."""

    ranges: Sequence[OffsetRange]
    kept: Sequence[LogRecord] = ()
    refused: AbstractSet[OffsetRange] = frozenset()


@dataclass
class _Wide:
    """One window of a read. `unchecked`, `accepted` and `refused` are ranges as its tallies name them."""

    unchecked: set[OffsetRange] = field(default_factory=set)
    accepted: set[OffsetRange] = field(default_factory=set)
    refused: set[OffsetRange] = field(default_factory=set)
    check: NamedRanges | None = None
    kept: list[LogRecord] = field(default_factory=list)


@dataclass
class _WideRead:
    """Read of wide windows of one pipeline: first their ranges are checked, then the rest is read through once, for all
    of them."""

    pipeline: str
    most_records: int
    """What is no more than this is left to the turn that closes the windows."""
    windows: dict[int, _Wide] = field(default_factory=dict)
    later: set[int] = field(default_factory=set)
    """Wide windows that wait for the next read."""
    to_read: list[OffsetRange] = field(default_factory=list)
    covered: list[OffsetRange] = field(default_factory=list)
    places: list[OffsetRange] | None = None
    """Where blocks lie, of a single window that has too many to keep them."""
    is_done: bool = False
    error: Exception | None = None
    """What ended it, for which its windows are set aside."""
    has_begun: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    _kept_bytes: int = 0

    def want(self, start_s: int, named: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> None:
        """Read these ranges, too. `named`: by tallies, and to be checked."""
        wide = self.windows.setdefault(start_s, _Wide())
        wide.unchecked |= set(named) - wide.accepted - wide.refused
        self.to_read += others
        self.is_done = False

    def go_on(self, beacons: BeaconLog, ends_at: float) -> None:
        """Check and read until then (monotonic s)."""
        watermarks = beacons.watermarks()
        if self._check(beacons, watermarks, ends_at):
            self.to_read = clamp(without(merge_ranges(self.to_read), self.covered), watermarks)
            if self.has_begun or records_in(self.to_read) > self.most_records:
                self.has_begun = True
                self._read(beacons, ends_at)
            else:
                self.to_read = []
            self.is_done = not self.to_read

    def _check(self, beacons: BeaconLog, watermarks: Mapping[int, Watermarks], ends_at: float) -> bool:
        """Return whether all ranges are checked by now."""
        for start_s, wide in self.windows.items():
            while wide.unchecked:
                wide.check = wide.check or NamedRanges(beacons, self.pipeline, start_s)
                item = wide.unchecked.pop()
                if wide.check.is_plausible(item, watermarks):
                    wide.accepted.add(item)
                    self.to_read += wide.check.begun([item])
                else:
                    wide.refused.add(item)
                if time.monotonic() >= ends_at:
                    return False
        return True

    def _read(self, beacons: BeaconLog, ends_at: float) -> None:
        starts_by_key = {block_key(self.pipeline, start_s): start_s for start_s in self.windows}
        records = beacons.records(self.to_read)
        last = None
        for last in records:
            start_s = starts_by_key.get(last.key or b"")
            if start_s is not None and start_s in self.windows:
                self._keep(start_s, last)
            if time.monotonic() >= ends_at:
                break
        else:
            last = None
        records.close()
        done_ranges, self.to_read = _split(self.to_read, last)
        self.covered = merge_ranges([*self.covered, *done_ranges], gap=0)

    def _keep(self, start_s: int, record: LogRecord) -> None:
        place = OffsetRange(record.partition, record.offset, record.offset)
        if self.places is not None:
            self.places.append(place)
            return
        self.windows[start_s].kept.append(record)
        self._kept_bytes += len(record.value)
        while self._kept_bytes > KEPT_BYTES and len(self.windows) > 1:  # the last waits for a read of its own
            start_s, given_up = self.windows.popitem()
            self.later.add(start_s)
            self._kept_bytes -= sum(len(record.value) for record in given_up.kept)
        if self._kept_bytes > KEPT_BYTES:
            (alone,) = self.windows.values()
            self.places = [OffsetRange(record.partition, record.offset, record.offset) for record in alone.kept]
            alone.kept.clear()


class WideReads:
    """The wide windows of all pipelines."""

    def __init__(self, beacons: BeaconLog) -> None:
        self._beacons = beacons
        self._reads: dict[str, _WideRead] = {}
        self._turns = 0
        self._most_records = MANY_RECORDS
        self._asked_at = float("-inf")

    def waits(self, window: WindowKey) -> bool:
        """Return whether a window is still being read, or waits for that; it need not be asked for until then."""
        pipeline, start_s = window
        read = self._reads.get(pipeline)
        return read is not None and (start_s in read.later or (start_s in read.windows and not read.is_done))

    def go_on(self) -> int:
        """Read on for the pipeline whose turn it is; return how many records were passed."""
        now = time.monotonic()
        for pipeline in [name for name, read in self._reads.items() if read.is_done and now - read.asked_at > UNUSED_S]:
            del self._reads[pipeline]
        waiting = list(islice((read for read in self._reads.values() if not read.is_done), READS_AT_ONCE))
        if not waiting:
            return 0
        self._turns += 1
        read = waiting[self._turns % len(waiting)]
        before = records_in(read.covered)
        try:
            read.go_on(self._beacons, now + READ_S)
        except Exception as error:
            if is_outage(error):
                raise
            read.is_done, read.error = True, error
        read.asked_at = time.monotonic()
        return records_in(read.covered) - before

    def most_records(self, watermarks: Mapping[int, Watermarks], now_ms: int) -> int:
        """Return how many records one pipeline may have read in one turn."""
        if time.monotonic() - self._asked_at >= ASKED_EVERY_S:
            recent = self._beacons.offsets_at(now_ms - RECENT_MS)
            taken = sum(marks.high - recent.get(partition, marks.high) for partition, marks in watermarks.items())
            self._most_records, self._asked_at = max(MANY_RECORDS, taken), time.monotonic()
        return self._most_records

    def share(
        self,
        window: WindowKey,
        named: Sequence[OffsetRange],
        others: Sequence[OffsetRange],
        watermarks: Mapping[int, Watermarks],
        most_records: int,
        *,
        is_doubtful: bool,
    ) -> Share | None:
        """Return what to read of a window now; None if it is wide, and waits until it was read.

        `named`: the ranges of its tallies; `others`: those around last reports of emitters that fell silent.

        Raises:
            Exception: what the read of the wide window failed for.
        """
        pipeline, start_s = window
        read = self._reads.get(pipeline)
        if read is not None and start_s in read.windows:
            return self._share_of(read, start_s, named, others, watermarks)
        ranges = clamp(in_few_ranges([*named, *others]), watermarks)
        if not is_doubtful and records_in(ranges) <= most_records:
            return Share(ranges)
        if read is None:
            read = self._reads[pipeline] = _WideRead(pipeline, most_records)
            log.info("wide window read", pipeline=pipeline, window_start=start_s, records=records_in(ranges))
        if not read.has_begun and len(read.windows) < WINDOWS_AT_ONCE:
            read.want(start_s, named, others)
        else:
            read.later.add(start_s)
        return None

    def done(self, windows: Iterable[WindowKey]) -> None:
        """Forget what was read of these windows: they are closed."""
        for pipeline, start_s in windows:
            read = self._reads.get(pipeline)
            if read is not None and read.windows.pop(start_s, None) is not None and not read.windows:
                del self._reads[pipeline]

    def _share_of(
        self,
        read: _WideRead,
        start_s: int,
        named: Sequence[OffsetRange],
        others: Sequence[OffsetRange],
        watermarks: Mapping[int, Watermarks],
    ) -> Share | None:
        """Return the share of a window that was read; None if its tallies name much more by now."""
        if not read.is_done:
            return None
        if read.error is not None:
            raise read.error
        read.asked_at = time.monotonic()
        wide = read.windows[start_s]
        believed = [*(item for item in named if item not in wide.refused), *others]
        begun = believed if wide.check is None else wide.check.begun(believed)
        remaining = without(clamp(merge_ranges(begun), watermarks), read.covered)
        ranges = fewer_ranges(remaining, MOST_RANGES)
        if records_in(ranges) > read.most_records:
            accepted = wide.accepted if wide.check is None else wide.check.begun(wide.accepted)
            read.want(start_s, named, [*accepted, *others])
            read.has_begun = True
            return None
        if read.places:
            ranges = merge_ranges([*ranges, *fewer_ranges(merge_ranges(read.places), MOST_PLACES)])
        return Share(clamp(ranges, watermarks), wide.kept, wide.refused.intersection(named))


def in_few_ranges(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return merged ranges that hold these, no more of a partition than one read should have."""
    return fewer_ranges(merge_ranges(ranges), MOST_RANGES)


def _split(ranges: Sequence[OffsetRange], reached: LogRecord | None) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return what of these ranges was read up to this record, and what is left; all was read if it is None."""
    if reached is None:
        return list(ranges), []
    index = next(
        number
        for number, item in enumerate(ranges)
        if item.partition == reached.partition and item.first <= reached.offset <= item.last
    )
    item = ranges[index]
    done = OffsetRange(item.partition, item.first, reached.offset)
    remainder = OffsetRange(item.partition, reached.offset + 1, item.last)
    return [*ranges[:index], done], [*([remainder] if remainder.first <= remainder.last else []), *ranges[index + 1 :]]
