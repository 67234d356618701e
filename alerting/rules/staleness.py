"""Staleness: how long ago the newest event that reached a delivery checkpoint happened, while messages come in.

Event times are known by the minute; the end of the newest minute stands for them, so that staleness is never
overstated. A message is waited for from the start of the first later minute that has messages to deliver: after an idle
hour, the first message is not an hour late. Once nothing has come in for as long as is allowed, the source is idle, and
what it sent last is a matter of loss. A checkpoint where nothing was ever delivered has no staleness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Document, Unit
from alerting.rules.counting import by_the_clock
from alerting.rules.view import PipelineView
from lagloss.wire.format import WINDOW_S
from lagloss_server import format as fmt
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph


@dataclass(frozen=True, slots=True)
class Staleness:
    """`delivery`: the delivery checkpoints in the order of the flow; the worst is the value."""

    kind: ClassVar[str] = "staleness"
    name: ClassVar[str] = "staleness"
    what: ClassVar[str] = "staleness of a delivery checkpoint"
    unit: ClassVar[Unit] = "s"
    higher_is_worse: ClassVar[bool] = True
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    severity: Severity
    target: float
    delivery: tuple[str, ...]

    def assess(self, view: PipelineView) -> Assessment:
        newest = dict(self._newest(view))
        stale = {name: view.now_s - at - WINDOW_S for name, at in newest.items()}
        awaited = {name for name, at in newest.items() if self._awaited_s(view, at) > self.target}
        late = sorted(((stale[name], name) for name in awaited if stale[name] > self.target), reverse=True)
        places = tuple(
            BreachPlace("checkpoint", name, None, f"newest event {fmt.duration_s(stale_s)} ago")
            for stale_s, name in late
        )
        value = late[0][0] if late else max(stale.values(), default=None)
        return by_the_clock(view, value, bool(late), places)

    def _newest(self, view: PipelineView) -> Iterator[tuple[str, int]]:
        """Return the newest minute (epoch s) at each delivery checkpoint that has one."""
        delivered = view.windows.column("delivered")
        for at, name in enumerate(self.delivery):
            windows = np.flatnonzero(delivered & (1 << at))
            closed = int(view.windows.starts[windows[-1]]) if len(windows) else None
            found = [start for start in (closed, view.newest_s.get(name)) if start is not None]
            if found:
                yield name, max(found)

    def _awaited_s(self, view: PipelineView, newest_s: int) -> float:
        """Return how long messages of a minute after this one have been waited for, 0 if none come in any more."""
        first = view.windows.first_at(newest_s + 1)
        due = np.flatnonzero(view.windows.column("on_time_of")[first:])
        closed = view.windows.starts[first + due].tolist()
        came = [*closed, *(start for start in view.arrived_s if start > newest_s)]
        if not came or view.now_s - max(came) - WINDOW_S > self.target:
            return 0.0
        return view.now_s - float(min(came))

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        stale, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"newest event delivered {stale} ago while messages come in, limit {limit}"


def staleness_rules(definition: Definition) -> list[Staleness]:
    settings = definition.spec.alerts.staleness
    if settings is None:
        return []
    return [Staleness(settings.severity, definition.spec.sla.staleness.max / 1_000, Graph(definition).delivery)]
