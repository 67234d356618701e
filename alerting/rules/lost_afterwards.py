"""Lost afterwards: messages whose rows were in a tapped table, and are not any more.

The taps compare rows again and state which are gone; here is which of their statements are a breach: those of minutes
that are still compared, and that no one has accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import by_the_clock
from alerting.rules.measures import Measure, covered_by, placed_among
from alerting.rules.view import PipelineView
from lagloss_server.base import format as fmt
from lagloss_server.incidents.lost_afterwards import LostAtNode, by_node
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class LostAfterwards(PlacedRule):
    """The value is the number of messages; `nodes`: those whose tables it is about."""

    kind: str = "lost-afterwards"
    unit: ClassVar[Unit] = "messages"
    reads: ClassVar[tuple[Measure, ...]] = ()

    nodes: frozenset[str]

    @property
    def what(self) -> str:
        return "messages lost afterwards" + ("" if self.place is None else f" at {self.place}")

    def assess(self, view: PipelineView) -> Assessment:
        if view.lost_afterwards is None:
            return by_the_clock(view, None, False)
        nodes = by_node(minute for minute in view.lost_afterwards if minute.node in self.nodes)
        lost = sum(node.outstanding for node in nodes)
        if lost <= self.target:
            return by_the_clock(view, lost, False)
        places = tuple(_place(node, lost) for node in nodes)
        return by_the_clock(view, lost, True, places, "; ".join(node.words for node in nodes))

    def due_s(self, view: PipelineView) -> float:
        return math.inf  # statements are found for all pipelines at once: see `pre_check`

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        return f"{fmt.counted(round(value), 'message')} lost afterwards, limit {fmt.count(self.target)}"


def lost_afterwards_rules(definition: Definition) -> list[LostAfterwards]:
    """Return the rule of all tables whose rows are compared again, and one of each node that has its own settings; none
    where the definition has no `recheck`."""
    kind, with_recheck = "lost-afterwards", {tap.node for tap in definition.table_taps if tap.recheck_ms}
    return [
        LostAfterwards(
            place=place,
            severity=settings.severity,
            target=float(settings.max),
            nodes=nodes,
            inhibited_by=covered_by(definition, kind, place),
        )
        for place, settings, nodes in placed_among(definition, kind, with_recheck)
    ]


def _place(node: LostAtNode, lost: int) -> BreachPlace:
    text = f"{fmt.count(node.outstanding)} lost afterwards"
    return BreachPlace("node", node.node, node.outstanding / lost, text, node.outstanding)
