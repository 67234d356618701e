"""Rules that are off unless a definition says `on`: duplicates, dead letters, pending age, negative lag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Document, Rule, Unit
from alerting.rules.counting import OutOf, WindowRun, by_the_clock
from alerting.rules.places import PlaceKind, checkpoint_places
from alerting.rules.view import PipelineView
from lagloss_server import format as fmt
from lagloss_server.model.alert_rules import DeadLettersAlert, DuplicatesAlert, NegativeLagAlert, Severity
from lagloss_server.model.definition import Definition


@dataclass(frozen=True, slots=True)
class PerMessage:
    """A count of windows by their messages, in k of n above its maximum: `duplicates` or `dead`."""

    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = True
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    name: str
    column: str
    what: str
    severity: Severity
    target: float
    out_of: OutOf

    @property
    def kind(self) -> str:
        return self.name

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        ratios = stretch.windows.column(self.column) / np.maximum(stretch.windows.column("messages"), 1)
        return self.out_of.assess(stretch, ratios > self.target, ratios, ratios <= self.target)

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        if self.column == "duplicates":
            return checkpoint_places(breached, lambda there: there["duplicates"] or 0, "duplicates")
        return checkpoint_places(
            breached, lambda there: there["beacons"] if there["name"].endswith(".dead") else 0, "dead letters"
        )

    def text(self, value: float) -> str:
        share, limit = fmt.against(fmt.percent, value, self.target)
        return f"{self.what} {share}, limit {limit}"


@dataclass(frozen=True, slots=True)
class PendingAge:
    """How long the message that has been pending for longest was last seen ago."""

    kind: ClassVar[str] = "pending-age"
    name: ClassVar[str] = "pending-age"
    what: ClassVar[str] = "age of the oldest pending message"
    unit: ClassVar[Unit] = "s"
    higher_is_worse: ClassVar[bool] = True
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    severity: Severity
    target: float

    def assess(self, view: PipelineView) -> Assessment:
        age_s = max((view.now_s - waiting.since_s for waiting in view.waiting), default=0.0)
        return by_the_clock(view, age_s, age_s > self.target, self._places(view))

    def _places(self, view: PipelineView) -> tuple[BreachPlace, ...]:
        counts: dict[str, int] = {}
        for waiting in view.waiting:
            for place in waiting.places:
                counts[place] = counts.get(place, 0) + waiting.messages
        messages = sum(waiting.messages for waiting in view.waiting)
        return tuple(
            _place(label, count, messages) for label, count in sorted(counts.items(), key=lambda found: -found[1])
        )

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        age, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"a message has been pending for {age}, limit {limit}"


def _place(label: str, count: int, messages: int) -> BreachPlace:
    """Return the place of a label such as `link a->b`; a retrier is a node."""
    word, _, name = label.partition(" ")
    kind: PlaceKind = "link" if word == "link" else "node"
    return BreachPlace(
        kind, name, count / messages, f"{fmt.count(count)} pending, {fmt.percent(count / messages)} of them"
    )


@dataclass(frozen=True, slots=True)
class NegativeLag:
    """The median lag of a checkpoint so far below 0 that a clock must be wrong."""

    kind: ClassVar[str] = "negative-lag"
    name: ClassVar[str] = "negative-lag"
    what: ClassVar[str] = "lowest median lag of a checkpoint"
    unit: ClassVar[Unit] = "ms"
    higher_is_worse: ClassVar[bool] = False
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    severity: Severity
    target: float
    out_of: OutOf

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        lags = stretch.windows.column("p50")
        empty = np.isnan(lags) & (stretch.windows.column("messages") == 0)
        return self.out_of.assess(stretch, lags < self.target, lags, (lags >= self.target) | empty)

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        lowest: dict[str, float] = {}
        for window in breached:
            for there in window["checkpoints"]:
                lag = there["lag_ms"]["p50"]
                if lag is not None and lag < self.target:
                    lowest[there["name"]] = min(lag, lowest.get(there["name"], 0.0))
        return [
            BreachPlace("checkpoint", name, None, f"median lag {fmt.duration(lag)}")
            for name, lag in sorted(lowest.items(), key=lambda found: found[1])
        ]

    def text(self, value: float) -> str:
        lag, limit = fmt.against(fmt.duration, value, self.target)
        return f"median lag of a checkpoint {lag}, limit {limit}: a clock is wrong"


def quality_rules(definition: Definition) -> list[Rule]:
    alerts = definition.spec.alerts
    rules: list[Rule] = []

    def out_of(settings: DuplicatesAlert | DeadLettersAlert | NegativeLagAlert, min_messages: int = 1) -> OutOf:
        return OutOf(settings.breaches, settings.of, min_messages, alerts.resolve_after)

    if (twice := alerts.duplicates) is not None:
        counted = out_of(twice, twice.min_messages)
        rules.append(
            PerMessage("duplicates", "duplicates", "duplicates per message", twice.severity, twice.max, counted)
        )
    if (dead := alerts.dead_letters) is not None:
        counted = out_of(dead, dead.min_messages)
        rules.append(PerMessage("dead-letters", "dead", "share of dead letters", dead.severity, dead.max, counted))
    if (pending := alerts.pending_age) is not None:
        rules.append(PendingAge(pending.severity, pending.max / 1_000))
    if (negative := alerts.negative_lag) is not None:
        rules.append(NegativeLag(negative.severity, -float(negative.max), out_of(negative)))
    return rules
