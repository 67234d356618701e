"""Offset ranges: merging loses nothing, clamping keeps within the log, rounds have one range a partition."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import OffsetRange
from lagloss_server.queries.offset_ranges import Watermarks, clamp, fewer_ranges, merge_ranges, rounds, without

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


@given(RANGES, st.integers(1, 5))
def test_fewer_ranges_hold_the_same_offsets_and_are_no_more_of_a_partition(
    ranges: list[OffsetRange], most: int
) -> None:
    merged = merge_ranges(ranges, gap=0)
    fewer = fewer_ranges(merged, most)
    assert offsets(fewer) >= offsets(merged)
    for partition in range(3):
        before, after = ([item for item in some if item.partition == partition] for some in (merged, fewer))
        assert len(after) == min(most, len(before))
        inner = sorted((later.first - item.last for item, later in itertools.pairwise(before)), reverse=True)
        left = sorted((later.first - item.last for item, later in itertools.pairwise(after)), reverse=True)
        assert left == inner[: most - 1]  # the nearest are joined


@given(RANGES, RANGES)
def test_ranges_without_others_hold_what_lies_in_none_of_them(
    ranges: list[OffsetRange], others: list[OffsetRange]
) -> None:
    merged = merge_ranges(ranges, gap=0)
    left = without(merged, others)
    assert offsets(left) == offsets(merged) - offsets(others)
    assert left == sorted(left, key=lambda item: (item.partition, item.first))
