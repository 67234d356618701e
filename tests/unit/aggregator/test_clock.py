"""A step of the machine's clock moves no judgement, unless the broker's clock made it, too."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator.clock import RECENT_MS, SETTLED_MS, JudgementClock

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
