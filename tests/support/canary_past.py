"""The canary's nodes on a clock of the test's own, an hour or so ago: all of them have the SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from canary.plan import MINUTE_S, MinutePlan
from canary.sender import Lane
from lagloss.sdk.emitter import Emitter
from lagloss.sdk.outlets.kafka import Outlet
from lagloss_server.model.canary import APP, CANARY, RELAY, STORE
from tests.support.stages import Clock

HOP_MS = 20
"""From one checkpoint to the next."""


@dataclass
class Past:
    """The nodes."""

    clock: Clock
    make_outlet: Callable[[], Outlet]
    opened: ExitStack
    emitters: dict[str, Emitter] = field(default_factory=dict)
    lanes: list[Lane] = field(default_factory=list)

    def __post_init__(self) -> None:
        for node in (APP, RELAY, STORE):
            emitter = Emitter(CANARY, node, first=node == APP, traces=False, outlet=self.make_outlet)
            self.opened.callback(emitter.close)
            self.emitters[node] = emitter
            self.lanes.append(Lane(node))
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
