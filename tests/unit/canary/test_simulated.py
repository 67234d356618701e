"""Simulated minutes without servers: the SDK's records in memory, the aggregator's rules, and the witness."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from canary.plan import HOUR_S, MINUTE_S, MinutePlan, plan_of
from canary.witness import Breaches, Judgement, Missing, Notice, Result, judge
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.outlets.kafka import MemoryOutlet
from lagloss_server.model.canary import GRACE_S, alerting_rule
from lagloss_server.model.canary_definition import canary_definition
from lagloss_server.model.definition import as_document
from tests.oracle.evidence import Record, World
from tests.support.canary_past import in_the_past
from tests.support.in_memory import close_in_memory
from tests.support.stages import Clock

SECRET = b"s" * 32
MINUTES = 10


@dataclass
class Log:
    """Both topics, in memory."""

    records: dict[str, list[Record]] = field(default_factory=lambda: {BEACONS: [], REPORTS: []})
    lock: threading.Lock = field(default_factory=threading.Lock)
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)


class LogOutlet(MemoryOutlet):
    """An emitter's outlet to a log that it shares with others, by a test's clock."""

    def __init__(self, log: Log, clock: Clock) -> None:
        super().__init__(partition_count=2)
        self._log, self._clock = log, clock

    def poll(self, timeout_s: float) -> None:
        if not self._waiting:
            time.sleep(min(timeout_s, 0.001))
        while self._waiting:
            outgoing = self._waiting.popleft()
            place = outgoing.topic, max(outgoing.partition, 0)
            with self._log.lock:
                offset = self._log.ends[place]
                self._log.ends[place] += 1
                record = Record(place[1], offset, self._clock.now_ms, outgoing.key, outgoing.value)
                self._log.records[outgoing.topic].append(record)
            outgoing.done(place[1], offset)


def alerted(plan: MinutePlan, result: Result) -> Judgement:
    rule = alerting_rule(plan.breaching_place)
    notices = {plan.start_s: Notice(rule, len(plan.messages), len(plan.lost), tuple(plan.lost))}
    return judge(plan, result, [Breaches(rule, ((plan.start_s, plan.start_s),))], notices)


def closed(world: World, plan: MinutePlan) -> Result:
    closing = close_in_memory(world, plan.start_s, 100)
    missing = tuple(Missing(message.id.name, message.kind, message.places) for message in closing.missing)
    return Result(1, closing.result, missing)


@pytest.fixture(scope="module")
def simulated() -> tuple[list[MinutePlan], World]:
    start_s = int(time.time()) // HOUR_S * HOUR_S - 2 * HOUR_S
    plans = [plan_of(SECRET, start_s + number * MINUTE_S) for number in range(MINUTES)]
    log = Log()
    with in_the_past(start_s, lambda clock: LogOutlet(log, clock)) as past:
        for plan in plans:
            past.play(plan)
        past.pass_to(past.clock.now_ms + (GRACE_S + 10) * 1_000)
        now_ms = past.clock.now_ms
    document: dict[str, Any] = as_document(canary_definition())
    return plans, World(((0, document),), tuple(log.records[BEACONS]), tuple(log.records[REPORTS]), now_ms)


def test_each_minute_is_right(simulated: tuple[list[MinutePlan], World]) -> None:
    plans, world = simulated

    assert {plan.start_s: alerted(plan, closed(world, plan)).problems for plan in plans} == {
        plan.start_s: () for plan in plans
    }


def test_a_beacon_that_is_missing_in_the_log_is_noticed(simulated: tuple[list[MinutePlan], World]) -> None:
    plans, world = simulated
    kept = [record for number, record in enumerate(world.beacons) if number % 10]
    spoilt = World(world.definitions, tuple(kept), world.reports, world.now_ms)

    assert any(not alerted(plan, closed(spoilt, plan)).is_right for plan in plans[:5])
