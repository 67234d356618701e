"""Taps without news rest: rounds have them report together, and wake those whose topic has grown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from lagloss.broker.topics import REPORTS
from lagloss.sdk.outlets.kafka import MemoryOutlet
from lagloss.sdk.packing import TallyKey
from lagloss.wire.format import EmitterReport, decode_report
from lagloss.wire.sketch import bin_keys
from taps.cluster_topics import SharedLook, TopicEnds
from taps.kernel import Blocks
from taps.metrics import TapMetrics
from taps.outlet import SharedOutlet, TapOutlet
from taps.plan import Look, OffsetSpan, PartitionLog, Suspect, TapPlan
from taps.plan_runner import LATE_MS, LATELY_S
from taps.pool import TurnPool
from taps.records import TapCounts
from taps.rounds import TapRounds
from taps.runner import TapRunner
from taps.store import NextPlan, NotOwned, OwnedTap
from taps.wanted import RunningTap
from tests.unit.taps.test_wanted import version

TAPS = 30
FORGOTTEN = TapPlan(0, 0, 1, 1)
PATIENCE_S = 30.0


class Topics:
    """The ends of topics of one partition, and looks at them."""

    def __init__(self) -> None:
        self.ends_of: dict[str, int] = {}
        self.epochs_of: dict[str, int] = {}
        self.unclean: set[str] = set()
        self.ahead_ms = 0
        """Of the clock."""
        self.looks = 0
        self.is_away = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def ends(self, places: set[tuple[str, int]]) -> TopicEnds:
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        asked_at, at_ms = time.monotonic(), self.now_ms()
        epochs = {place: self.epochs_of.get(place[0], 3) for place in places}
        return TopicEnds(at_ms, at_ms, asked_at, {place: self.ends_of[place[0]] for place in places}, epochs)

    def look(self, topic: str) -> SharedLook:
        self.looks += 1
        if self.is_away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        end, at_ms = self.ends_of[topic], self.now_ms()
        return SharedLook(
            "id", Look(at_ms, {0: PartitionLog(0, end, end, self.epochs_of.get(topic, 3))}), time.monotonic()
        )

    def want(self, topics: set[str]) -> None:
        pass


class Reader:
    def __init__(self, topics: Topics, topic: str) -> None:
        self.topic, self._topics = topic, topics

    def whole_until(self, suspects: Mapping[int, Suspect]) -> dict[int, int]:
        return {partition: suspect.position for partition, suspect in suspects.items()}

    def allows_unclean_election(self) -> bool:
        return self.topic in self._topics.unclean

    def newest(self, after: float) -> SharedLook:
        look = self._topics.look(self.topic)
        assert look.asked_at > after
        return look

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass


class Plans:
    """A store in memory, of one process or of another."""

    def __init__(self) -> None:
        self.plans: dict[bytes, TapPlan] = {}
        self.together: list[int] = []
        self.taken: set[bytes] = set()

    def is_stored(self, emitter: bytes) -> bool:
        return emitter in self.plans

    def claim(self, emitter: bytes, _read: object) -> OwnedTap[TapPlan] | None:
        return None if emitter in self.taken else OwnedTap(self.plans[emitter], (), TapCounts())

    def advance(self, emitter: bytes, plan: TapPlan, *_: object) -> None:
        if emitter in self.taken or self.plans[emitter].number != plan.number - 1:
            raise NotOwned
        self.plans[emitter] = plan

    def advance_all(self, steps: Sequence[NextPlan]) -> set[bytes]:
        self.together.append(len(steps))
        stored = set()
        for step in steps:
            if step.emitter not in self.taken and self.plans[step.emitter].number == step.plan.number - 1:
                self.plans[step.emitter] = step.plan
                stored.add(step.emitter)
        return stored

    def note_trouble(self, *_: object) -> None:
        pass

    def release(self, _emitter: bytes) -> None:
        pass

    def forget(self, emitter: bytes) -> None:
        self.plans[emitter] = FORGOTTEN


class World:
    """Taps of a topic each, whose plans begin where their topics end."""

    def __init__(self) -> None:
        self.topics, self.plans, self.memory = Topics(), Plans(), MemoryOutlet()
        self.pool: TurnPool[TapRunner] = TurnPool("tests", threads=4)
        self.carried_out: dict[bytes, list[TapPlan]] = {}
        self.unreadable: set[bytes] = set()
        """Taps whose records cannot be read."""
        cluster: Any = SimpleNamespace(
            pool=self.pool,
            topics=self.topics,
            commits=SimpleNamespace(read_on=lambda *_: None),
            consumers=SimpleNamespace(tidy=lambda: None),
            peeks=SimpleNamespace(tidy=lambda: None),
        )
        outlet = SharedOutlet(self.memory)
        self.runners: dict[bytes, TapRunner] = {}
        for number in range(TAPS):
            emitter, topic = number.to_bytes(16, "big"), f"t{number}"
            self.topics.ends_of[topic] = 5
            self.plans.plans[emitter] = TapPlan(0, 0, 8, 1 << 32, positions={0: 5}, topic_id="id")
            self.carried_out[emitter] = []
            running = RunningTap(version(1, "x").definition.taps[0], emitter, 0)
            engine, reader, plans = self._engine(emitter), Reader(self.topics, topic), self.plans
            runner = TapRunner(running, plans, TapOutlet(outlet), reader, engine, None, TapMetrics(), 0.5)  # type: ignore[arg-type]
            self.runners[emitter] = runner
            self.pool.add(runner)
        self.rounds = TapRounds("tests", cluster, self.plans)  # type: ignore[arg-type]

    def _engine(self, emitter: bytes) -> Any:
        def blocks(plan: TapPlan) -> Blocks:
            if plan.spans and emitter in self.unreadable:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            self.carried_out[emitter].append(plan)
            return Blocks()

        return SimpleNamespace(limit=1_000, is_spread=False, blocks=blocks)

    def reports(self, emitter: bytes) -> list[EmitterReport]:
        reports = (decode_report(value) for value in self.memory.values(REPORTS))
        return [report for report in reports if report.emitter == emitter]

    def numbers(self, emitter: bytes) -> list[int]:
        """Return the numbers of the plans that a tap has reported, in the order of its reports."""
        return [report.seq >> 20 for report in self.reports(emitter)]

    def replace(self, emitter: bytes, until_ms: int) -> TapRunner:
        """Let another tap have the windows from this time on."""
        runner = self.runners[emitter]
        runner.go_on_as(replace(runner._running, until_ms=until_ms))
        self.pool.wake([runner])
        return runner


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    for module in ("taps.plan_runner", "taps.runner", "taps.rounds"):
        monkeypatch.setattr(f"{module}.TURN_S", 0.05)
    made = World()
    made.rounds.start()
    yield made
    assert made.rounds.close(PATIENCE_S)
    assert made.pool.close(PATIENCE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_taps_that_rest_report_together_each_plan_once(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    until(lambda: max(world.plans.together, default=0) > TAPS // 2)
    before = {emitter: len(world.numbers(emitter)) for emitter in world.runners}
    until(lambda: all(len(world.numbers(emitter)) >= before[emitter] + 3 for emitter in world.runners))
    for emitter in world.runners:
        numbers = world.numbers(emitter)
        assert numbers == sorted(set(numbers))
        assert [plan.sequence for plan in world.carried_out[emitter]][: len(numbers)] == numbers


def test_taps_that_rest_look_once_a_minute_and_report_between(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    emitter, minute = next(iter(world.runners)), int(time.time()) // 60
    looks, reports = world.topics.looks, len(world.numbers(emitter))
    until(lambda: len(world.numbers(emitter)) >= reports + 5)
    minutes = int(time.time()) // 60 - minute
    assert world.topics.looks - looks <= minutes * TAPS
    assert minutes or len({plan.through_ms for plan in world.carried_out[emitter][-4:]}) == 1


def test_a_topic_that_grows_wakes_its_tap_which_knows_when_it_had_not_grown(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    emitter = next(iter(world.runners))
    grown_ms = time.time_ns() // 1_000_000
    world.topics.ends_of["t0"] = 9
    until(lambda: any(plan.spans for plan in world.carried_out[emitter]))
    (plan,) = (plan for plan in world.carried_out[emitter] if plan.spans)
    (span,) = plan.spans
    assert (span.partition, span.start, span.end) == (0, 5, 9)
    assert grown_ms - 1_000 < span.ends[0].at_ms <= grown_ms + 100
    assert span.ends[0].offset == 5
    assert isinstance(span, OffsetSpan)
    until(lambda: world.runners[emitter].resting is not None)
    others = [plan for other, plans in world.carried_out.items() if other != emitter for plan in plans if plan.spans]
    assert not others


def test_a_tap_that_rests_says_at_once_that_it_was_replaced(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    emitter, until_ms = next(iter(world.runners)), time.time_ns() // 1_000_000
    world.replace(emitter, until_ms)
    until(lambda: world.plans.plans[emitter].ends_ms == until_ms)
    report = world.reports(emitter)[-1]
    assert (report.closed, report.unfinished, report.sent_at) == (True, True, until_ms)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_tap_that_was_replaced_gives_up_what_it_cannot_read(
    world: World, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    monkeypatch.setattr("taps.plan_runner.MAX_PAUSE_S", 0.2)
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    emitter, until_ms = next(iter(world.runners)), time.time_ns() // 1_000_000
    world.unreadable.add(emitter)
    world.topics.ends_of["t0"] = 9
    until(lambda: bool(world.plans.plans[emitter].spans))
    runner = world.replace(emitter, until_ms)
    if is_over:
        runner.stop(close=True)
        until(lambda: world.plans.plans[emitter] is FORGOTTEN)
        until(lambda: runner not in world.pool)
    else:
        until(lambda: world.plans.plans[emitter].ends_ms == until_ms)
    (given_up, *_) = (plan for plan in world.carried_out[emitter] if plan.gone)
    assert not given_up.spans
    assert given_up.begins_ms <= given_up.planned_at_ms < until_ms
    assert world.reports(emitter)[-1].closed


def test_a_clock_that_was_ahead_leaves_no_claims_of_later_times_once_it_is_right(world: World) -> None:
    emitter = next(iter(world.runners))
    plans = world.carried_out[emitter]
    world.topics.ahead_ms = 600_000
    world.topics.ends_of["t0"] = 9
    until(lambda: plans[-1].through_ms > time.time() * 1000 + 500_000)
    world.topics.ahead_ms = 0
    world.topics.ends_of["t0"] = 12
    until(lambda: plans[-1].positions == {0: 12} and plans[-1].through_ms <= time.time() * 1000)
    assert plans[-1].through_ms > time.time() * 1000 - 60_000
    assert not any(plan.gone for plan in plans)


def test_records_of_a_new_leader_that_may_lack_some_count_as_gone_once(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    first, second, *_ = world.runners
    world.topics.unclean = {"t0"}
    world.topics.epochs_of = {"t0": 4, "t1": 4}
    plans = world.carried_out
    until(lambda: all(plans[emitter][-1].epochs == {0: 4} for emitter in (first, second)))
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    ((before, plan),) = ((before, plan) for before, plan in pairwise(plans[first]) if plan.gone)
    assert plan.gone == {0: 1}
    assert before.through_ms <= plan.begins_ms + LATE_MS <= plan.through_ms
    assert not any(plan.gone or plan.spans for plan in plans[second])


@given(st.lists(st.tuples(st.integers(0, 600), st.integers(-5_000, 10_000_000)), min_size=1, max_size=30))
def test_a_record_that_was_not_read_is_as_late_as_those_of_the_quarter_of_an_hour_before_the_newest(
    read: list[tuple[int, int]],
) -> None:
    runner, now = next(iter(World().runners.values())), 0.0
    assert runner._late_ms == LATE_MS
    lags = []
    for after_s, lag_ms in read:
        now += after_s
        lags.append((now, lag_ms))
        lag_keys = bin_keys(np.array([lag_ms - 7, lag_ms]))
        block: Any = SimpleNamespace(increment=SimpleNamespace(key=TallyKey("out", None, 0), lag_keys=lag_keys))
        replayed: Any = SimpleNamespace(
            increment=SimpleNamespace(key=TallyKey("out", "again", 0), lag_keys=bin_keys(np.array([1e11])))
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("taps.plan_runner.time.monotonic", lambda at=now: at)
            runner._note_late(Blocks([block, replayed]))
    largest = max(0, *(lag_ms for at, lag_ms in lags if at >= now - LATELY_S))
    assert largest <= runner._late_ms <= 1.05 * largest + 1


def test_a_tap_that_another_process_took_reports_no_more_and_the_others_go_on(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    taken, other, *_ = world.runners
    world.plans.taken.add(taken)
    until(lambda: world.runners[taken].resting is None)
    reported = len(world.numbers(taken))
    stored = len(world.numbers(other))
    until(lambda: len(world.numbers(other)) >= stored + 3)
    assert len(world.numbers(taken)) == reported
    assert not world.runners[taken].positions


def test_a_cluster_that_is_away_is_noticed_and_taps_rest_again_afterwards(world: World) -> None:
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    world.topics.is_away = True
    until(lambda: all(runner.is_troubled for runner in world.runners.values()))
    assert not any(runner.resting for runner in world.runners.values())
    world.topics.is_away = False
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))


def test_reports_that_the_broker_does_not_take_wait_and_are_sent_once_it_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("taps.plan_runner", "taps.rounds"):
        monkeypatch.setattr(f"{module}.ACKNOWLEDGED_S", 0.1)
    until(lambda: all(runner.resting is not None for runner in world.runners.values()))
    world.memory.down = True
    until(lambda: any(runner._reporting is not None for runner in world.runners.values()))
    world.memory.down = False
    before = {emitter: len(world.numbers(emitter)) for emitter in world.runners}
    until(lambda: all(len(world.numbers(emitter)) >= before[emitter] + 2 for emitter in world.runners))
    for emitter in world.runners:
        numbers = world.numbers(emitter)
        assert numbers == sorted(numbers)
