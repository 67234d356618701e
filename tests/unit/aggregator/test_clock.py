"""A step of the machine's clock moves no judgement, unless the broker's clock made it, too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aggregator.clock import DOUBT_MS, RECENT_MS, SETTLED_MS, WRONG_MS, JudgementClock

START_S, HOUR_S = 1_780_000_000.0, 3_600.0


@dataclass
class Machine:
    """A machine whose clock may be set: `set_s` is by how much."""

    up_s: float = 5_000.0
    set_s: float = 0.0

    def clock(self) -> JudgementClock:
        return JudgementClock(lambda: START_S + self.up_s + self.set_s, lambda: self.up_s)

    def true_ms(self) -> int:
        return round((START_S + self.up_s) * 1000)


def test_an_hour_ahead_and_back_changes_nothing() -> None:
    machine = Machine()
    clock = machine.clock()
    for set_s in (0, HOUR_S, HOUR_S, 0, -HOUR_S, 0):
        machine.set_s = set_s
        machine.up_s += 1
        clock.heard(machine.true_ms() - 200)
        assert clock.now_ms() == machine.true_ms()


def test_without_a_recent_report_time_goes_on_as_it_did() -> None:
    machine = Machine()
    clock = machine.clock()
    clock.heard(machine.true_ms())
    machine.up_s += RECENT_MS / 1000 + 1
    machine.set_s = HOUR_S
    assert clock.now_ms() == machine.true_ms()


def test_a_clock_that_was_wrong_at_the_start_is_right_once_it_is_set() -> None:
    machine = Machine(set_s=HOUR_S)
    clock = machine.clock()
    clock.heard(machine.true_ms())
    assert clock.now_ms() == machine.true_ms() + HOUR_S * 1000
    machine.set_s = 0
    assert clock.now_ms() == machine.true_ms()


def test_where_the_broker_is_set_with_the_machine_its_time_holds() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.set_s = HOUR_S
    clock.heard(machine.true_ms() + round(HOUR_S * 1000))
    assert clock.now_ms() == machine.true_ms() + HOUR_S * 1000


def test_drift_is_followed_by_neither() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.set_s = 0.9
    clock.heard(machine.true_ms() + 900)
    assert clock.now_ms() == machine.true_ms()


def test_after_a_step_with_the_broker_nothing_is_judged_until_every_emitter_has_reported() -> None:
    machine = Machine()
    clock = machine.clock()
    assert clock.is_settled()
    for set_s in (HOUR_S, 0):
        machine.set_s = set_s
        clock.heard(machine.true_ms() + round(set_s * 1000))
        clock.now_ms()
        assert not clock.is_settled()
        machine.up_s += SETTLED_MS / 1000
        assert clock.is_settled()


def test_a_step_that_the_broker_does_not_make_holds_nothing_up() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.set_s = HOUR_S
    clock.heard(machine.true_ms())
    clock.now_ms()
    assert clock.is_settled()


@dataclass
class Checked:
    """A clock that is compared with brokers, each of a partition, by whose time reports come every 2 s."""

    machine: Machine
    brokers_s: tuple[float, ...]
    """By how much the clocks of the brokers are set."""
    are_stamped: bool = True
    """Whether brokers stamp the reports."""

    def __post_init__(self) -> None:
        self.clock = self.machine.clock()
        self.end = 0

    def run(self, seconds: float) -> None:
        """Follow reports for so long, those of other partitions later, and compare after each."""
        until_s = self.machine.up_s + seconds
        while self.machine.up_s < until_s:
            asked_s, ends = self.machine.up_s, dict.fromkeys(range(len(self.brokers_s)), self.end)
            self.machine.up_s += 1
            for partition, set_s in enumerate(self.brokers_s):
                appended_ms = self.machine.true_ms() + round(set_s * 1000)
                self.clock.heard(appended_ms, {partition: (self.end, appended_ms)} if self.are_stamped else {})
                self.machine.up_s += 0.5
                self.clock.check(asked_s, ends)
            self.end += 1
            self.clock.now_ms()

    @property
    def ahead_s(self) -> float:
        return (self.clock.now_ms() - self.machine.true_ms()) / 1000


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S, WRONG_MS / 1000 + 5, -WRONG_MS / 1000 - 5])
def test_a_clock_that_is_wrong_at_the_start_and_stays_so_is_set_to_the_brokers(set_s: float) -> None:
    checked = Checked(Machine(set_s=set_s), (0.0, 0.2))
    checked.run(3)
    assert not checked.clock.is_settled()  # nothing is judged meanwhile
    checked.run(DOUBT_MS / 1000)
    assert abs(checked.ahead_s) < 3
    assert not checked.clock.is_settled()
    checked.run(SETTLED_MS / 1000)
    assert checked.clock.is_settled()
    assert abs(checked.ahead_s) < 3


@pytest.mark.parametrize("brokers_s", [(HOUR_S, 0.0), (-HOUR_S, HOUR_S, 10.0), (20.0,), (-20.0, -HOUR_S)])
def test_a_clock_that_agrees_with_one_broker_is_left_as_it_is(brokers_s: tuple[float, ...]) -> None:
    checked = Checked(Machine(), brokers_s)
    checked.run(DOUBT_MS / 1000 + SETTLED_MS / 1000)
    assert checked.ahead_s == 0
    assert checked.clock.is_settled()


def test_a_clock_that_was_right_once_does_not_follow_a_broker_whose_clock_is_set() -> None:
    checked = Checked(Machine(), (0.0,))
    checked.run(5)
    checked.brokers_s = (HOUR_S,)
    checked.run(60)
    assert checked.ahead_s == 0
    assert checked.clock.is_settled()


def test_stamps_of_those_who_send_set_no_clock() -> None:
    checked = Checked(Machine(set_s=HOUR_S), (0.0,), are_stamped=False)
    checked.run(60)
    assert checked.ahead_s == HOUR_S


def test_reports_that_were_in_the_log_before_say_nothing_of_the_time() -> None:
    machine = Machine()
    clock = machine.clock()
    ended_ms = machine.true_ms() - round(HOUR_S * 1000)
    clock.heard(ended_ms, {0: (7, ended_ms)})  # the last report of all
    for _ in range(60):
        machine.up_s += 1
        clock.check(machine.up_s, {0: 8})
    assert clock.is_settled()
    assert clock.now_ms() == machine.true_ms()
