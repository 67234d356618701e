"""Health is the age of the last finished turn of each loop, whatever errors there are."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.turns import HUNG_S, ServerLoop, Turns, WatchedLoop

STEPS = st.lists(
    st.tuples(st.sampled_from(["loop", "server", "failure"]), st.floats(0, 2_000)), min_size=1, max_size=30
)


class Clock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("lagloss_server.base.turns.time", clock)
    return clock


def test_a_loop_that_hangs_shows_although_nothing_failed(clock: Clock) -> None:
    turns, loop = Turns(), WatchedLoop("closing", 600)
    with turns.running(loop):
        clock.now += 600
        assert turns.problem() is None
        clock.now += 1
        assert turns.problem() == "closing has not completed an iteration for 601 s"
        loop.finished()
        assert turns.problem() is None
        clock.now += 601
    assert turns.problem() is None  # it has ended


def test_a_server_is_well_from_its_first_answer_on_and_named_before_loops_that_wait_for_it(clock: Clock) -> None:
    turns, loop, server = Turns(), WatchedLoop("closing", 5), ServerLoop("PostgreSQL", 10)
    with turns.running(loop, server):
        assert turns.problem() == "PostgreSQL has not responded for 0 s"
        server.finished()
        assert turns.problem() is None
        clock.now += 11
        assert turns.problem() == "PostgreSQL has not responded for 11 s"
        assert [name.name for name, _ in turns.unwell()] == ["PostgreSQL", "closing"]
        server.failed(OSError("connection to db.corp refused\nmore"))
        assert turns.problem() == "PostgreSQL has not responded for 11 s: connection to db.corp refused"
        assert turns.problem_of("Kafka") is None


def test_one_failure_shows_only_once_the_last_answer_is_old(clock: Clock) -> None:
    server = ServerLoop("Kafka", 10)
    server.finished()
    server.failed(TimeoutError())
    assert server.problem is None
    clock.now += 11
    assert server.problem == "has not responded for 11 s: TimeoutError"
    server.finished()
    assert server.problem is None


def test_only_what_hangs_by_itself_is_to_be_restarted(clock: Clock) -> None:
    turns, loop, server = Turns(), WatchedLoop("closing", 600), ServerLoop("PostgreSQL", 10)
    with turns.running(loop, server):
        server.finished()
        clock.now += HUNG_S + 1
        assert turns.hung() is None  # the server keeps it
        server.finished()
        assert turns.hung() == f"no loop has made progress for {HUNG_S + 1:.0f} s"
        loop.finished()
        assert turns.hung() is None


@given(STEPS)
def test_the_answer_depends_on_ages_alone(steps: list[tuple[str, float]]) -> None:
    turns, loop, server, clock = Turns(), WatchedLoop("closing", 600), ServerLoop("Kafka", 10), Clock()
    with pytest.MonkeyPatch.context() as patch, turns.running(loop, server):
        patch.setattr("lagloss_server.base.turns.time", clock)
        for each in (loop, server):
            each.finished()
        marked = dict.fromkeys(("loop", "server"), clock.now)
        for name, pause_s in steps:
            if name == "failure":
                server.failed(ValueError("x"))
            else:
                {"loop": loop, "server": server}[name].finished()
                marked[name] = clock.now
            clock.now += pause_s
            is_well = clock.now - marked["server"] <= 10 and clock.now - marked["loop"] <= 600
            assert (turns.problem() is None) == is_well


def test_ages_stand_still_while_the_machine_sleeps() -> None:
    """CLOCK_MONOTONIC of Linux does; a clock of the day would call every loop hung after a night."""
    loop = WatchedLoop("closing", 5)
    assert loop.age_s <= time.monotonic()
    assert not time.get_clock_info("monotonic").adjustable
