"""Offset ranges: merging loses nothing, clamping keeps within the log, rounds have one range a partition."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import OffsetRange
from lagloss_server.queries.offset_ranges import Watermarks, clamp, merge_ranges, rounds

RANGES = st.lists(
    st.builds(
        lambda partition, first, size: OffsetRange(partition, first, first + size),
        st.integers(0, 2),
        st.integers(0, 60),
        st.integers(0, 10),
    ),
    max_size=12,
)


def offsets(ranges: list[OffsetRange]) -> set[tuple[int, int]]:
    return {(found.partition, offset) for found in ranges for offset in range(found.first, found.last + 1)}


@given(RANGES)
def test_merged_ranges_hold_the_same_offsets_apart_from_small_gaps(ranges: list[OffsetRange]) -> None:
    assert offsets(merge_ranges(ranges, gap=0)) == offsets(ranges)
    assert offsets(merge_ranges(ranges, gap=3)) >= offsets(ranges)


@given(RANGES)
def test_merged_ranges_of_a_partition_lie_apart(ranges: list[OffsetRange]) -> None:
    merged = merge_ranges(ranges, gap=3)
    for before, after in itertools.pairwise(merged):
        assert before.partition < after.partition or after.first > before.last + 4


@given(RANGES, st.integers(0, 30), st.integers(0, 40))
def test_clamped_ranges_lie_within_the_log(ranges: list[OffsetRange], low: int, size: int) -> None:
    held = {0: Watermarks(low, low + size), 1: Watermarks(0, 1000)}
    within = {(p, o) for p, o in offsets(ranges) if p in held and held[p].low <= o < held[p].high}
    assert offsets(clamp(ranges, held)) == within


@given(RANGES)
def test_a_round_takes_one_range_of_a_partition(ranges: list[OffsetRange]) -> None:
    merged = merge_ranges(ranges, gap=0)
    taken = rounds(merged)
    assert all(len({found.partition for found in layer}) == len(layer) for layer in taken)
    assert sorted((f.partition, f.first) for layer in taken for f in layer) == [(f.partition, f.first) for f in merged]
