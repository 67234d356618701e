"""Uncertain loss: messages that are overdue or perhaps lost, more than the target over some minutes, and the evidence
that is missing to be sure.

A window becomes uncertain late: what is missing is pending until `maxWait` has passed. So while messages of a window
are pending, no later window ends an incident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import WindowSlice, counts, making_up, of_last
from alerting.rules.loss import messages_at
from alerting.rules.measures import Measure, covered_by, labels_within, own_targets, placed
from alerting.rules.places import uncertain_places
from alerting.rules.view import PipelineView
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Definition
from lagloss_server.model.rule_places import of_pipeline
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainLoss(PlacedRule):
    """`windows`: over how many of them the share is taken. `within`: labels of the places that it is about; None:
    all."""

    kind: str = "uncertain-loss"
    what: ClassVar[str] = "share of messages that are overdue or possibly lost"
    unit: ClassVar[Unit] = "ratio"

    within: frozenset[str] | None
    windows: int
    resolve_after: int

    @property
    def reads(self) -> Iterable[Measure]:
        return (*self._bounds, self._pending, messages_at(self.place))

    @property
    def _bounds(self) -> tuple[Measure, Measure]:
        return Measure("lost_min", self.place), Measure("lost_max", self.place)

    @property
    def _pending(self) -> Measure:
        """Pending messages are not counted by node or link; those of the whole pipeline stand in."""
        return Measure("pending", messages_at(self.place).place)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.windows)
        certain, most = (counts(recent, bound) for bound in self._bounds)
        unsure, total = most - certain, counts(recent, messages_at(self.place))
        together = of_last(self.windows, unsure) / np.maximum(of_last(self.windows, total), 1)
        own = unsure > self.target * total
        made_up = making_up(self.windows, own, own & (together > self.target))
        good = ~(together > self.target) & (recent.windows.starts < self._undecided_from_s(view))
        return recent.assessment(made_up, together, good & ~made_up, self.resolve_after)

    def _undecided_from_s(self, view: PipelineView) -> float:
        """Return the start (epoch s) of the first window with too many pending messages, which can be long before the
        news; inf if there is none."""
        whole = WindowSlice.whole(view)
        undecided = counts(whole, self._pending) > self.target * counts(whole, messages_at(self.place))
        starts = whole.windows.starts[undecided]
        return float(starts[0]) if len(starts) else math.inf

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return uncertain_places(breached, self.within)

    def text(self, value: float) -> str:
        share, target = fmt.against(fmt.percent, value, self.target)
        what = "messages" if self.place is None else f"messages at {self.place}"
        return f"{share} of {what} overdue or possibly lost over {fmt.duration_s(60 * self.windows)}, target {target}"


def uncertain_loss_rules(definition: Definition) -> list[UncertainLoss]:
    alerts, sla = definition.spec.alerts, definition.spec.sla
    explained_by = [] if of_pipeline(alerts.loss) is None else ["loss"]
    if alerts.blind is not None:
        explained_by.append("blind/evidence")
    rules = []
    for place, settings in placed(definition, "uncertain-loss", own_targets(definition, "loss")):
        of_place = sla.loss if place is None or place.kind != "destination" else sla.loss_at(place.name)
        rules.append(
            UncertainLoss(
                place=place,
                within=labels_within(definition, place),
                severity=settings.severity,
                target=of_place.max if settings.max is None else settings.max,
                windows=settings.over // 60_000,
                resolve_after=alerts.resolve_after,
                inhibited_by=(*explained_by, *covered_by(definition, "uncertain-loss", place)),
            )
        )
    return rules
