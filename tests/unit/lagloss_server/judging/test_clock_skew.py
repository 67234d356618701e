"""Clock skew: measured as the smallest difference over the last minute of reports, told in whole seconds."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.judging.clock_skew import STEP_MS, Skew, apart_ms
from lagloss_server.judging.evidence import EmitterState, Evidence, TallyState

NOON = 1_780_012_800_000


def measured(*reports: tuple[int, int]) -> Skew:
    """Of reports appended so many ms after noon, so many ms after they were sent."""
    found = Skew()
    for after_ms, difference_ms in reports:
        found = found.merged(Skew.of(NOON + after_ms, NOON + after_ms - difference_ms))
    return found


def test_the_smallest_difference_counts_as_it_has_the_least_transit_in_it() -> None:
    assert measured((0, 90_040), (1_000, 90_005), (2_000, 93_000)).ms == 90_005
    assert measured((0, -89_000), (1_000, -89_990)).ms == -89_990
    assert Skew().ms == 0


def test_a_clock_that_was_set_right_is_believed_after_two_minutes_with_reports() -> None:
    assert measured((0, -90_000), (61_000, 5)).ms == -90_000
    assert measured((0, -90_000), (61_000, 5), (130_000, 6)).ms == 5
    assert measured((0, -90_000), (3_600_000, 5)).ms == -90_000  # its last minute of reports, however long ago


def test_batches_may_come_in_any_order_and_what_is_kept_does_not_grow() -> None:
    rng = random.Random(1)
    reports = [(rng.randrange(600_000), rng.randrange(-500, 500)) for _ in range(200)]
    in_order = measured(*sorted(reports))
    assert measured(*reports) == in_order
    assert measured(*reports[:90]).merged(Skew.stored(measured(*reports[90:]).to_store())) == in_order
    assert len(in_order.smallest) == 2


@given(
    st.lists(
        st.tuples(
            st.integers(0, 20 * 60_000), st.sampled_from([0, 20, 4_999, 5_000, 7_000, -6_000, 3_600_000, -9_000])
        ),
        max_size=40,
    ),
    st.integers(0, 40),
    st.integers(-1, 21),
)
def test_what_is_kept_says_as_much_of_each_window_as_all_reports(
    reports: list[tuple[int, int]], split: int, minute: int
) -> None:
    reports = sorted(reports)
    while 0 < split < len(reports) and reports[split - 1][0] // 60_000 == reports[split][0] // 60_000:
        split -= 1  # of a minute in two batches, the later of three minutes and more, the larger difference can stay
    found = measured(*reports[:split]).merged(measured(*reports[split:]))
    smallest: dict[int, int] = {}
    for after_ms, ms in reports:
        smallest[after_ms // 60_000] = min(ms, smallest.get(after_ms // 60_000, ms))
    counted = [ms for at, ms in smallest.items() if at + (ms > 0) >= minute and abs(ms) >= STEP_MS]
    expected = apart_ms([min((smallest[at] for at in sorted(smallest)[-2:]), default=0), *counted])
    assert apart_ms(found.readings_ms(NOON // 1000 + 60 * minute)) == expected
    assert len(found.smallest) <= 2 + 4  # two values on either side


def by_a_clock(*moments: tuple[int, int]) -> Skew:
    """Of reports appended so many ms after noon, without transit, by a clock that is behind by so much."""
    found, before_ms = Skew(), 0
    for after_ms, behind_ms in moments:
        sent_at_ms = NOON + after_ms - behind_ms
        found = found.merged(Skew.of(NOON + after_ms, sent_at_ms, before_ms))
        before_ms = sent_at_ms
    return found


@given(st.integers(1, 119), st.integers(6, 600), st.integers(1, 500))
def test_a_clock_that_is_set_back_for_however_short_counts_as_far_as_that(
    begins_s: int, behind_s: int, lasts_s: int
) -> None:
    """A report each second: where correct ones of the same minute hide it, the step itself is what shows it."""
    is_behind = range(begins_s, begins_s + lasts_s)
    found = by_a_clock(*((1_000 * second, 1_000 * behind_s * (second in is_behind)) for second in range(640)))
    for second in is_behind:
        assert apart_ms(found.readings_ms(NOON // 1000 + second // 60 * 60)) >= 1_000 * behind_s


def test_what_a_clock_was_set_back_by_is_as_well_known_in_any_order_and_ends_with_the_windows_after_it() -> None:
    reports = [(0, 0), (1_000, 30_000), (2_000, 30_000), (70_000, 0), (80_000, 40_000), (90_000, 0)]
    found = by_a_clock(*reports)
    assert found.set_back == ((NOON // 60_000 + 1, 40_000), (NOON // 60_000, 30_000))
    assert Skew.stored(found.to_store()) == found
    later = [apart_ms(found.readings_ms(NOON // 1000 + 60 * minute)) for minute in range(5)]
    assert later == [40_000, 40_000, 40_000, 40_000, 0]
    assert by_a_clock((0, 0), (1_000, 4_000)).set_back == ()  # within rule 4's own margin


@pytest.mark.parametrize(
    ("skews", "apart"),
    [
        ((), 0),
        ((999, 20), 0),
        ((-400, 500), 0),
        ((-400, 600), 1_000),
        ((1_001,), 2_000),
        ((90_005,), 91_000),
        ((-90_000, 5), 91_000),
        ((-60_000, 60_000), 120_000),
    ],
)
def test_clocks_are_apart_by_the_one_furthest_ahead_and_the_one_furthest_behind(
    skews: tuple[int, ...], apart: int
) -> None:
    assert apart_ms(skews) == apart


def test_only_clocks_that_may_reach_into_a_window_count() -> None:
    start_s = NOON // 1000
    tally = TallyState(b"a", "src", "src.in", None, 1, 0)

    def skew(emitter: bytes, appended_at: int, sent_at: int) -> int:
        state = EmitterState(emitter, "src", 0, sent_at, True, 0, appended_at, 0, Skew.of(sent_at - 90_000, sent_at))
        return Evidence(start_s, NOON + 120_000, [state], [tally]).clock_skew_ms

    assert skew(b"a", 0, 0) == 90_000  # it told of the window
    assert skew(b"b", NOON - 60_000, 0) == 90_000
    assert skew(b"b", NOON - 60_001, NOON - 60_001) == 0  # ended before
    assert skew(b"b", NOON - 120_000, NOON - 30_000) == 90_000  # not by its own clock
