"""Time ranges: the start is in them, the end is not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.time_range import TimeRange

MOMENTS = st.integers(0, 600)
RANGES = st.tuples(MOMENTS, MOMENTS).map(lambda both: TimeRange(min(both), max(both)))


def moments(some: TimeRange | None) -> set[int]:
    return set() if some is None else set(range(some.from_s, some.to_s))


@given(RANGES)
def test_the_minutes_of_a_range_are_the_windows_that_start_in_it(some: TimeRange) -> None:
    assert some.minutes == len([moment for moment in moments(some) if moment % 60 == 0])
    assert some.length_s == len(moments(some))


@given(RANGES, RANGES)
def test_what_is_clipped_is_what_both_ranges_have(some: TimeRange, other: TimeRange) -> None:
    clipped = some.clipped(other.from_s, other.to_s)
    assert moments(clipped) == moments(some) & moments(other)
    assert clipped is None or (some.contains(clipped) and other.contains(clipped))


def test_a_range_is_written_as_urls_and_documents_have_it() -> None:
    assert TimeRange(1_795_250_400, 1_795_254_000).bounds() == {
        "from": "2026-11-21T08:40:00Z",
        "to": "2026-11-21T09:40:00Z",
    }
