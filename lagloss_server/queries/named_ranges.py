"""Ranges that tallies name, checked against the log: each begins and ends with a block of its window.

So do all that an SDK names. Whoever only knows an address, or miscounts, could else have the whole log read for a few
bytes of a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lagloss.wire.format import MAX_AHEAD_MS, OffsetRange, block_key
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.queries.offset_ranges import (
    MANY_RECORDS,
    SMALL_GAP,
    Watermarks,
    is_doubtful,
    merge_ranges,
    records_in,
)


class NamedRanges:
    """Check of the ranges that the tallies of one window name."""

    def __init__(self, log: BeaconLog, pipeline: str, window_start_s: int) -> None:
        self._log = log
        self._key = block_key(pipeline, window_start_s)
        self._begin = log.offsets_at(window_start_s * 1000 - MAX_AHEAD_MS)

    def is_plausible(self, item: OffsetRange, watermarks: Mapping[int, Watermarks]) -> bool:
        """Return whether a range begins and ends with a block of the window, as far as the log still holds it. A small
        one is not looked at. `watermarks` must have been asked for after the range was named."""
        marks = watermarks.get(item.partition)
        if marks is None or item.last >= marks.high:
            return False
        if item.last - item.first < SMALL_GAP:
            return True
        ends = [offset for offset in (item.first, item.last) if offset >= marks.low]
        return all(self._is_own(item.partition, offset) for offset in ends)

    def begun(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """Cut off what was appended before any good block of the window could be, without loss: its window would start
        too far ahead."""
        firsts = ((item, max(item.first, self._begin.get(item.partition, 0))) for item in ranges)
        return [OffsetRange(item.partition, first, item.last) for item, first in firsts if first <= item.last]

    def _is_own(self, partition: int, offset: int) -> bool:
        return any(record.key == self._key for record in self._log.records([OffsetRange(partition, offset, offset)]))


def believed(
    log: BeaconLog, pipeline: str, window_start_s: int, named: Sequence[tuple[Sequence[OffsetRange], int]]
) -> list[OffsetRange]:
    """Return the ranges of tallies, each with its number of beacons, that are to be read: those of doubtful ones only
    as far as they are plausible, and of all where they span more than `MANY_RECORDS`."""
    is_wide = records_in(merge_ranges(item for ranges, _ in named for item in ranges)) > MANY_RECORDS
    plausible, doubtful = list[OffsetRange](), list[OffsetRange]()
    for ranges, beacons in named:
        (doubtful if is_wide or is_doubtful(ranges, beacons) else plausible).extend(ranges)
    if doubtful:
        check, watermarks = NamedRanges(log, pipeline, window_start_s), log.watermarks()
        plausible += check.begun(item for item in doubtful if check.is_plausible(item, watermarks))
    return plausible
