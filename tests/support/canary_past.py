"""The canary's nodes on a clock of the test's own, an hour or so ago: all of them have the SDK."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from canary.plan import HOUR_S, MINUTE_S, MinutePlan, plan_of
from canary.sender import CanaryLane
from canary.witness import Breaches, Judgement, MissingName, Notice, Result, judge
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.outlets.kafka import MemoryOutlet, Outlet
from lagloss_server.model.canary import APP, CANARY, GRACE_S, RELAY, STORE, alerting_rule
from lagloss_server.model.canary_definition import canary_definition
from lagloss_server.model.definition import as_document
from tests.oracle.evidence import Record, World
from tests.support.in_memory import close_in_memory
from tests.support.stages import Clock

SECRET = b"s" * 32
HOP_MS = 20
"""From one checkpoint to the next."""


@dataclass
class Past:
    """The nodes."""

    clock: Clock
    make_outlet: Callable[[], Outlet]
    opened: ExitStack
    emitters: dict[str, Emitter] = field(default_factory=dict)
    lanes: list[CanaryLane] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in (APP, RELAY, STORE):
            emitter = Emitter(CANARY, node, first=node == APP, traces=False, outlet=self.make_outlet)
            self.opened.callback(emitter.close)
            self.emitters[node] = emitter
            self.lanes.append(CanaryLane(node))
            emitter.follow(self.lanes[-1])
            emitter.processing().done()  # from here on it reports its work in flight: none

    def play(self, plan: MinutePlan) -> None:
        """Let a minute pass."""
        app_, relay, store = self.emitters.values()
        steps: list[tuple[int, Any]] = []

        def at(time_ms: int, call: Any, *arguments: Any, **options: Any) -> None:
            steps.append((time_ms, lambda: call(*arguments, observed_at=time_ms, **options)))

        for message in plan.messages:
            event_ms = plan.start_s * 1_000 + message.offset_ms
            name, place = message.id, message.place
            at(event_ms, app_.received, name, event_ms, payload_crc=message.checksum)
            at(event_ms, app_.sent, name, event_ms, payload_crc=message.checksum)
            if message.fate == "lost" and place == f"link {APP}->{RELAY}":
                continue
            crc = message.checksum ^ (message.fate == "corrupted")
            for _ in range(1 + (place == f"{RELAY}.in")):
                at(event_ms + HOP_MS, relay.received, name, event_ms, payload_crc=crc)
            if message.fate == "dead":
                at(event_ms + 2 * HOP_MS, relay.dead_lettered, name, event_ms, "canary")
                continue
            if place == f"node {RELAY}":
                continue
            for _ in range(1 + (place == f"{RELAY}.out")):
                at(event_ms + 2 * HOP_MS, relay.sent, name, event_ms)
            if place == f"link {RELAY}->{STORE}":
                continue
            for _ in range(1 + (place == f"{STORE}.in")):
                at(event_ms + 3 * HOP_MS, store.received, name, event_ms)
            if place != f"node {STORE}":
                at(event_ms + 4 * HOP_MS + message.delay_ms, store.sent, name, event_ms)
        for time_ms, step in sorted(steps, key=lambda step: step[0]):
            self.clock.now_ms = max(self.clock.now_ms, time_ms)
            assert step()
        self.pass_to((plan.start_s + MINUTE_S) * 1_000)

    def pass_to(self, time_ms: int) -> None:
        self.clock.now_ms = time_ms
        for lane in self.lanes:
            lane.until_ms = time_ms
        for emitter in self.emitters.values():
            assert emitter.flush(10)


@contextmanager
def in_the_past(start_s: int, make_outlet: Callable[[Clock], Outlet]) -> Iterator[Past]:
    """The nodes some seconds before a minute starts."""
    clock = Clock(start_s * 1_000 - 30_000)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        for module in ("emitter", "flusher", "shipper"):
            patch.setattr(f"lagloss.sdk.{module}.now_ms", clock.here_ms)
        patch.setattr("lagloss.sdk.buffer.time_ns", lambda: clock.here_ms() * 1_000_000)
        past = Past(clock, lambda: make_outlet(clock), opened)
        past.pass_to(clock.now_ms)
        yield past


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


def simulate(minutes: int, secret: bytes = SECRET) -> tuple[list[MinutePlan], World]:
    """Return the plans of so many minutes of the last hours, and what the log holds when all of them are due."""
    start_s = int(time.time()) // HOUR_S * HOUR_S - 2 * HOUR_S
    plans = [plan_of(secret, start_s + number * MINUTE_S) for number in range(minutes)]
    log = Log()
    with in_the_past(start_s, lambda clock: LogOutlet(log, clock)) as past:
        for plan in plans:
            past.play(plan)
        past.pass_to(past.clock.now_ms + (GRACE_S + 10) * 1_000)
        now_ms = past.clock.now_ms
    document: dict[str, Any] = as_document(canary_definition())
    return plans, World(((0, document),), tuple(log.records[BEACONS]), tuple(log.records[REPORTS]), now_ms)


def judged(world: World, plan: MinutePlan) -> Judgement:
    """Judge a minute of a world, by the aggregator's own functions, and compare it with its plan."""
    closing = close_in_memory(world, plan.start_s, 100)
    missing = tuple(
        MissingName(message.id.name, message.kind, message.places, message.last_checkpoint)
        for message in closing.missing
    )
    return alerted(plan, Result(1, closing.result, missing))


def alerted(plan: MinutePlan, result: Result) -> Judgement:
    """The judgement of a minute whose incident and notification are as they should be."""
    rule = alerting_rule(plan.breaching_place)
    notices = {plan.start_s: Notice(rule, len(plan.messages), len(plan.lost), tuple(plan.lost))}
    return judge(plan, result, [Breaches(rule, ((plan.start_s, plan.start_s),))], notices)
