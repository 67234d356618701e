"""Shares over some minutes: dead letters and duplicates, more than a share of the messages together.

A window is a breach if it is above the limit by itself and is one of those that together are. So a flood of a minute is
found as well as a trickle, and an incident begins and ends with what is bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import OutOf, WindowSlice, counts, making_up, of_last
from alerting.rules.measures import Measure, covered_by, placed
from alerting.rules.places import checkpoint_places
from alerting.rules.view import PipelineView
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import node_of
from lagloss_server.model.window import CheckpointCounts, Window


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRule(PlacedRule):
    """A count of messages by all messages over `windows`; it has to be `at_least` so high."""

    unit: ClassVar[Unit] = "ratio"

    kind: Literal["dead-letters", "duplicates"]
    windows: int
    at_least: int
    out_of: OutOf

    @property
    def what(self) -> str:
        ratio = "share of dead letters" if self.kind == "dead-letters" else "duplicates per message"
        return ratio if self.place is None else f"{ratio} at {self.place}"

    @property
    def reads(self) -> Iterable[Measure]:
        return self._bad, self._of

    @property
    def _bad(self) -> Measure:
        return Measure("dead" if self.kind == "dead-letters" else "duplicates", self.place)

    @property
    def _of(self) -> Measure:
        return Measure("messages", self.place)

    def assess(self, view: PipelineView) -> Assessment:
        n = self.windows + self.out_of.of - 1
        recent = WindowSlice.of(view, n)
        bad, total = counts(recent, self._bad), counts(recent, self._of)
        bad_together = of_last(self.windows, bad)
        together = bad_together / np.maximum(of_last(self.windows, total), 1)
        above = (together > self.target) & (bad_together >= self.at_least)
        above &= of_last(n, total) >= self.out_of.min_messages
        own = bad > self.target * total
        breach_at = own & above & (of_last(self.out_of.of, above) >= self.out_of.breaches)
        return recent.assessment(making_up(n, own, breach_at), together, ~above, self.out_of.resolve_after)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        if self.kind == "duplicates":
            places = checkpoint_places(breached, lambda counts: counts.duplicates or 0, "duplicates")
        else:
            places = checkpoint_places(breached, _dead_letters, "dead letters")
        if self.place is None or self.place.kind == "destination":
            return places
        return [place for place in places if self.place.name in (place.name, node_of(place.name))]

    def text(self, value: float) -> str:
        share, limit = fmt.against(fmt.percent, value, self.target)
        return f"{self.what} {share} over {fmt.duration_s(60 * self.windows)}, limit {limit}"


def share_rules(definition: Definition) -> list[ShareRule]:
    alerts = definition.spec.alerts
    kinds: tuple[Literal["dead-letters", "duplicates"], ...] = ("dead-letters", "duplicates")
    rules = []
    for kind in kinds:
        for place, settings in placed(definition, kind):
            out_of = OutOf(settings.breaches, settings.of, settings.min_messages, alerts.resolve_after)
            rules.append(
                ShareRule(
                    kind=kind,
                    place=place,
                    severity=settings.severity,
                    target=settings.max,
                    windows=settings.over // 60_000,
                    at_least=settings.at_least,
                    out_of=out_of,
                    inhibited_by=covered_by(definition, kind, place),
                )
            )
    return rules


def _dead_letters(checkpoint_counts: CheckpointCounts) -> int:
    return int(checkpoint_counts.beacons) if checkpoint_counts.name.endswith(".dead") else 0
