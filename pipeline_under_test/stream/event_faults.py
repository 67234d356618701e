"""Effects of a node's faults on one event, decided by its id and its event time alone.

So an event that is processed again after a crash meets the same fate, and the ledger needs no undo. Replays are spared:
they bring back what a fault has lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from pipeline_under_test.harness.faults import Injection, hits
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.events.schema import SchemaReader, packaged

INJECTED: Final = "injected"
"""The reason that injected `filtered` and `dead` events carry."""
POISON: Final = b"\xde\xad\xbe\xef"


@dataclass(frozen=True, slots=True)
class Plan:
    """Effects of one node's faults on one event."""

    swallow: bool = False
    filtered: bool = False
    dead: bool = False
    poisoned: bool = False
    refused: bool = False
    copies: int = 1
    delay_s: float = 0.0
    wait_s: float = 0.0
    burn_s: float = 0.0
    lost_links: frozenset[str] = frozenset()
    corrupted_links: frozenset[str] = frozenset()


NO_FAULT: Final = Plan()
Known = Callable[[], Sequence[Injection]]


class Faults:
    """The faults of one node's events. Asking is nearly free where there are none.

    Args:
        node: the node.
        known: gives the faults there are; the same object while they are the same.
        seed: other seeds hit other ids.
    """

    def __init__(self, node: str, read_known: Known = tuple, seed: int = 0) -> None:
        self._node = node
        self._known = read_known
        self._seed = seed
        self._seen: Sequence[Injection] | None = None
        self._mine: list[tuple[Injection, bytes]] = []

    def plan(self, event: Event) -> Plan:
        """Return what happens to this event here; each fault decides by itself, so several may apply to one event."""
        injections = self._known()
        if injections is not self._seen:
            self._seen = injections
            self._mine = [
                (injection, f"{self._seed}|{injection.fault.text}|".encode())
                for injection in injections
                if injection.fault.node == self._node
            ]
        if not self._mine or event.replay is not None:
            return NO_FAULT
        return _combined(
            [
                injection
                for injection, salt in self._mine
                if injection.holds(event.event_time_ms) and hits(salt, event.id, injection.fault.share)
            ]
        )


def _combined(holding: Sequence[Injection]) -> Plan:
    if not holding:
        return NO_FAULT
    faults = [injection.fault for injection in holding]
    kinds = {fault.kind for fault in faults}
    seconds = partial(_seconds_of, holding)
    return Plan(
        swallow="lose-node" in kinds,
        filtered="filter" in kinds,
        dead="dead" in kinds,
        poisoned="poison" in kinds,
        refused="refuse" in kinds,
        copies=2 if "duplicate" in kinds else 1,
        delay_s=seconds("delay"),
        wait_s=seconds("wait"),
        burn_s=seconds("burn"),
        lost_links=frozenset(fault.to for fault in faults if fault.kind == "lose-link" and fault.to),
        corrupted_links=frozenset(fault.to for fault in faults if fault.kind == "corrupt" and fault.to),
    )


def _seconds_of(holding: Sequence[Injection], kind: str) -> float:
    return sum(injection.fault.seconds for injection in holding if injection.fault.kind == kind)


def apply_delay(plan: Plan) -> None:
    """Take the time that the event's faults take: asleep, which costs no CPU, then awake, which does."""
    if plan.wait_s:
        time.sleep(plan.wait_s)
    if plan.burn_s:
        end = time.thread_time() + plan.burn_s
        while time.thread_time() < end:
            pass


def corrupted(event: Event) -> Event:
    """Return the event with another URL: readable as ever, so that only checksums show it."""
    reader = SchemaReader(packaged())
    content = reader.decode(event.body)
    return event.with_body(reader.schema.encode({**content, "url": f"{content['url']}#changed"}))


def poisoned(event: Event) -> Event:
    """Return the event with a body that cannot be decoded."""
    return event.with_body(POISON)
