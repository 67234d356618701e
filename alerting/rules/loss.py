"""Loss: windows that lost more than the target for certain. Each is worth a ticket at once, since the loss is exact; it
pages once it is sure to matter.

What pages are k of the last n windows, or one that lost a large share or a large number. `ok` and `idle` windows are
good, `unknown` ones say nothing either way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import OutOf, WindowSlice, counts, making_up
from alerting.rules.measures import Measure, covered_by, labels_within, own_targets, placed
from alerting.rules.places import loss_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import IDLE, LOSS, OK, Flags, Floats, Ints
from lagloss_server.base import format as fmt
from lagloss_server.model.alert_rules import LossPage
from lagloss_server.model.definition import Definition
from lagloss_server.model.place import Place
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRule(PlacedRule):
    """`target`: the share that may be lost, of the messages due at a destination, of a side, or of all. `page` None: no
    loss
    pages. `within`: labels of the places that it is about; None: all."""

    kind: str = "loss"
    what: ClassVar[str] = "loss_ratio"
    unit: ClassVar[Unit] = "ratio"

    within: frozenset[str] | None
    page: LossPage | None
    resolve_after: int

    @property
    def reads(self) -> Iterable[Measure]:
        return (self._lost, self._lost_max, self._of)

    @property
    def _lost(self) -> Measure:
        return Measure("lost_min", self.place)

    @property
    def _lost_max(self) -> Measure:
        return Measure("lost_max", self.place)

    @property
    def _of(self) -> Measure:
        return messages_at(self.place)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, 1 if self.page is None else self.page.of)
        lost, total = counts(recent, self._lost), counts(recent, self._of)
        ratios: Floats = lost / np.maximum(total, 1)
        lossy = ratios > self.target
        good = self._good(recent, lossy, total)
        pages = self._pages(recent, lossy, lost, ratios)
        return recent.assessment(lossy, ratios, good, self.resolve_after, tickets=~pages)

    def _good(self, recent: WindowSlice, lossy: Flags, total: Ints) -> Flags:
        """Return the windows that are known to be good here: also those whose loss is elsewhere alone."""
        verdicts = recent.windows.column("verdict")
        elsewhere = (verdicts == LOSS) & ~lossy
        unsure = counts(recent, self._lost_max) + (recent.windows.column("pending") if self.place is None else 0)
        good: Flags = np.isin(verdicts, (OK, IDLE)) | (elsewhere & (unsure <= self.target * total))
        return good & ~lossy

    def _pages(self, recent: WindowSlice, lossy: Flags, lost: Ints, ratios: Floats) -> Flags:
        page = self.page
        if page is None:
            return np.zeros(len(lossy), np.bool_)
        out_of = OutOf(page.breaches, page.of, page.min_messages, self.resolve_after)
        at_once = (ratios > page.at_once) & out_of.enough(recent, self._of) | (lost > page.lost_messages)
        return making_up(page.of, lossy, out_of.breach_at(recent, lossy, self._of)) | (lossy & at_once)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return loss_places(breached, self.within)

    def text(self, value: float) -> str:
        lost, target = fmt.against(fmt.percent, value, self.target)
        return f"{lost} of messages {_there(self.place)}lost, target {target}"


def loss_rules(definition: Definition) -> list[LossRule]:
    alerts, sla = definition.spec.alerts, definition.spec.sla
    rules = []
    for place, settings in placed(definition, "loss", own_targets(definition, "loss")):
        of_place = sla.loss if place is None or place.kind != "destination" else sla.loss_at(place.name)
        target = of_place.max if settings.max is None else settings.max
        rules.append(
            LossRule(
                place=place,
                severity="warning" if settings.page is None else "critical",
                within=labels_within(definition, place),
                target=target,
                page=settings.page,
                resolve_after=alerts.resolve_after,
                inhibited_by=covered_by(definition, "loss", place),
            )
        )
    return rules


def messages_at(place: Place | None) -> Measure:
    """Return the messages that a loss is a share of: those due at a destination or of a side, of other places those of
    the pipeline."""
    return Measure("messages", place if place is not None and place.kind in ("destination", "side") else None)


def _there(place: Place | None) -> str:
    if place is None:
        return ""
    return f"due at {place} " if place.kind == "destination" else f"at {place} "
