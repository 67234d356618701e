"""The account: cumulative, exact, bounded."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.sdk.account import FORGET_S, QUIET_S, Account, add_offset
from lagloss.sdk.packing import Increment, TallyKey
from lagloss.wire.format import OffsetRange
from lagloss.wire.sketch import Sketch, bin_keys

NOW_S = 1_700_000_040
KEY = TallyKey("in", None, NOW_S // 60 * 60)


def increment(key: TallyKey = KEY, *lags_ms: float, id_sum: int = 1) -> Increment:
    return Increment(key, len(lags_ms), id_sum, bin_keys(np.array(lags_ms)), 10 * len(lags_ms))


def test_a_tally_is_the_sum_of_its_blocks_and_names_their_offsets() -> None:
    account = Account("mid")
    account.add(increment(KEY, 1.0, 2.0, id_sum=2**64 - 1), 3, 10, NOW_S)
    account.add(increment(KEY, 4.0, id_sum=7), 3, 11, NOW_S)
    account.add(increment(KEY, 8.0, id_sum=1), 5, 2, NOW_S)
    account.drop(KEY, 4, NOW_S)
    (tally,) = account.changed()
    assert (tally.checkpoint, tally.beacons, tally.dropped, tally.payload_bytes) == ("mid.in", 4, 4, 40)
    assert tally.id_sum == 7
    assert tally.lag_sketch.bins() == Sketch.of(np.array([1.0, 2.0, 4.0, 8.0])).bins()
    assert tally.ranges == (OffsetRange(3, 10, 11), OffsetRange(5, 2, 2))


def test_what_was_reported_is_reported_again_only_when_it_changes_and_then_in_full() -> None:
    account = Account("mid")
    account.add(increment(KEY, 1.0), 0, 0, NOW_S)
    account.reported(account.changed())
    assert account.changed() == []
    account.add(increment(KEY, 1.0), 0, 1, NOW_S)
    assert [tally.beacons for tally in account.changed()] == [2]


def test_a_quiet_tally_is_packed_and_goes_on_where_it_was() -> None:
    account = Account("mid")
    account.add(increment(KEY, 1.0, -5.0), 1, 4, NOW_S)
    before = account.tally(KEY)
    account.tidy(NOW_S + QUIET_S + 1)
    assert before is not None
    assert [tally.beacons for tally in account.changed()] == [2]  # not yet reported: not yet packed
    account.reported(account.changed())
    account.tidy(NOW_S + QUIET_S + 1)
    packed = account.tally(KEY)
    assert packed is not None
    assert packed.ranges == before.ranges
    account.add(increment(KEY, 3.0), 1, 9, NOW_S + QUIET_S + 2)
    (after,) = account.changed()
    assert (after.beacons, after.payload_bytes, after.id_sum) == (3, 30, 2)
    assert after.ranges == (OffsetRange(1, 4, 4), OffsetRange(1, 9, 9))
    assert after.lag_sketch.count == 3


def test_a_tally_speaks_of_the_lowest_sample_it_was_ever_made_with_also_once_it_was_packed() -> None:
    account = Account("mid")
    account.add(replace(increment(KEY, 1.0), sample=500), 0, 0, NOW_S)
    assert [tally.sample for tally in account.changed()] == [500]
    account.reported(account.changed())
    account.thin(KEY, 800, NOW_S)
    assert account.changed() == []
    account.thin(KEY, 300, NOW_S)
    account.thin(KEY._replace(place="out"), 300, NOW_S)  # all that was observed there was left out
    assert [(tally.beacons, tally.sample) for tally in account.changed()] == [(1, 300), (0, 300)]
    account.reported(account.changed())
    account.tidy(NOW_S + QUIET_S + 1)
    account.add(increment(KEY, 1.0), 0, 1, NOW_S)
    assert [(tally.beacons, tally.sample) for tally in account.changed()] == [(2, 300)]


def test_windows_that_the_topics_no_longer_keep_are_forgotten() -> None:
    account = Account("mid")
    account.add(increment(KEY, 1.0), 0, 0, NOW_S)
    account.reported(account.changed())
    account.tidy(NOW_S + QUIET_S + 1)
    account.tidy(KEY.window_start + FORGET_S + 1)
    assert len(account) == 0
    assert account.tally(KEY) is None


def test_past_its_bound_an_account_is_blind_and_never_final_again() -> None:
    account = Account("mid", max_tallies=1)
    account.settle(NOW_S * 1000)
    account.add(increment(KEY, 1.0), 0, 0, NOW_S)
    account.add(increment(KEY._replace(place="out"), 1.0), 0, 1, NOW_S)
    account.settle((NOW_S + 60) * 1000)
    assert account.blind
    assert account.final_through == NOW_S
    assert len(account) == 1


@pytest.mark.parametrize(("final", "expected"), [(True, NOW_S - 3600), (False, 0)])
def test_final_through_follows_the_clock_back_too_or_stays_at_zero(final: bool, expected: int) -> None:
    account = Account("mid", final=final)
    account.settle(NOW_S * 1000 + 999)
    account.settle((NOW_S - 3600) * 1000)
    assert account.final_through == expected


@given(st.lists(st.integers(0, 60), min_size=1, max_size=40))
def test_ranges_cover_every_offset_begin_and_end_at_one_and_stay_few(offsets: list[int]) -> None:
    ranges = [OffsetRange(2, offsets[0], offsets[0])]
    for offset in offsets[1:]:
        ranges = add_offset(ranges, offset)
    assert len(ranges) <= 4
    assert all(any(place.first <= offset <= place.last for place in ranges) for offset in offsets)
    assert {edge for place in ranges for edge in (place.first, place.last)} <= set(offsets)
    assert all(left.last + 1 < right.first for left, right in itertools.pairwise(ranges))
    assert {place.partition for place in ranges} == {2}


def test_the_nearest_ranges_merge_first() -> None:
    ranges = [OffsetRange(0, at, at) for at in (0, 100, 110, 300)]
    assert add_offset(ranges, 500) == [
        OffsetRange(0, 0, 0),
        OffsetRange(0, 100, 110),
        OffsetRange(0, 300, 300),
        OffsetRange(0, 500, 500),
    ]
