"""Offset ranges: those of tallies, checked, and converted to the ranges of single Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final

from lagloss.wire.format import OffsetRange

SMALL_GAP = 2_000
"""Ranges with a gap of at most this many records between them are read as one: skipping costs a read of its own."""
MERGED_RANGES: Final = 4
"""A tally with fewer ranges of a partition has merged none there (docs/wire-format.md): they hold its blocks only."""
MANY_RECORDS: Final = 500_000
"""More records than are read for one window, whatever its tallies name, without a look at where they lie."""
MANY_BLOCKS: Final = 10_000
"""More blocks of one partition than an emitter sends for one window."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Offsets that the broker holds of one partition: from `low` to before `high`."""

    low: int
    high: int


def records_in(ranges: Iterable[OffsetRange]) -> int:
    """Return how many records these ranges span; they do not overlap."""
    return sum(item.last - item.first + 1 for item in ranges)


def is_doubtful(ranges: Sequence[OffsetRange], beacons: int) -> bool:
    """Return whether a tally of so many beacons, so of at most as many blocks, names far more records of a partition
    than it can have blocks there, though too few ranges to have merged any.

    Rarely true of an honest one: if acknowledgements came out of order, a gap between merged ranges may have closed.
    """
    explained = min(beacons, MANY_BLOCKS) + SMALL_GAP
    if sum(item.last - item.first for item in ranges) <= explained:
        return False
    ordered = sorted(ranges, key=lambda item: item.partition)
    of_each = (list(group) for _, group in groupby(ordered, key=lambda item: item.partition))
    return any(len(group) < MERGED_RANGES and records_in(group) > explained for group in of_each)


def merge_ranges(ranges: Iterable[OffsetRange], gap: int = SMALL_GAP) -> list[OffsetRange]:
    """Return the ranges by partition and offset, joined if they overlap or lie within `gap` records."""
    merged: list[OffsetRange] = []
    for item in sorted(ranges, key=lambda offset_range: (offset_range.partition, offset_range.first)):
        last = merged[-1] if merged else None
        if last is not None and last.partition == item.partition and item.first <= last.last + 1 + gap:
            merged[-1] = OffsetRange(last.partition, last.first, max(last.last, item.last))
        else:
            merged.append(item)
    return merged


def fewer_ranges(ranges: Sequence[OffsetRange], most: int) -> list[OffsetRange]:
    """Return merged ranges as at most so many of each partition: the nearest are joined."""
    ranges_: list[OffsetRange] = []
    for _, group in groupby(ranges, key=lambda item: item.partition):
        of_it = list(group)
        splits = widest_gaps([after.first - before.last for before, after in pairwise(of_it)], most)
        for index, item in enumerate(of_it):
            if index == 0 or index - 1 in splits:
                ranges_.append(item)
            else:
                ranges_[-1] = OffsetRange(item.partition, ranges_[-1].first, item.last)
    return ranges_


def widest_gaps(gaps: Sequence[int], parts: int) -> set[int]:
    """Return the positions of the gaps that are left where what lies between them is joined to so many parts at most;
    a gap below 1 is none."""
    by_size = sorted((index for index, gap in enumerate(gaps) if gap > 0), key=lambda index: gaps[index], reverse=True)
    return set(by_size[: parts - 1])


def without(ranges: Iterable[OffsetRange], others: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return what of these ranges lies in none of the others."""
    remaining = list(ranges)
    for other in others:
        remaining = [
            part
            for item in remaining
            for part in (
                (
                    OffsetRange(item.partition, item.first, min(item.last, other.first - 1)),
                    OffsetRange(item.partition, max(item.first, other.last + 1), item.last),
                )
                if item.partition == other.partition and item.first <= other.last and other.first <= item.last
                else (item,)
            )
            if part.first <= part.last
        ]
    return remaining


def clamp(ranges: Iterable[OffsetRange], watermarks: Mapping[int, Watermarks]) -> list[OffsetRange]:
    """Cut the ranges to what the broker holds: Spark would wait two minutes for an end past the log's end."""
    clamped = []
    for item in ranges:
        marks = watermarks.get(item.partition)
        if marks is None:
            continue
        first, last = max(item.first, marks.low), min(item.last, marks.high - 1)
        if first <= last:
            clamped.append(OffsetRange(item.partition, first, last))
    return clamped


def rounds(ranges: Iterable[OffsetRange]) -> list[list[OffsetRange]]:
    """Split the ranges into few sets with at most one per partition: a read of Kafka's source takes one range of each
    partition."""
    layers: list[list[OffsetRange]] = []
    depth: dict[int, int] = {}
    for item in ranges:
        level = depth.get(item.partition, 0)
        depth[item.partition] = level + 1
        if level == len(layers):
            layers.append([])
        layers[level].append(item)
    return layers
