"""A group of processes is what its node is told to be, whatever happens to its members."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline_under_test.harness.beat import Pulse
from pipeline_under_test.harness.group import Group

TIMEOUT_S = 20
NO_BEAT_S = 2.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """A group of one to three stand-ins that nobody has started yet."""
    beats = tmp_path / "beats"
    made = Group(
        "stub",
        (str(beats),),
        tmp_path / "logs",
        beats,
        least=1,
        most=3,
        module="tests.fakes.beating",
        hung_s=NO_BEAT_S,
        stop_timeout_s=5,
    )
    yield made
    made.abort()


def tend_until(group: Group, condition: Callable[[], bool], what: str) -> None:
    """Tends the group as the runner does until the condition holds."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT_S} s"
        group.tend()
        time.sleep(0.02)


def ready(group: Group, processes: int) -> Callable[[], bool]:
    """Whether the group has so many processes, all of which show a beat, and none on its way out."""
    return lambda: group.is_ready and len(group.pids) == processes


def names(group: Group) -> list[str]:
    return [member.name for member in group.members]


def test_it_has_as_many_processes_as_are_wanted_within_its_bounds(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    group.scale(7)
    tend_until(group, ready(group, 3), "the most")
    first = group.members[0]
    group.scale(0)
    tend_until(group, ready(group, 1), "the least")
    assert group.members == [first]
    assert group.restarts == 0


def test_a_group_is_not_ready_before_every_process_has_shown_a_beat(group: Group) -> None:
    group.tend()
    assert len(group.pids) == 1
    assert not group.is_ready


@pytest.mark.slow
def test_a_killed_process_is_started_again_after_pauses_that_grow(group: Group) -> None:
    group.env = {"STUB": "broken"}
    started: list[float] = []

    def three_starts() -> bool:
        at = group.members[0].started_at if group.members else 0.0
        if at and at not in started:
            started.append(at)
        return len(started) == 3

    tend_until(group, three_starts, "three starts")
    first, second = started[1] - started[0], started[2] - started[1]
    assert 1 <= first < second
    assert second >= 2
    assert group.restarts == 2


@pytest.mark.slow
def test_of_several_processes_only_the_dead_one_is_started_again(group: Group) -> None:
    group.scale(2)
    tend_until(group, ready(group, 2), "two")
    dead, living = group.pids
    os.kill(dead, signal.SIGKILL)
    tend_until(group, lambda: group.restarts == 1 and group.is_ready, "another")
    assert living in group.pids
    assert dead not in group.pids


@pytest.mark.slow
def test_a_stopped_process_is_killed_and_another_one_takes_its_place(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    [hung] = group.pids
    group.signal(signal.SIGSTOP)
    tend_until(group, lambda: group.restarts == 1 and group.is_ready, "another")
    assert group.pids != [hung]
    assert not psutil.pid_exists(hung)


@pytest.mark.slow
def test_a_process_that_is_stopped_for_less_than_that_goes_on(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    before = group.pids
    group.signal(signal.SIGSTOP)
    until = time.monotonic() + NO_BEAT_S / 2
    tend_until(group, lambda: time.monotonic() > until, "a moment")
    group.signal(signal.SIGCONT)
    until = time.monotonic() + NO_BEAT_S
    tend_until(group, lambda: time.monotonic() > until and group.is_ready, "a moment")
    assert group.pids == before
    assert group.restarts == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["mute", "dazed"])
def test_a_process_that_shows_no_beat_or_no_second_one_is_killed(group: Group, how: str) -> None:
    group.env, group.starting_s = {"STUB": how}, NO_BEAT_S
    group.tend()
    [first] = group.pids
    tend_until(group, lambda: group.restarts == 1, "another start")
    assert not psutil.pid_exists(first)


def test_a_group_that_is_held_has_no_processes_until_it_is_released(group: Group) -> None:
    group.scale(2)
    tend_until(group, ready(group, 2), "two")
    group.is_held = True
    tend_until(group, lambda: not group.pids, "none")
    assert group.is_ready
    group.is_held = False
    tend_until(group, ready(group, 2), "two again")
    assert group.restarts == 0


@pytest.mark.slow
def test_tending_does_not_wait_for_a_process_that_does_not_end(group: Group) -> None:
    group.env, group.stop_timeout_s = {"STUB": "deaf"}, 1.0
    tend_until(group, ready(group, 1), "one")
    group.is_held = True
    began = time.monotonic()
    group.tend()
    assert len(group.pids) == 1
    tend_until(group, lambda: not group.pids, "its end by SIGKILL, once its time is over")
    assert time.monotonic() - began >= group.stop_timeout_s


def test_a_rolling_restart_replaces_all_and_never_has_fewer_that_serve(group: Group) -> None:
    group.scale(2)
    tend_until(group, ready(group, 2), "two")
    old = group.pids
    group.roll({"STUB": "", "VERSION": "2"})

    def done() -> bool:
        assert group.is_ready
        assert len(group.members) == 2
        assert len(group.pids) <= 3
        return not group.is_rolling and len(group.pids) == 2

    tend_until(group, done, "the roll")
    assert not set(old) & set(group.pids)
    assert all(psutil.Process(pid).environ()["VERSION"] == "2" for pid in group.pids)


@pytest.mark.slow
def test_if_a_successor_keeps_dying_the_others_stay_and_so_does_their_environment(group: Group) -> None:
    group.scale(2)
    tend_until(group, ready(group, 2), "two")
    old = group.pids
    group.roll({"STUB": "broken"})
    tend_until(group, lambda: not group.is_rolling, "the end of the roll")
    assert group.pids == old
    assert group.env == {}
    group.scale(3)
    tend_until(group, ready(group, 3), "a third one that is not broken")


@pytest.mark.slow
def test_a_roll_outlives_the_death_of_a_successor_and_of_one_to_be_replaced(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    old = group.pids
    group.roll()
    tend_until(group, lambda: len(group.pids) == 2, "a successor")
    group.kill()
    tend_until(group, lambda: not group.is_rolling and ready(group, 1)(), "the roll")
    assert not set(old) & set(group.pids)
    assert names(group) == ["stub-2"]


def test_scaling_while_rolling_takes_the_old_ones_first(group: Group) -> None:
    group.scale(3)
    tend_until(group, ready(group, 3), "three")
    group.roll()
    tend_until(group, lambda: "stub-4" in names(group), "the first successor")
    group.scale(1)
    tend_until(group, lambda: not group.is_rolling and ready(group, 1)(), "one")
    assert names(group) == ["stub-4"]
    group.roll()
    group.scale(2)
    tend_until(group, lambda: not group.is_rolling and ready(group, 2)(), "two")
    assert "stub-4" not in names(group)


def test_a_roll_that_is_asked_for_again_begins_anew(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    group.roll({"VERSION": "2"})
    group.tend()
    group.roll({"VERSION": "3"})
    tend_until(group, lambda: not group.is_rolling and ready(group, 1)(), "the roll")
    [pid] = group.pids
    assert psutil.Process(pid).environ()["VERSION"] == "3"


def test_a_hold_ends_a_roll_and_what_comes_after_it_is_new(group: Group) -> None:
    tend_until(group, ready(group, 1), "one")
    group.roll({"VERSION": "2"})
    group.tend()
    group.is_held = True
    tend_until(group, lambda: not group.pids, "none")
    group.is_held = False
    tend_until(group, ready(group, 1), "one again")
    [pid] = group.pids
    assert psutil.Process(pid).environ()["VERSION"] == "2"


@pytest.mark.slow
def test_it_ends_in_good_order_even_while_rolling_and_with_a_stopped_member(group: Group) -> None:
    group.scale(2)
    tend_until(group, ready(group, 2), "two")
    group.roll()
    tend_until(group, lambda: len(group.pids) == 3, "a successor")
    pids = group.pids
    os.kill(pids[0], signal.SIGSTOP)
    codes = group.end()
    assert len(codes) == 3
    assert set(codes) <= {0, -signal.SIGTERM}  # a successor may not be so far yet that it ends by itself
    assert group.pids == []
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.slow
def test_what_does_not_end_in_its_time_is_killed_at_the_end(group: Group) -> None:
    group.env, group.stop_timeout_s = {"STUB": "deaf"}, 0.5
    tend_until(group, ready(group, 1), "one")
    assert group.end() == [-signal.SIGKILL]


def test_the_beat_of_an_earlier_process_with_the_same_number_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "17").touch()
    pulse = Pulse(tmp_path, 17)
    assert pulse.silent_s < 1
    assert not pulse.has_beaten
    (tmp_path / "17").touch()
    assert pulse.silent_s < 1
    assert pulse.has_beaten


def test_a_beat_with_the_time_of_another_clock_counts_from_when_it_is_seen(tmp_path: Path) -> None:
    pulse = Pulse(tmp_path, 17)
    for an_hour_off in (-3600, 3600):
        (tmp_path / "17").touch()
        os.utime(tmp_path / "17", (time.time() + an_hour_off,) * 2)
        assert pulse.silent_s < 1
