"""Where a message stayed, and for how long: its beacons paired to the time in each node and on each link."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import BEFORE_FIRST
from lagloss_server.model.place import Place, PlaceKind, link_name
from lagloss_server.queries.message_trace import Beacon


class StayDocument(TypedDict):
    """A message's time at one place: see `Stay`."""

    place: str
    kind: PlaceKind
    from_ms: float
    to_ms: float | None
    turn: int
    replay: str | None
    length_ms: float | None


@dataclass(frozen=True, slots=True)
class Stay:
    """A message's time at one place, from its arrival there (epoch ms) to its departure; None where no beacon has
    one. `turn` counts from 1: a retry, or a message that came twice, is there again."""

    place: str
    kind: PlaceKind
    from_ms: float
    to_ms: float | None
    turn: int
    replay: str | None = None

    @property
    def length_ms(self) -> float | None:
        """Negative where the clocks of two hosts disagree."""
        return None if self.to_ms is None else self.to_ms - self.from_ms

    def document(self) -> StayDocument:
        return {
            "place": self.place,
            "kind": self.kind,
            "from_ms": self.from_ms,
            "to_ms": self.to_ms,
            "turn": self.turn,
            "replay": self.replay,
            "length_ms": self.length_ms,
        }


@dataclass(frozen=True, slots=True)
class _Passage:
    """A node or link with the checkpoint where messages arrive there and those where they leave. `is_return`: the way
    back from a retrier, which joins a checkpoint that others lead to, too."""

    place: Place
    arrive: str
    leave: tuple[str, ...]
    is_return: bool = False


def stays(graph: Graph, beacons: Sequence[Beacon]) -> tuple[Stay, ...]:
    """Return the stays in the order of the flow, a replay's after the live ones at the same place."""
    replays = dict.fromkeys(beacon.replay for beacon in beacons)
    return tuple(
        stay
        for passage in _passages(graph)
        for replay in sorted(replays, key=lambda name: name or "")
        for stay in _stays_at(passage, [beacon for beacon in beacons if beacon.replay == replay], replay)
    )


def longest(graph: Graph, beacons: Sequence[Beacon]) -> list[tuple[str, float]]:
    """Return the places that held a message, and for how long (ms), longest first; `BEFORE_FIRST` is one."""
    live = [beacon for beacon in beacons if beacon.replay is None]
    durations: dict[str, float] = {}
    for stay in stays(graph, live):
        if stay.length_ms is not None:
            durations[stay.place] = durations.get(stay.place, 0.0) + stay.length_ms
    arrival = min((beacon.lag_ms for beacon in live if beacon.checkpoint in graph.entrances), default=0.0)
    return sorted({BEFORE_FIRST: arrival, **durations}.items(), key=lambda item: -item[1])


def _passages(graph: Graph) -> Iterator[_Passage]:
    for node in graph.nodes:
        if graph.exits(node):
            yield _Passage(Place("node", node), f"{node}.in", graph.exits(node))
        for link in graph.links:
            if link.source == node:
                yield _Passage(Place("link", link.name), link.out, (f"{link.target}.in",))
        for retrier in graph.retriers:
            if node in graph.users(retrier):
                yield _Passage(Place("link", link_name(node, retrier)), f"{node}.out:{retrier}", (f"{retrier}.in",))
                yield _Passage(Place("link", link_name(retrier, node)), f"{retrier}.out:{node}", (f"{node}.in",), True)


def _stays_at(passage: _Passage, beacons: Sequence[Beacon], replay: str | None) -> Iterator[Stay]:
    arrived = sorted(beacon.observed_ms for beacon in beacons if beacon.checkpoint == passage.arrive)
    observed = {
        name: sorted(beacon.observed_ms for beacon in beacons if beacon.checkpoint == name) for name in passage.leave
    }
    for turn, (from_ms, next_ms) in enumerate(itertools.pairwise([*arrived, math.inf]), start=1):
        ends = [
            min(moments)
            for times in observed.values()
            if (moments := [time_ms for time_ms in times if from_ms <= time_ms < next_ms])
        ]
        if not ends and turn == 1 and not passage.is_return:  # clocks of two hosts may disagree
            ends = [
                max(moments)
                for times in observed.values()
                if (moments := [time_ms for time_ms in times if time_ms < from_ms])
            ]
        yield Stay(passage.place.label, passage.place.kind, from_ms, max(ends, default=None), turn, replay)
