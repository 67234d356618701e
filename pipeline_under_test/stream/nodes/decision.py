"""Decision of a node about one event, faults included, and its ledger entries. No I/O: see loop.py for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline_under_test.harness.ledger import LedgerEntry, place_of_link, place_of_node
from pipeline_under_test.stream.event_faults import INJECTED, Plan
from pipeline_under_test.stream.events.event import Event
from pipeline_under_test.stream.topology import NEXT


@dataclass(frozen=True, slots=True)
class Pass:
    """The event continues, perhaps changed, to these next nodes (none: it is delivered)."""

    event: Event
    to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Filtered:
    """The event is dropped on purpose."""

    reason: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The event goes to the dead-letter queue: it cannot be processed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The event is forgotten: a fault, never what a node decides."""


Decision = Pass | Filtered | Dead


def decided(event: Event, plan: Plan, decide: Callable[[Event], Decision]) -> Decision | Lost:
    """Return what becomes of `event` at a node: its faults' decision, else the node's."""
    if plan.swallow:
        return Lost()
    if plan.filtered:
        return Filtered(INJECTED)
    if plan.dead:
        return Dead(INJECTED)
    return decide(event)


def ledger_entries(node: str, event: Event, plan: Plan, decision: Decision | Lost) -> Iterator[LedgerEntry]:
    """Return the facts to have on disk before `decision` is carried out."""
    place = place_of_node(node)
    if plan.delay_s:
        yield LedgerEntry("delayed", event.id, event.event_time_ms, place)
    match decision:
        case Lost():
            yield LedgerEntry("lost", event.id, event.event_time_ms, place)
        case Filtered(reason):
            yield LedgerEntry("filtered", event.id, event.event_time_ms, place, reason)
        case Dead(reason):
            yield LedgerEntry("dead", event.id, event.event_time_ms, place, reason)
        case Pass(_, to):
            if plan.copies > 1:
                yield LedgerEntry("duplicated", event.id, event.event_time_ms, place)
            for receiver in to:
                if len(NEXT.get(node, ())) > 1:
                    yield LedgerEntry("routed", event.id, event.event_time_ms, place_of_link(node, receiver))
                if receiver in plan.lost_links:
                    yield LedgerEntry("lost", event.id, event.event_time_ms, place_of_link(node, receiver))
                elif receiver in plan.corrupted_links:
                    yield LedgerEntry("corrupted", event.id, event.event_time_ms, place_of_link(node, receiver))
