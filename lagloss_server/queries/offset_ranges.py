"""Offset ranges: those of tallies, converted to the ranges of single Spark reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lagloss.wire.format import OffsetRange

SMALL_GAP = 2_000
"""Ranges with a gap of at most this many records between them are read as one: skipping costs a read of its own."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Offsets that the broker holds of one partition: from `low` to before `high`."""

    low: int
    high: int


def merge_ranges(ranges: Iterable[OffsetRange], gap: int = SMALL_GAP) -> list[OffsetRange]:
    """Return the ranges by partition and offset, joined if they overlap or lie within `gap` records."""
    merged: list[OffsetRange] = []
    for item in sorted(ranges, key=lambda found: (found.partition, found.first)):
        last = merged[-1] if merged else None
        if last is not None and last.partition == item.partition and item.first <= last.last + 1 + gap:
            merged[-1] = OffsetRange(last.partition, last.first, max(last.last, item.last))
        else:
            merged.append(item)
    return merged


def clamp(ranges: Iterable[OffsetRange], held: Mapping[int, Watermarks]) -> list[OffsetRange]:
    """Cut the ranges to what the broker holds: Spark would wait two minutes for an end past the log's end."""
    clamped = []
    for item in ranges:
        marks = held.get(item.partition)
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
        at = depth.get(item.partition, 0)
        depth[item.partition] = at + 1
        if at == len(layers):
            layers.append([])
        layers[at].append(item)
    return layers
