"""Staleness: how long ago the newest event that reached a checkpoint happened, while messages come in.

Event times are known by the minute; the end of the newest minute stands for them, so that staleness is never
overstated. A message is waited for since it came in, not since its event time: the past that is sent today is not late
by its age. Once nothing has come in for as long as is allowed, the source is idle, and what it sent last is a matter of
loss. A checkpoint that no message ever reached has no staleness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import by_the_clock
from alerting.rules.measures import Measure, covered_by, placed
from alerting.rules.view import PipelineView
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.judging.staleness import event_age_s
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import node_of
from lagloss_server.model.place import Place
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness(PlacedRule):
    """`watches`: the checkpoints in the order of the flow; the worst is the value. `fed_by`: of each, the sources whose
    messages may come there."""

    kind: str = "staleness"
    unit: ClassVar[Unit] = "s"
    reads: ClassVar[tuple[Measure, ...]] = ()

    watches: tuple[str, ...]
    fed_by: tuple[frozenset[str], ...]

    @property
    def what(self) -> str:
        return f"staleness of {self._where}"

    @property
    def _where(self) -> str:
        return "a delivery checkpoint" if self.place is None else self.watches[0]

    def assess(self, view: PipelineView) -> Assessment:
        newest = dict(self._newest(view))
        stale = {name: event_age_s(start_s, view.now_s) for name, start_s in newest.items()}
        awaited = {name for name, start_s in newest.items() if self._awaited_s(view, name, start_s) > self.target}
        late = sorted(((stale[name], name) for name in awaited if stale[name] > self.target), reverse=True)
        places = tuple(
            BreachPlace("checkpoint", name, None, f"newest event {fmt.duration_s(stale_s)} ago")
            for stale_s, name in late
        )
        value = late[0][0] if late else max(stale.values(), default=None)
        return by_the_clock(view, value, bool(late), places)

    def due_s(self, view: PipelineView) -> float:
        """Messages that come in after this view are waited for since then: see `Minutes.take_came`."""
        return min((self._due_at_s(view, name, newest) for name, newest in self._newest(view)), default=math.inf)

    def _due_at_s(self, view: PipelineView, checkpoint: str, newest_s: int) -> float:
        fresh_to_s = newest_s + WINDOW_S + self.target
        if fresh_to_s >= view.now_s:
            return fresh_to_s
        awaited_s = self._awaited_s(view, checkpoint, newest_s)
        return view.now_s + max(0.0, self.target - awaited_s) if awaited_s else math.inf

    def _newest(self, view: PipelineView) -> Iterator[tuple[str, int]]:
        """Return the newest minute (epoch s) at each checkpoint that has one."""
        for name in self.watches:
            starts = [start for start in (view.windows.newest_live(name), view.newest_s.get(name)) if start is not None]
            if starts:
                yield name, max(starts)

    def _awaited_s(self, view: PipelineView, checkpoint: str, newest_s: int) -> float:
        """Return how long messages of a minute after this one have been waited for, 0 if none come in any more."""
        first = view.windows.first_at(newest_s + 1)
        due = np.flatnonzero(view.windows.due(checkpoint)[first:])
        closed = view.windows.starts[first + due].tolist()
        came_s = view.came_s(self.fed_by[self.watches.index(checkpoint)])
        came = [came_s.get(start, float(start)) for start in closed]
        came += [came for start, came in came_s.items() if start > newest_s and start >= (view.newest_end_s or 0)]
        if not came or view.now_s - max(came) - WINDOW_S > self.target:
            return 0.0
        return view.now_s - min(came)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        stale, limit = fmt.against(fmt.duration_s, value, self.target)
        where = "delivered" if self.place is None else f"at {self.watches[0]}"
        return f"newest event {where} is {stale} old while messages keep arriving, limit {limit}"


def staleness_rules(definition: Definition) -> list[Staleness]:
    """Return the rule of the delivery checkpoints, and one of each other that is given a target."""
    graph, sla = definition.graph, definition.spec.sla.staleness
    places = [Place("checkpoint", name) for name in graph.checkpoints if name in sla.checkpoints]
    settings_by_place = placed(definition, "staleness", places)
    single = {place.name for place, _ in settings_by_place if place is not None}
    rules = []
    for place, settings in settings_by_place:
        watched = tuple(name for name in graph.delivery if name not in single) if place is None else (place.name,)
        target_ms = sla.max if place is None else sla.at(place.name)
        if settings.max is not None and (place is None or settings.at):
            target_ms = settings.max
        delivers = place is None or place.name in graph.delivery
        if watched:
            rules.append(
                Staleness(
                    place=place,
                    severity=settings.severity or ("critical" if delivers else "warning"),
                    target=target_ms / 1_000,
                    watches=watched,
                    fed_by=tuple(graph.sources_of(node_of(name)) for name in watched),
                    inhibited_by=covered_by(definition, "staleness", place),
                )
            )
    return rules
