"""Measures: the numbers that rules read of a window's document, named as windows keep them.

A count of the whole pipeline is a column of the windows (`dead`); one at a place has the place behind its name (`dead
node mid`). Habits are read of roll-ups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from msgspec import Struct

from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import node_of
from lagloss_server.model.place import Place, ends_of
from lagloss_server.model.rule_places import of_pipeline, spread
from lagloss_server.model.window import HeldPercentile, LinkCounts, NodeCounts, Window, on_time_counts
from lagloss_server.sums.rollup import CheckpointSums, PartSums, Rollup

Count = Literal["messages", "lost_min", "lost_max", "pending", "dead", "filtered", "duplicates", "corrupted"]
What = Count | HeldPercentile | Literal["on_time", "on_time_of", "lowest_p50"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A count, or a percentile of lag in ms, of the whole pipeline or at one place.

    Messages at a place are those due at a destination, taken in by a node, sent over a link, seen at a checkpoint, or
    of a side. A node's lag is its process duration, a link's its queue time; `lowest_p50` is the lowest median of any
    checkpoint.
    """

    what: What
    place: Place | None = None

    @property
    def name(self) -> str:
        return self.what if self.place is None else f"{self.what} {self.place}"

    def of(self, window: Window) -> float | None:
        """Return the number; None where it is not known, or there was no message to measure."""
        if self.place is None:
            value = _of_pipeline(self.what, window)
        else:
            value = _AT[self.place.kind](self.what, self.place.name, window)
        return None if value is None else float(value)

    def total(self, rollup: Rollup) -> int:
        """Return the number of messages, or of filtered ones, over the windows of a roll-up; 0 if there is none."""
        if self.place is None:
            total: int = getattr(rollup, self.what)
        elif self.place.kind == "destination":
            total = getattr(rollup.destinations.get(self.place.name, PartSums()), self.what)
        else:
            sums = (rollup.checkpoints.get(name, CheckpointSums()) for name in _points(self.what, self.place))
            total = next((counts.beacons for counts in sums if counts.beacons), 0)
        return total


def placed(definition: Definition, kind: str, with_targets: Iterable[Place] = ()) -> list[tuple[Place | None, Any]]:
    """Return the places of the rules of a kind (`dead-letters`), each with its settings; None is the whole pipeline."""
    return spread(_settings(definition, kind), definition.graph, with_targets)


def placed_among(
    definition: Definition, kind: str, nodes: AbstractSet[str]
) -> Iterator[tuple[Place | None, Any, frozenset[str]]]:
    """Yield the places of the rules of a kind that is about some nodes, each with its settings and its nodes: the rule
    of the whole pipeline has those without settings of their own."""
    settings_by_place = placed(definition, kind)
    single = {place.name for place, _ in settings_by_place if place is not None}
    for place, settings in settings_by_place:
        own = nodes - single if place is None else nodes & {place.name}
        if own:
            yield place, settings, frozenset(own)


def covered_by(definition: Definition, kind: str, place: Place | None) -> tuple[str, ...]:
    """Return what a rule about a place is inhibited by: the rule of the whole pipeline, if there is one."""
    has_one = of_pipeline(_settings(definition, kind)) is not None
    return (kind,) if has_one and place is not None else ()


def _settings(definition: Definition, kind: str) -> Any:
    return getattr(definition.spec.alerts, kind.replace("-", "_"))


def labels_within(definition: Definition, place: Place | None) -> frozenset[str] | None:
    """Return the labels (`node mid`, `link a->b`) of the places at which a message of this one can go missing: that
    itself, or those of a destination's part of the graph. None: anywhere."""
    if place is None or place.kind == "checkpoint":
        return None
    if place.kind in ("node", "link"):
        return frozenset({place.label, Place("retrier", place.name).label})
    graph = definition.graph
    if place.kind == "side":
        part = graph.side_of(place.name).mask
    else:
        part = next(destination.part for destination in graph.destinations if destination.name == place.name)
    return frozenset(place.label for place in graph.places if place.origin & part)


def own_targets(definition: Definition, objective: Literal["loss", "lag"]) -> list[Place]:
    """Return the destinations that have a target of their own. Where the graph has several sides, a loss is also that
    of a side, and a lag that of a destination: that of many messages on one side would hide that of few on another."""
    targets, graph = definition.spec.sla.destinations, definition.graph
    places = [Place("destination", name) for name, sla in targets.items() if getattr(sla, objective) is not None]
    if len(graph.sides) == 1:
        return places
    if objective == "loss":
        return [*places, *(Place("side", side.name) for side in graph.sides)]
    return [Place("destination", destination.name) for destination in graph.destinations]


def _of_pipeline(what: What, window: Window) -> float | None:
    if what in ("p50", "p95", "p99"):
        return _number(window.e2e_lag_ms, what)
    if what == "lowest_p50":
        medians = [checkpoint.lag_ms.p50 for checkpoint in window.checkpoints]
        return min((lag for lag in medians if lag is not None), default=None)
    if what in ("lost_min", "lost_max"):
        return _number(window.lost, what.removeprefix("lost_"))
    if what == "duplicates":
        return max((checkpoint.duplicates or 0 for checkpoint in window.checkpoints), default=0)
    if what == "corrupted":
        counts = [link.corrupted for link in window.links if link.corrupted is not None]
        return sum(counts) if counts else None
    return _number(window, what)


def _at_destination(what: What, name: str, window: Window) -> float | None:
    row = _row(window.destinations, name)
    if row is None:
        return None
    if what in ("p50", "p95", "p99"):
        return _number(row.e2e_lag_ms, what)
    if what in ("lost_min", "lost_max"):
        return _number(row.lost, what.removeprefix("lost_"))
    if what in ("on_time", "on_time_of"):
        return row.on_time_of if what == "on_time_of" else on_time_counts(row)[0]
    return _number(row, what)


def _at_side(what: What, name: str, window: Window) -> float | None:
    row = _row(window.sides, name)
    if row is None:
        return None
    if what in ("lost_min", "lost_max"):
        return None if row.lost is None else _number(row.lost, what.removeprefix("lost_"))
    return _number(row, what)


def _at_node(what: What, name: str, window: Window) -> float | None:
    if what in _POINT_OF:
        return _beacons(window, _points(what, Place("node", name)))
    if what == "duplicates":
        own = [checkpoint for checkpoint in window.checkpoints if node_of(checkpoint.name) == name]
        return max((counts.duplicates or 0 for counts in own), default=0)
    row = _row(window.nodes, name)
    return None if row is None else _lost_or_lag(what, row, "process_duration_p95_ms")


def _at_link(what: What, name: str, window: Window) -> float | None:
    if what == "messages":
        return _beacons(window, _points(what, Place("link", name)))
    row = _row(window.links, name)
    if row is None:
        return None
    return _number(row, what) if what == "corrupted" else _lost_or_lag(what, row, "queue_time_p95_ms")


def _at_checkpoint(what: What, name: str, window: Window) -> float | None:
    row = _row(window.checkpoints, name)
    if what == "messages":
        return 0 if row is None else row.beacons
    if what == "duplicates":
        return 0 if row is None else row.duplicates or 0
    return None if row is None else _number(row.lag_ms, what)


_AT: Final[Mapping[str, Callable[[What, str, Window], float | None]]] = {
    "destination": _at_destination,
    "node": _at_node,
    "link": _at_link,
    "checkpoint": _at_checkpoint,
    "side": _at_side,
}
_POINT_OF: Final[Mapping[What, str]] = {"messages": "in", "dead": "dead", "filtered": "filtered"}


def _lost_or_lag(what: What, counts: NodeCounts | LinkCounts, lag: str) -> float | None:
    if what not in ("lost_min", "lost_max"):
        return _number(counts, lag)
    return None if counts.lost is None else _number(counts.lost, what.removeprefix("lost_"))


def _points(what: What, place: Place) -> tuple[str, ...]:
    """Return the checkpoints whose beacons are the messages at a node, link or checkpoint: those of the first that has
    some."""
    if place.kind == "node":
        return (f"{place.name}.{_POINT_OF[what]}",)
    if place.kind == "link":
        source, target = ends_of(place.name)
        return f"{source}.out:{target}", f"{source}.out"
    return (place.name,) if place.kind == "checkpoint" else ()


def _beacons(window: Window, points: Iterable[str]) -> float:
    rows = (_row(window.checkpoints, name) for name in points)
    return next((float(row.beacons) for row in rows if row is not None and row.beacons), 0.0)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Row = TypeVar("_Row", bound=_Named)


def _row(rows: Iterable[_Row], name: str) -> _Row | None:
    return next((row for row in rows if row.name == name), None)


def _number(struct: Struct | None, key: str) -> float | None:
    value = getattr(struct, key, None)
    return None if value is None else float(value)
