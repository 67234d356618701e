"""Roll-ups on a real PostgreSQL: restated when a window changes, right or marked at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from aggregator.closing import window_store as closings
from aggregator.maintenance import rollups
from aggregator.maintenance.rollups import SETTLE_MS, Key
from aggregator.set_aside import RETRY_MS, SetAside
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Period, period_of
from tests.support.closers import wait_until
from tests.support.stored_windows import NOW_MS, Stored, closing, days_ago

W = days_ago(3)
SETTLED_MS = NOW_MS + SETTLE_MS
DAY_SETTLED_MS = SETTLED_MS + SETTLE_MS


@pytest.fixture
def stored(store: Store) -> Stored:
    return Stored(store=store)


def roll_up(stored: Stored, now_ms: int) -> int:
    return rollups.roll_up(stored.store.engine, now_ms, SetAside(stored.store.engine))[0]


def totals(stored: Stored, period: Period = "hour") -> list[tuple[int, int, int]]:
    """(windows, messages, lost) of the roll-ups of a week."""
    found = stored.store.rollups("chain", period, W - 4 * DAY_S, W + 4 * DAY_S)
    return [(one.windows, one.messages, one.lost_max) for one in found.values()]


def test_windows_are_summed_up_by_hour_and_by_day(stored: Stored) -> None:
    for at in range(3):
        stored.close(W + 60 * at, lost=at, lag_ms=10**at)
    stored.close(W + 3_600, messages=50)
    roll_up(stored, SETTLED_MS)
    roll_up(stored, DAY_SETTLED_MS)
    assert totals(stored) == [(3, 300, 3), (1, 50, 0)]
    assert totals(stored, "day") == [(4, 350, 3)]
    (hour, _) = stored.store.rollups("chain", "hour", W, W + 7_200).values()
    document = hour.document()
    assert (document["verdicts"], document["on_time_share"]) == ({"loss": 2, "ok": 1}, 297 / 300)
    # of 297 delivered, 100 took 1 ms, 99 took 10 ms and 98 took 100 ms
    assert document["e2e_lag_ms"]["p50"] == pytest.approx(10, rel=0.01)
    assert document["e2e_lag_ms"]["p95"] == pytest.approx(100, rel=0.01)
    assert [one["name"] for one in document["checkpoints"]] == ["src.in", "snk.out"]


def test_many_changes_within_the_settling_cost_one_computation(stored: Stored) -> None:
    for at in range(20):
        stored.close(W + 60 * at, now_ms=NOW_MS + at)
    assert roll_up(stored, SETTLED_MS - 1) == 0
    assert roll_up(stored, SETTLED_MS) == 1
    assert totals(stored) == [(20, 2_000, 0)]
    assert roll_up(stored, SETTLED_MS) == 0


def test_a_late_revision_restates_its_hour_and_day_from_the_newest_result(stored: Stored) -> None:
    stored.close(W, lost=40)
    stored.close(W + 60)
    roll_up(stored, SETTLED_MS)
    roll_up(stored, DAY_SETTLED_MS)
    assert totals(stored, "day") == [(2, 200, 40)]
    stored.close(W, lost=1, now_ms=DAY_SETTLED_MS)
    roll_up(stored, DAY_SETTLED_MS + SETTLE_MS)
    roll_up(stored, DAY_SETTLED_MS + 2 * SETTLE_MS)
    assert totals(stored) == totals(stored, "day") == [(2, 200, 1)]
    assert stored.store.rollups("chain", "day", W - DAY_S, W)[period_of("day", W)].verdicts == {"loss": 1, "ok": 1}


def test_a_closing_that_changes_nothing_costs_no_computation(stored: Stored) -> None:
    stored.close(W)
    roll_up(stored, SETTLED_MS)
    roll_up(stored, DAY_SETTLED_MS)
    stored.close(W, now_ms=DAY_SETTLED_MS)
    assert rollups.roll_up(stored.store.engine, 10 * DAY_SETTLED_MS, SetAside(stored.store.engine)) == (0, 0)


def test_a_closing_that_is_rolled_back_leaves_no_mark(stored: Stored) -> None:
    with stored.store.engine.begin() as connection:
        closings.commit(connection, [closing(W, 100, 0, 10, 0, NOW_MS)])
        connection.rollback()
    assert rollups.roll_up(stored.store.engine, SETTLED_MS, SetAside(stored.store.engine)) == (0, 0)


def test_a_computation_that_is_killed_before_its_commit_is_done_by_the_next_round(stored: Stored) -> None:
    stored.close(W, lost=2)
    trouble: list[OperationalError] = []

    def killed() -> None:
        try:
            roll_up(stored, SETTLED_MS)
        except OperationalError as error:
            trouble.append(error)

    with stored.store.engine.begin() as other:
        other.execute(text("LOCK TABLE rollup IN SHARE MODE"))  # it can compute, but not write
        thread = threading.Thread(target=killed)
        thread.start()
        pid = wait_until(stored.waiting_backend)
        other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        thread.join(10)
    assert len(trouble) == 1
    assert totals(stored) == []
    roll_up(stored, SETTLED_MS)
    assert totals(stored) == [(1, 100, 2)]


def test_a_closing_that_commits_while_its_hour_is_computed_is_not_left_out(stored: Stored) -> None:
    stored.close(W)
    with stored.store.engine.begin() as other:
        closings.commit(other, [closing(W + 60, 100, 7, 10, 0, NOW_MS)])
        thread = threading.Thread(target=roll_up, args=(stored, SETTLED_MS))
        thread.start()
        wait_until(stored.waiting_backend)
    thread.join(10)
    assert totals(stored) == [(2, 200, 7)]


def test_hours_that_are_over_are_computed_before_those_that_run(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, over_ms = period_of("hour", W), (period_of("hour", W) + 3_600) * 1000
    stored.close(hour + 3_600, now_ms=over_ms - 2 * SETTLE_MS)  # the older mark
    stored.close(hour, now_ms=over_ms - SETTLE_MS)
    monkeypatch.setattr(rollups, "MARKS_PER_ROUND", 1)
    failures = SetAside(stored.store.engine)
    assert rollups.roll_up(stored.store.engine, over_ms, failures) == (1, 0)
    assert totals(stored) == [(1, 100, 0)]
    assert stored.store.rollups("chain", "hour", hour, hour + 7_200).keys() == {hour}


def test_a_rollup_that_fails_is_set_aside_alone_and_tried_again_after_an_hour_and_by_recompute(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(3):
        stored.close(W + 3_600 * at)
    failures, whole = SetAside(stored.store.engine), rollups._restate

    def fail(engine: Engine, keys: Sequence[Key], now_ms: int, failures: SetAside) -> int:
        if any(key.period == "hour" and key.start < W + 7_200 for key in keys):
            raise IndexError("index 0 is out of bounds")
        return whole(engine, keys, now_ms, failures)

    monkeypatch.setattr(rollups, "_restate", fail)
    monkeypatch.setattr(rollups, "MARKS_PER_ROUND", 2)  # those that fail are the first, and not in the way of others
    for _ in range(2):
        rollups.roll_up(stored.store.engine, SETTLED_MS, failures)
    hours = [period_of("hour", W + 3_600 * at) for at in range(3)]
    assert failures.names() == [f"rollup chain/hour/{start}" for start in hours[:2]]
    assert totals(stored) == [(1, 100, 0)]
    monkeypatch.undo()
    rollups.roll_up(stored.store.engine, DAY_SETTLED_MS, failures)
    assert (len(failures.names()), totals(stored)) == (2, [(1, 100, 0)])  # not yet
    failures.retry_now("rollup", "another")
    assert len(failures.waiting("rollup", DAY_SETTLED_MS)) == 2
    failures.retry_now("rollup", "chain")
    rollups.roll_up(stored.store.engine, DAY_SETTLED_MS, failures)
    assert (failures.names(), totals(stored)) == ([], [(1, 100, 0)] * 3)
    assert SetAside(stored.store.engine).names() == []


def test_a_rollup_that_was_set_aside_is_tried_again_an_hour_later(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.close(W)
    failures = SetAside(stored.store.engine)
    with monkeypatch.context() as patch:
        patch.setattr(rollups, "_restate", lambda *_: [][0])
        rollups.roll_up(stored.store.engine, SETTLED_MS, failures)
    rollups.roll_up(stored.store.engine, int(time.time() * 1000) + RETRY_MS, failures)
    assert (failures.names(), totals(stored)) == ([], [(1, 100, 0)])
