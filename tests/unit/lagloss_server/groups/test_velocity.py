"""Velocity of consumer groups: rates and statuses, against groups that are stepped second by second."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lagloss_server.groups.velocity import (
    FULL_MS,
    LEAST_MS,
    SPAN_MS,
    STATUSES,
    OffsetReading,
    Status,
    Velocity,
    catches_up_s,
    recent,
    status,
    velocity,
    worst,
)

NOW_MS = 1_795_250_400_000


def steady(
    commits: int, appends: int, lag: int, seconds: Iterable[int] = range(0, 301, 10), start: int = 0
) -> list[OffsetReading]:
    """Readings of a group that commits and of a log that grows evenly, per second."""
    return [
        OffsetReading(NOW_MS + 1_000 * at, 1_000 + commits * at, start, 1_000 + lag + appends * at) for at in seconds
    ]


@given(
    st.integers(0, 500),
    st.integers(0, 500),
    st.lists(st.integers(0, 299), max_size=20, unique=True),
)
def test_a_steady_rate_is_found_however_irregular_the_reads(commits: int, appends: int, seconds: list[int]) -> None:
    found = velocity(steady(commits, appends, 200_000, sorted({0, 300, *seconds})))
    assert found == Velocity(commits, appends)
    assert found.gain_per_s == commits - appends


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 100_000))
def test_a_group_catches_up_when_as_much_was_committed_as_waited_and_came_meanwhile(
    commits: int, appends: int, lag: int
) -> None:
    found = catches_up_s(lag, Velocity(commits, appends))
    if lag and commits <= appends:
        assert found is None
    else:
        assert found is not None
        assert commits * found == pytest.approx(lag + appends * found)


@given(st.integers(0, 500), st.integers(1, 900), st.integers(0, 28))
def test_a_reset_leaves_only_what_came_after_it(commits: int, back: int, at: int) -> None:
    before = steady(commits, 500, 200_000)
    committed = before[at].committed
    assert committed is not None
    reset = [
        OffsetReading(one.at_ms, committed - back + commits * (1 + step) * 10 - commits * 10, 0, one.end)
        for step, one in enumerate(before[at + 1 :])
    ]
    found = recent([*before[: at + 1], *reset])
    assert list(found) == reset
    enough = reset[-1].at_ms - reset[0].at_ms >= LEAST_MS
    assert velocity([*before[: at + 1], *reset]).commits_per_s == (commits if enough else None)


def test_readings_before_the_span_say_nothing() -> None:
    long_ago = OffsetReading(NOW_MS - SPAN_MS, 0, 0, 0)
    assert list(recent([long_ago, *steady(3, 2, 10)])) == steady(3, 2, 10)


@pytest.mark.parametrize("change", [{"start": -1}, {"end": -1}, {"committed": None}])
def test_a_log_that_shrinks_and_a_commit_that_is_gone_are_resets(change: dict[str, int | None]) -> None:
    before = OffsetReading(NOW_MS, 5, 3, 9)
    after = {
        "start": before.start + (change.get("start") or 0),
        "end": before.end + (change.get("end") or 0),
        "committed": change.get("committed", 5),
    }
    now = OffsetReading(NOW_MS + 10_000, **after)  # type: ignore[arg-type]
    assert list(recent([before, now])) == [now]


def test_a_partition_of_which_nothing_is_committed_has_a_velocity_of_nothing() -> None:
    readings = [OffsetReading(NOW_MS + 10_000 * at, None, 0, 10 * at) for at in range(7)]
    assert velocity(readings) == Velocity(0.0, 1.0)
    assert velocity(readings[:6]) == Velocity()
    assert velocity([]) == Velocity()


@pytest.mark.parametrize(
    ("readings", "members", "expected"),
    [
        (steady(10, 10, 0), 1, "ok"),
        (steady(10, 10, 500), 1, "ok"),
        (steady(20, 10, 5_000), 1, "ok"),
        (steady(20, 10, 5_000, range(0, 61, 10)), 1, "ok"),  # it catches up
        (steady(20, 10, 5_000, range(0, 51, 10)), 1, None),
        (steady(10, 10, 5_000, range(0, 61, 10)), 1, None),
        (steady(5, 10, 500), 1, "warning"),
        (steady(5, 10, 500), 0, "warning"),  # commits of a client that is no member
        (steady(0, 10, 500), 1, "stalled"),
        (steady(0, 0, 500), 3, "stalled"),
        (steady(0, 10, 500), None, "stalled"),
        (steady(0, 10, 500), 0, "stopped"),
        (steady(0, 10, 500, range(0, 61, 10)), 0, "stopped"),
        (steady(0, 10, 500, range(0, 51, 10)), 0, None),
        (steady(0, 10, 500, range(0, 231, 10)), 1, None),
        (steady(5, 10, 500, range(0, 231, 10)), 1, None),
        (steady(0, 10, 0, range(0, 61, 10)), 0, "ok"),  # something has waited for 50 s
        (steady(0, 10, 0, range(0, 71, 10)), 0, "stopped"),
        (steady(0, 10, 0, range(0, 241, 10)), 1, "ok"),
        (steady(0, 10, 0, range(0, 251, 10)), 1, "stalled"),
        (steady(10, 10, 500)[:20] + steady(0, 10, 3_000, range(200, 261, 10)), 0, "stopped"),
        ([replace(reading, committed=None) for reading in steady(0, 10, 500)], 0, "not committed"),
        ([replace(reading, committed=None, counts=False) for reading in steady(0, 10, 500, [0])], 1, "not committed"),
        ([OffsetReading(NOW_MS, None, 7, 7)], 0, "ok"),
        (steady(0, 0, 0, [0]), 0, "ok"),
        ([], 1, None),
        ([replace(reading, is_done=True) for reading in steady(0, 0, 2)], 1, "ok"),  # markers of transactions
    ],
)
def test_a_status_is_that_of_burrow(
    readings: Sequence[OffsetReading], members: int | None, expected: Status | None
) -> None:
    assert status(readings, members) == expected


@given(st.integers(1, 60), st.integers(10, 200))
def test_a_group_that_keeps_up_by_commits_in_bursts_is_ok(every_s: int, appends: int) -> None:
    rng = random.Random(every_s)
    seconds = sorted({0, *rng.sample(range(300), 25), 300})
    readings = [
        OffsetReading(NOW_MS + 1_000 * at, at // every_s * every_s * appends, 0, (at + 1) * appends) for at in seconds
    ]
    assert status(readings, 1) == "ok"


def test_a_group_is_as_bad_as_its_worst_partition_as_far_as_that_is_known() -> None:
    assert worst(["ok", None, "warning"]) == "warning"
    assert worst([*STATUSES, "ok"]) == "stopped"
    assert worst([None]) is worst([]) is None
    assert FULL_MS <= SPAN_MS
