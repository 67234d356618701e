"""Reports whose sketches and ranges stay packed: read several times as fast as with `read_report`.

A report is a few numbers and hundreds of bins that are of no use before its window is closed. The bytes of bins and
ranges are kept as they came. They are checked for many reports at once; if any of these is not certainly good,
`read_report` decides for each, so that both accept and refuse the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.avro import decode_long, decode_rows
from lagloss.wire.checks import check_numbers, check_parts, check_report, read_report
from lagloss.wire.format import (
    MAX_COUNT,
    MAX_PARTITIONS,
    MAX_REPORT_PARTS,
    REPORT_SCHEMA,
    BadRecord,
    EmitterReport,
    Progress,
)
from lagloss.wire.sketch import MAX_KEY, MIN_KEY

I64 = npt.NDArray[np.int64]

AT_ONCE: Final = 200
"""Reports that are read together: their bytes fit into a core's cache."""
_MAX_LONG: Final = (1 << 63) - 1


@dataclass(slots=True)
class PackedTally:
    """A tally with the fields of its schema, bins and ranges as they are encoded there.

    Not frozen only because that doubles the cost of making one.
    """

    checkpoint: str
    window_start: int
    replay: str | None
    sample: int
    beacons: int
    payload_bytes: int
    id_sum: int
    dropped: int
    lag_sketch: bytes
    ranges: bytes

    @property
    def lowest_bin(self) -> int | None:
        """Key of the first bin; None if there are no lags."""
        return decode_long(self.lag_sketch) if self.lag_sketch else None


@dataclass(frozen=True, slots=True)
class PackedReport:
    """A report; `head` is all of it but its tallies."""

    head: EmitterReport
    tallies: tuple[PackedTally, ...]


def read_reports(values: Sequence[bytes | None]) -> list[PackedReport | BadRecord]:
    """Return the report of each record of the reports topic, or why the record has to be set aside.

    Both as `read_report` would say, in the order of the records.
    """
    starts = range(0, len(values), AT_ONCE)
    return [report for start in starts for report in _read_some(values[start : start + AT_ONCE])]


def _read_some(values: Sequence[bytes | None]) -> list[PackedReport | BadRecord]:
    reports = [_read(value) for value in values]
    if _are_sound([tally for report in reports if isinstance(report, PackedReport) for tally in report.tallies]):
        return reports
    return [_checked(value, report) for value, report in zip(values, reports, strict=True)]


def _read(value: bytes | None) -> PackedReport | BadRecord:
    """Return the report, whose bins and ranges are not checked yet."""
    try:
        raw = REPORT_SCHEMA.decode(value or b"")
        tallies = tuple(PackedTally(**tally) for tally in raw["tallies"])
        raw["progress"] = tuple(Progress(**progress) for progress in raw["progress"])
        raw["tallies"] = ()
        head = EmitterReport(**raw)
        check_report(head)
        check_parts("tallies", len(tallies))
        for position, tally in enumerate(tallies):
            check_numbers(head.node, tally, position)
    except BadRecord as bad:
        return bad
    return PackedReport(head, tallies)


def _checked(value: bytes | None, report: PackedReport | BadRecord) -> PackedReport | BadRecord:
    try:
        read_report(value)
    except BadRecord as bad:
        return bad
    return report


# -- many tallies at once -----------------------------------------------------------------------------------------


def _are_sound(tallies: Sequence[PackedTally]) -> bool:
    """Return whether the bins and ranges of all these are good."""
    try:
        bins, bin_counts = decode_rows([tally.lag_sketch for tally in tallies], 2)
        ranges, range_counts = decode_rows([tally.ranges for tally in tallies], 3)
    except ValueError:
        return False
    return _are_bins(bins, bin_counts) and _are_ranges(ranges, range_counts)


def _are_bins(rows: I64, ends: I64) -> bool:
    """Return whether the rows (n, 2) up to each end (tallies,) are bins of ascending keys, all of them in range."""
    steps, counts = rows[:, 0], rows[:, 1]
    if not (_within(steps, -2 * MAX_KEY, 2 * MAX_KEY) and _within(counts, 1, MAX_COUNT)):
        return False  # further on, no sum is too large
    sums, tally = np.concatenate(([0], steps.cumsum())), _numbered(ends)
    keys = sums[1:] - sums[_starts(ends)][tally]
    size = np.abs(keys)
    is_bin = (size >= MIN_KEY) & (size <= MAX_KEY) | (size == 0)
    return bool(is_bin.all() and ((steps[1:] > 0) | (tally[1:] != tally[:-1])).all())


def _are_ranges(rows: I64, ends: I64) -> bool:
    """Return whether the rows (n, 3) up to each end (tallies,) are ranges in ascending order, all of them in range."""
    partitions, firsts, lengths = rows.T
    if not _within(np.diff(ends, prepend=0), 0, MAX_REPORT_PARTS):
        return False
    if not (
        _within(partitions, 0, MAX_PARTITIONS - 1) and _within(firsts, 0, _MAX_LONG) and _within(lengths, 0, _MAX_LONG)
    ):
        return False
    places = _numbered(ends) * MAX_PARTITIONS + partitions
    ascend = (places[1:] > places[:-1]) | (places[1:] == places[:-1]) & (firsts[1:] > firsts[:-1])
    return bool(ascend.all() and (firsts <= _MAX_LONG - lengths).all())


def _within(numbers: I64, low: int, high: int) -> bool:
    return not numbers.size or bool(low <= numbers.min() and numbers.max() <= high)


def _starts(ends: I64) -> I64:
    """Return the first row of each tally; shape (tallies,)."""
    return np.concatenate(([0], ends[:-1]))


def _numbered(ends: I64) -> npt.NDArray[np.intp]:
    """Return the position of the tally that each row belongs to; shape (rows,)."""
    return np.repeat(np.arange(ends.size), np.diff(ends, prepend=0))
