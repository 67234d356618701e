"""The owner of the canary on clocks and a record of the test's own: what it judges, when, and what it makes of that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from canary import owner as owners
from canary import record, witness
from canary.metrics import CanaryMetrics
from canary.owner import JUDGED_WITHIN_S, REPEATED_S, SURE_S, CanaryOwner
from canary.plan import HOUR_S, MINUTE_S, plan_of
from canary.sender import PAUSED_S, Disturbed, NotTaken, Unconfirmed
from canary.witness import Breaches, Judgement, Notice, Result
from lagloss_server.model.canary import DUE_S, LATE, NOT_DUE, QUIET_S, RIGHT, SENT, START_S, WRONG, alerting_rule
from tests.unit.canary.test_witness import true_result

SECRET = b"s" * 32
START = 1_764_000_000 // HOUR_S * HOUR_S
ROUND_S = 10


@cache
def rule_of(start_s: int) -> str:
    """The rule that a minute breaches."""
    return alerting_rule(plan_of(SECRET, start_s).breaching_place)


@dataclass
class World:
    """The rows of minutes, and what lagloss has made of them. Each row in `results` is right but for its notification;
    `boot_s` and `wall_s` are the clocks."""

    boot_s: float = 1_000.0
    wall_s: float = START + 0.0
    holds: bool = True
    quiet_s: float | None = None
    rows: dict[int, SimpleNamespace] = field(default_factory=dict)
    results: set[int] = field(default_factory=set)
    not_taken: list[str] = field(default_factory=list)
    owner: CanaryOwner = field(init=False)

    # -- what the record, the witness and the queries do with PostgreSQL -------------------------------------------

    @contextmanager
    def begin(self) -> Iterator[None]:
        yield

    connect = begin

    def is_held(self, _connection: Any) -> bool:
        return self.holds

    def begin_minute(self, _connection: Any, start_s: int, _shown: int) -> bool:
        is_new = start_s not in self.rows
        if is_new:
            self.add(start_s, state="sending")
        return is_new

    def add(self, start_s: int, **columns: Any) -> None:
        """A row of a minute that was sent."""
        values = {"state": SENT, "why": "", "verdict": None, "problems": [], "revision": None, "notice": None}
        self.rows[start_s] = SimpleNamespace(minute=start_s, judged_s=0.0, **(values | columns))

    def excuse(self, _connection: Any, minutes: Any, why: str) -> None:
        for minute in minutes:
            if self.rows[minute].verdict is None:
                self.rows[minute].state, self.rows[minute].why = NOT_DUE, why

    def read_due(self, _connection: Any, first_s: int, again_s: float) -> list[Any]:
        return [
            SimpleNamespace(**vars(row))
            for minute, row in sorted(self.rows.items())
            if minute >= first_s
            and row.state == SENT
            and (row.verdict is None or self.boot_s - row.judged_s <= again_s)
        ]

    def read_notices(self, _connection: Any, first_s: int) -> dict[int, Notice]:
        notices = {minute: row.notice for minute, row in self.rows.items() if minute >= first_s}
        return {minute: notice for minute, notice in notices.items() if notice is not None}

    def note_judgement(
        self, _connection: Any, start_s: int, before: Any, judgement: Judgement, revision: Any, *, on_time: bool
    ) -> str:
        row = self.rows[start_s]
        right = RIGHT if before == RIGHT or (before is None and on_time) else LATE
        row.verdict = right if judgement.is_right else WRONG
        row.problems, row.revision = list(judgement.problems), revision
        row.judged_s = row.judged_s or self.boot_s
        return str(row.verdict)

    def read_results(self, _connection: Any, minutes: Any) -> Mapping[int, Result]:
        return {minute: true_result(plan_of(SECRET, minute)) for minute in minutes if minute in self.results}

    def read_breaches(self, _connection: Any, first_s: int) -> list[Breaches]:
        minutes = [minute for minute in self.results if minute >= first_s]
        return [Breaches(rule_of(minute), ((minute, minute),)) for minute in minutes]

    def read_judged(self, _connection: Any) -> list[Any]:
        return [row for _, row in sorted(self.rows.items(), reverse=True) if row.verdict is not None]

    # -- what happens ----------------------------------------------------------------------------------------------

    def notify(self, start_s: int) -> None:
        """A notification about a minute, whatever became of it."""
        plan = plan_of(SECRET, start_s)
        self.rows[start_s].notice = Notice(rule_of(start_s), len(plan.messages), len(plan.lost), ())

    def send(self, start_s: int, error: Disturbed | None = None) -> None:
        """The owner sends a minute, which is acknowledged, or ends with an error."""

        def sent(_plan: Any, _tick: Any) -> Unconfirmed:
            if error is not None:
                raise error
            return Unconfirmed(start_s, (), 0.0)

        waiting: list[Unconfirmed] = []
        self.owner.send(SimpleNamespace(send=sent), start_s, lambda _s: None, waiting)  # type: ignore[arg-type]
        if waiting:
            self.rows[start_s].state = SENT

    def pass_s(self, seconds: float, *, is_judged: bool = True) -> str | None:
        """Time passes, with a round every ten seconds; the last one's word."""
        word = None
        for _ in range(int(seconds) // ROUND_S):
            self.boot_s, self.wall_s = self.boot_s + ROUND_S, self.wall_s + ROUND_S
            word = self.owner.judge() if is_judged else None
        return word

    def run_minutes(self, count: int) -> str | None:
        """Minutes are sent, right and notified, one after the other; the last round's word."""
        word = None
        for _ in range(count):
            start_s = int(self.wall_s) // MINUTE_S * MINUTE_S
            self.send(start_s)
            self.results.add(start_s)
            self.notify(start_s)
            word = self.pass_s(MINUTE_S)
        return word

    def restart(self) -> None:
        """Another process is the owner."""
        right = [row.judged_s for row in self.rows.values() if row.verdict == RIGHT]
        self.quiet_s = self.boot_s - max(right) if right else None
        self.owner = CanaryOwner(self, SECRET, CanaryMetrics(), self)  # type: ignore[arg-type]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    for name in ("excuse", "read_due", "read_notices", "note_judgement"):
        monkeypatch.setattr(record, name, getattr(world, name))
    monkeypatch.setattr(record, "begin", world.begin_minute)
    monkeypatch.setattr(record, "confirm", lambda *_: None)
    for name in ("read_results", "read_breaches"):
        monkeypatch.setattr(witness, name, getattr(world, name))
    monkeypatch.setattr(witness, "read_revisions", lambda *_: dict.fromkeys(world.results, 1))
    monkeypatch.setattr(owners, "read_judged", world.read_judged)
    monkeypatch.setattr(owners, "read_not_taken", lambda _connection: world.not_taken)
    monkeypatch.setattr(owners, "read_quiet_s", lambda _connection: world.quiet_s)
    monkeypatch.setattr(owners, "boot_s", lambda: world.boot_s)
    monkeypatch.setattr(owners, "time", SimpleNamespace(time=lambda: world.wall_s))
    world.restart()
    return world


def verdicts(world: World) -> list[str | None]:
    return [row.verdict for _, row in sorted(world.rows.items())]


def test_it_is_right_once_three_minutes_are(world: World) -> None:
    assert world.run_minutes(2) is None
    assert world.run_minutes(1) == ""
    assert verdicts(world) == [RIGHT] * 3


def test_a_reminder_about_a_minute_that_is_not_due_counts_for_the_one_before(world: World) -> None:
    world.send(START)
    world.results.add(START)
    world.pass_s(MINUTE_S)
    assert verdicts(world) == [None]
    world.send(START + MINUTE_S, Disturbed("the sender was paused for 9 s"))
    world.notify(START + MINUTE_S)
    world.pass_s(MINUTE_S)
    assert verdicts(world) == [RIGHT, None]


def test_an_upgrade_in_which_the_alerter_missed_a_minute_is_no_problem(world: World) -> None:
    world.run_minutes(3)
    world.send(START + 3 * MINUTE_S)
    world.pass_s(MINUTE_S)
    world.pass_s(2 * MINUTE_S, is_judged=False)
    world.restart()
    assert world.pass_s(DUE_S + 2 * MINUTE_S) is None
    world.results.add(START + 3 * MINUTE_S)
    world.pass_s(ROUND_S)
    assert verdicts(world) == [RIGHT] * 4


def test_a_minute_from_before_a_restart_is_wrong_without_a_result_when_a_start_is_over(world: World) -> None:
    world.send(START)
    world.restart()
    assert world.pass_s(START_S - ROUND_S) is None
    assert world.pass_s(2 * ROUND_S) == "a minute was wrong: no result"


def test_a_notification_that_was_missing_stays_a_fault_after_a_restart(world: World) -> None:
    world.send(START)
    world.results.add(START)
    assert world.pass_s(DUE_S + ROUND_S) == "a minute was wrong: no notification"
    world.restart()
    world.pass_s(MINUTE_S)
    assert verdicts(world) == [WRONG]


@pytest.mark.parametrize("pause_s", [PAUSED_S + ROUND_S, 3_600.0])
def test_a_machine_that_slept_says_nothing_until_the_others_had_their_time(world: World, pause_s: float) -> None:
    assert world.run_minutes(3) == ""
    world.send(START + 3 * MINUTE_S)
    world.pass_s(2 * MINUTE_S)
    world.boot_s, world.wall_s = world.boot_s + pause_s, world.wall_s + pause_s
    assert world.owner.judge() in ("", None)
    assert world.pass_s(DUE_S + MINUTE_S) in ("", None)
    world.results.add(START + 3 * MINUTE_S)
    world.pass_s(ROUND_S)
    assert verdicts(world) == [RIGHT] * 3 + [RIGHT if pause_s < SURE_S - 10 * MINUTE_S else LATE]


def test_an_owner_that_was_replaced_judges_nothing(world: World) -> None:
    world.send(START)
    world.pass_s(DUE_S)
    world.holds = False
    with pytest.raises(OperationalError):
        world.pass_s(MINUTE_S)
    assert verdicts(world) == [None]
    with pytest.raises(OperationalError):
        world.send(START + 10 * MINUTE_S)
    assert list(world.rows) == [START]


@pytest.mark.parametrize(("outage_s", "verdict"), [(SURE_S, LATE), (JUDGED_WITHIN_S, None)])
def test_a_minute_sent_before_a_long_outage_is_at_best_late(world: World, outage_s: float, verdict: str | None) -> None:
    world.send(START)
    world.boot_s, world.wall_s = world.boot_s + outage_s, world.wall_s + outage_s
    world.restart()
    assert world.pass_s(START_S - ROUND_S) is None
    assert verdicts(world) == [None]
    world.results.add(START)
    world.pass_s(ROUND_S)
    assert verdicts(world) == [verdict]


def test_a_clock_that_was_set_back_is_a_problem_only_when_it_does_not_come_back(world: World) -> None:
    assert world.run_minutes(25) == ""
    world.wall_s -= 25 * MINUTE_S
    world.owner.clock_was_set(-25.0 * MINUTE_S)
    words = [world.run_minutes(1) for _ in range(30)]
    last = QUIET_S // MINUTE_S - 1  # minute that ends while the last right one still counts
    known = last + int(REPEATED_S) // MINUTE_S
    assert words[:last] == [""] * last
    assert words[last + 1 : known] == [None] * (known - last - 1)
    because = "the clock was set back, and this minute was sent before"
    assert {word and word.partition(": ")[2] for word in words[known + 1 : 25]} == {because}
    assert words[26:] == [""] * 4
    assert all(row.verdict == RIGHT or row.state == NOT_DUE for row in world.rows.values())


def test_too_many_minutes_that_are_not_taken_are_a_problem_although_others_are_right(world: World) -> None:
    why = str(NotTaken("beacons of relay are not acknowledged: x"))
    assert world.run_minutes(5) == ""
    world.not_taken = [why] * 4
    assert world.run_minutes(1) == ""
    world.not_taken = [why] * 5
    assert world.run_minutes(5) == "5 of the last 10 minutes were not taken: beacons of relay are not acknowledged: x"
