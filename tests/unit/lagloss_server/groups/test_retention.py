"""Distance to retention: when deletion meets a group, against groups and fronts that are walked offset by offset."""

from __future__ import annotations

from fractions import Fraction
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lagloss_server.groups.retention import (
    DeletionFront,
    LossAhead,
    RetentionLimits,
    deleted_unread,
    fronts,
    loss_ahead,
    size_front,
    time_front,
)
from lagloss_server.groups.velocity import OffsetReading

LAGS = st.integers(1, 200)
RATES = st.integers(0, 40)


def first_lost(front: DeletionFront, lag: int, commits_per_s: int) -> tuple[Fraction, int] | None:
    """Walk the waiting messages until one is deleted before the group, which takes them in one after the other, has
    come to its offset: seconds until then, and how many wait from there on."""
    for k in range(lag):
        deleted = Fraction(front.arrives_s) + (0 if front.per_s == inf else k / Fraction(front.per_s))
        if commits_per_s == 0 or deleted < Fraction(k, commits_per_s):
            return deleted, lag - k
    return None


@example(2, 3, 4, 1)  # both reach the last message but one at the same time, after 3 s
@given(st.integers(0, 60), st.integers(1, 40), LAGS, RATES)
def test_the_first_loss_is_where_a_walk_along_the_offsets_meets_it(
    arrives_s: int, per_s: int, lag: int, commits_per_s: int
) -> None:
    front = DeletionFront("time", arrives_s, per_s)
    found, walked = loss_ahead([front], lag, commits_per_s), first_lost(front, lag, commits_per_s)
    if walked is None:
        # the walk has whole offsets: at most the last one's own time is between both
        assert found is None or found.messages <= 1
    else:
        assert found is not None
        step_s = 1 / per_s
        assert float(walked[0]) - step_s - 1e-9 <= found.in_s <= float(walked[0]) + 1e-9
        assert walked[1] <= found.messages <= walked[1] + 1


@given(st.integers(1, 60), st.integers(1, 60), LAGS)
def test_a_group_that_does_not_move_loses_all_that_waits_from_when_the_front_arrives(
    arrives_s: int, per_s: int, lag: int
) -> None:
    assert loss_ahead([DeletionFront("time", arrives_s, per_s)], lag, 0.0) == LossAhead(arrives_s, lag)


@given(st.integers(0, 60), st.integers(1, 40), LAGS, st.integers(0, 40))
def test_a_group_faster_than_the_front_loses_nothing(arrives_s: int, per_s: int, lag: int, more: int) -> None:
    assert loss_ahead([DeletionFront("size", arrives_s, per_s)], lag, per_s + more) is None


@given(st.integers(1, 60), st.integers(1, 40), LAGS, RATES, st.integers(0, 20))
def test_a_faster_group_loses_no_more_and_no_sooner(
    arrives_s: int, per_s: int, lag: int, commits_per_s: int, more: int
) -> None:
    front = DeletionFront("time", arrives_s, per_s)
    slow, fast = (loss_ahead([front], lag, rate) for rate in (commits_per_s, commits_per_s + more))
    if slow is None:
        assert fast is None
    elif fast is not None:
        assert fast.in_s >= slow.in_s - 1e-9
        assert fast.messages <= slow.messages


def test_the_sooner_of_two_limits_counts() -> None:
    ahead = [DeletionFront("time", 50, 4), DeletionFront("size", 20, 4)]
    assert loss_ahead(ahead, 100, 0.0) == LossAhead(20, 100)
    assert loss_ahead([], 100, 0.0) is None


def test_time_moves_the_front_as_fast_as_the_backlog_came() -> None:
    assert time_front(3_600_000, 3_000_000, 6_000) == DeletionFront("time", 600, 2)
    assert time_front(3_600_000, 4_000_000, 6_000).arrives_s == 0  # the cleaner is late
    assert time_front(3_600_000, -1_000, 6_000) == DeletionFront("time", 3_601, inf)
    stamped_ahead = time_front(10_000, 0, 60)
    assert loss_ahead([stamped_ahead], 60, 5.0) == LossAhead(10, 10)  # all at once, when 50 of them are taken in


def test_size_moves_the_front_as_fast_as_the_log_grows() -> None:
    assert size_front(10_000, 10.0, 400, 3.0) == DeletionFront("size", 200, 3)
    assert size_front(1_000, 10.0, 400, 3.0) == DeletionFront("size", 0, 3)
    assert size_front(1_000, 10.0, 400, 0.0) is None


def test_a_limit_is_left_out_where_what_it_goes_by_is_not_known() -> None:
    both = RetentionLimits(retention_ms=10_000, retention_bytes=10_000)
    assert [front.limit for front in fronts(both, 5, 1_000, 10.0, 1.0)] == ["time", "size"]
    assert [front.limit for front in fronts(both, 5, None, 10.0, 1.0)] == ["size"]
    assert [front.limit for front in fronts(both, 5, 1_000, None, 1.0)] == ["time"]
    assert [front.limit for front in fronts(both, 5, 1_000, 10.0, None)] == ["time"]
    assert fronts(RetentionLimits(), 5, 1_000, 10.0, 1.0) == []


STEPS = st.lists(st.tuples(st.sampled_from(["append", "commit", "delete"]), st.integers(1, 9)), min_size=1, max_size=30)


@given(STEPS, st.booleans())
def test_what_is_deleted_unread_is_each_offset_that_goes_before_the_group_committed_past_it(
    steps: list[tuple[str, int]], commits_at_first: bool
) -> None:
    start, end, committed = 0, 0, 0 if commits_at_first else None
    before = OffsetReading(0, committed, start, end)
    lost: set[int] = set()
    counted = 0
    for at, (what, number) in enumerate(steps, start=1):
        if what == "append":
            end += number
        elif what == "commit":  # of what it took in from where it stands
            committed = min(end, max(committed or 0, start) + number)
        else:
            gone = range(start, min(end, start + number))
            lost |= {offset for offset in gone if offset >= (committed or 0)}
            start = gone.stop
        now = OffsetReading(at, committed, start, end)
        counted += deleted_unread(before, now)
        before = now
    assert counted == len(lost)


@pytest.mark.parametrize(
    ("first", "unread"),
    [(OffsetReading(0, 10, 30, 50), 20), (OffsetReading(0, 30, 30, 50), 0), (OffsetReading(0, None, 30, 50), 0)],
)
def test_a_first_reading_counts_the_gap_behind_a_commit(first: OffsetReading, unread: int) -> None:
    assert deleted_unread(None, first) == unread


def test_a_topic_created_anew_deleted_nothing() -> None:
    assert deleted_unread(OffsetReading(0, 10, 30, 50), OffsetReading(1, 10, 0, 5)) == 0
