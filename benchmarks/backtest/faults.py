"""Faults of the simulated pipeline: those that scenarios are written with, and two that only evidence shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lagloss_server.model.place import ends_of
from pipeline_under_test.harness.faults import Fault
from pipeline_under_test.stream.faults import parse

CRASHED_S: Final = 3.0
"""A killed process is replaced after so long."""
RESTART_S: Final = 1.0
BROKER_AWAY_S: Final = 4.0
CAPACITY: Final = 7.0
"""How many times its usual load a node can take."""


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """A fault from one moment to another (epoch s).

    `kind`: as in the grammar of faults, or `stuck` (messages on a link that wait for the end of it, in a partition of
    their own) or `blind` (beacons of a node that are counted and never sent).
    """

    kind: str
    from_s: float
    to_s: float
    node: str = ""
    to: str | None = None
    share: float = 1.0
    seconds: float = 0.0
    number: float = 0.0
    answer: str = ""

    @classmethod
    def of(cls, fault: Fault, from_s: float, to_s: float) -> SimulatedFault:
        """Return a fault of the grammar at a time."""
        return cls(
            fault.kind, from_s, to_s, fault.node, fault.to, fault.share, fault.seconds, fault.number, fault.answer
        )

    @classmethod
    def parsed(cls, text: str, from_s: float, to_s: float) -> SimulatedFault:
        """Return a fault by its text: `stuck:A->B:SHARE`, `blind:N`, or one of the grammar."""
        match text.split(":"):
            case ["stuck", link, share]:
                source, target = ends_of(link)
                return cls("stuck", from_s, to_s, source, target, float(share))
            case ["blind", node]:
                return cls("blind", from_s, to_s, node)
            case _:
                return cls.of(parse(text), from_s, to_s)

    def is_on(self, at_s: float) -> bool:
        return self.from_s <= at_s < self.to_s


def outages(faults: Sequence[SimulatedFault], nodes: Sequence[str]) -> dict[str, list[tuple[float, float]]]:
    """Return by node when it takes nothing in, in the order of time."""
    outages: dict[str, list[tuple[float, float]]] = {node: [] for node in nodes}
    for fault in faults:
        for node, from_s, to_s in _outages_of(fault, nodes):
            outages[node].append((from_s, to_s))
    return {node: sorted(times) for node, times in outages.items()}


def _outages_of(fault: SimulatedFault, nodes: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    match fault.kind:
        case "stop" | "stall":
            yield fault.node, fault.from_s, fault.to_s
        case "crash":
            start_s = fault.from_s
            while start_s < fault.to_s:
                yield fault.node, start_s, start_s + CRASHED_S
                start_s += fault.seconds or fault.to_s - fault.from_s
        case "restart":
            hit = nodes if fault.node == "all" else (fault.node,)
            for number, node in enumerate(hit):
                start_s = fault.from_s + number * (fault.to_s - fault.from_s) / len(hit)
                yield node, start_s, start_s + RESTART_S
        case "broker-kill" | "broker-restart":
            for node in nodes:
                yield node, fault.from_s, fault.from_s + BROKER_AWAY_S


def taken_in_at(ready_s: float, times: Sequence[tuple[float, float]], bursts: Sequence[SimulatedFault]) -> float:
    """Return when a message is taken in that is ready at a time: after what waits before it has been worked off."""
    taken = ready_s
    for from_s, to_s in times:
        if from_s <= ready_s:
            taken = max(taken, to_s + (ready_s - from_s) / CAPACITY)
    for burst in bursts:
        if burst.from_s <= ready_s:
            within, after = min(ready_s, burst.to_s) - burst.from_s, max(0.0, ready_s - burst.to_s)
            taken = max(taken, burst.from_s + (within * burst.number + after) / CAPACITY)
    return taken
