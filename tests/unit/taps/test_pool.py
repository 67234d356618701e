"""A pool gives each its turns in sequence, and turns that hang or fail leave threads to the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from taps import pool as pool_module
from taps.pool import TurnPool

PATIENCE_S = 20.0


class Taker:
    """Counts its turns; `turn` says how each goes."""

    def __init__(self, turn: Callable[[], float | None], *, is_troubled: bool = False) -> None:
        self.turns = 0
        self.is_troubled = is_troubled
        self._turn = turn
        self._using = threading.Lock()

    def step(self) -> float | None:
        assert self._using.acquire(blocking=False), "two turns at a time"
        try:
            self.turns += 1
            return self._turn()
        finally:
            self._using.release()


@pytest.fixture
def pool() -> Iterator[TurnPool[Taker]]:
    turns: TurnPool[Taker] = TurnPool("tests", threads=4)
    yield turns
    turns.close(PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_many_take_turns_in_few_threads_each_in_sequence(pool: TurnPool[Taker]) -> None:
    takers = [Taker(lambda: 0.01) for _ in range(200)]
    before = threading.active_count()
    for taker in takers:
        pool.add(taker)
    until(lambda: min(taker.turns for taker in takers) >= 5)
    assert threading.active_count() - before <= 4
    assert max(taker.turns for taker in takers) < 100 * min(taker.turns for taker in takers)


def test_one_that_is_woken_does_not_wait(pool: TurnPool[Taker]) -> None:
    taker, other = Taker(lambda: 3_600.0), Taker(lambda: 3_600.0)
    for each in (taker, other):
        pool.add(each)
    until(lambda: pool.waiting() == [taker, other])
    for turns in range(2, 20):
        pool.wake([taker])
        until(lambda turns=turns: taker.turns == turns)  # type: ignore[misc]
    assert other.turns == 1


def test_one_that_is_woken_in_its_turn_takes_another(pool: TurnPool[Taker]) -> None:
    is_begun, may_end = threading.Event(), threading.Event()

    def turn() -> float:
        is_begun.set()
        assert may_end.wait(PATIENCE_S)
        return 3_600.0

    taker = Taker(turn)
    pool.add(taker)
    assert is_begun.wait(PATIENCE_S)
    pool.wake([taker])
    may_end.set()
    until(lambda: taker.turns == 2)


def test_turns_that_hang_hold_up_none_of_the_others(pool: TurnPool[Taker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SLOW_S", 0.05)
    answers = threading.Event()

    def hang() -> float:
        answers.wait(0.1)
        return 0.0

    hanging, well = [Taker(hang) for _ in range(40)], Taker(lambda: 0.01)
    for taker in hanging:
        pool.add(taker)
    until(lambda: min(taker.turns for taker in hanging) >= 1)  # from then on, all of them are known to be slow
    pool.add(well)
    began = time.monotonic()
    until(lambda: well.turns >= 10)
    assert time.monotonic() - began < 2
    until(lambda: min(taker.turns for taker in hanging) >= 2)
    answers.set()


def test_taps_that_fail_leave_threads_to_the_others(pool: TurnPool[Taker]) -> None:
    answers = threading.Event()

    def fail() -> float:
        answers.wait(PATIENCE_S)
        return 0.01

    failing = [Taker(lambda: 0.01, is_troubled=True) for _ in range(8)]
    for taker in failing:
        pool.add(taker)
    until(lambda: min(taker.turns for taker in failing) >= 2)
    for taker in failing:
        taker._turn = fail
    until(lambda: len(pool.turns.began) == 2)
    well = Taker(lambda: 0.01)
    pool.add(well)
    until(lambda: well.turns >= 10)
    answers.set()


def test_an_error_costs_no_thread_and_no_end_is_missed(pool: TurnPool[Taker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "FAILED_S", 0.01)
    broken, ending = Taker(lambda: 1 // 0), Taker(lambda: None)
    for taker in (broken, ending):
        pool.add(taker)
    until(lambda: broken.turns >= 10)
    pool.await_ends([ending], PATIENCE_S)
    assert (ending in pool, ending.turns, broken in pool) == (False, 1, True)


def test_a_turn_that_hangs_is_told_by_its_age(pool: TurnPool[Taker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.turns, "limit_s", 0.05)
    answers = threading.Event()
    pool.add(Taker(lambda: 3_600.0 if answers.wait(PATIENCE_S) else None))
    until(lambda: pool.turns.problem is not None)
    answers.set()
    until(lambda: pool.turns.problem is None)
