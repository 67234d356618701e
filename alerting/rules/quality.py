"""Rules about what is odd of single messages: corrupted payloads, messages that wait, lags below zero."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Rule, Unit
from alerting.rules.counting import OutOf, WindowSlice, by_the_clock
from alerting.rules.measures import Measure, covered_by, placed
from alerting.rules.view import PipelineView, WaitingMessages
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Definition
from lagloss_server.model.place import Place, place_of
from lagloss_server.model.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptionRule(PlacedRule):
    """Messages of a window whose payload was another one behind a link. A window of which no beacon was read says
    nothing."""

    kind: str = "corruption"
    what: ClassVar[str] = "corrupted messages per window"
    unit: ClassVar[Unit] = "messages"

    resolve_after: int

    @property
    def reads(self) -> Iterable[Measure]:
        return (Measure("corrupted", self.place),)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, 1)
        corrupted = recent.windows.read(Measure("corrupted", self.place))
        return recent.assessment(corrupted > self.target, corrupted, corrupted <= self.target, self.resolve_after)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        totals: dict[str, int] = {}
        for window in breached:
            for link in window.links:
                name = link.name
                if link.corrupted and (self.place is None or self.place.name == name):
                    totals[name] = totals.get(name, 0) + link.corrupted
        whole = sum(totals.values())
        return [
            BreachPlace("link", name, count / whole, f"{fmt.count(count)} corrupted")
            for name, count in sorted(totals.items(), key=lambda item: -item[1])
        ]

    def text(self, value: float) -> str:
        where = "" if self.place is None else f" on {self.place}"
        return f"{fmt.counted(int(value), 'message')} corrupted{where} in a minute, limit {fmt.count(int(self.target))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAge(PlacedRule):
    """How long the message that has been pending for longest was last seen ago."""

    kind: str = "pending-age"
    what: ClassVar[str] = "age of the oldest pending message"
    unit: ClassVar[Unit] = "s"
    reads: ClassVar[tuple[Measure, ...]] = ()

    def assess(self, view: PipelineView) -> Assessment:
        waiting = [messages for messages in view.waiting if self._concerns(messages)]
        age_s = max((view.now_s - messages.since_s for messages in waiting), default=0.0)
        return by_the_clock(view, age_s, age_s > self.target, _places(waiting))

    def due_s(self, view: PipelineView) -> float:
        return (
            min((messages.since_s for messages in view.waiting if self._concerns(messages)), default=math.inf)
            + self.target
        )

    def _concerns(self, waiting: WaitingMessages) -> bool:
        return self.place is None or any(_place_of(label) == self.place for label in waiting.places)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        age, limit = fmt.against(fmt.duration_s, value, self.target)
        where = "" if self.place is None else f" at {self.place}"
        return f"a message has been pending{where} for {age}, limit {limit}"


def _places(waiting: Sequence[WaitingMessages]) -> tuple[BreachPlace, ...]:
    counts: dict[Place, int] = {}
    for group in waiting:
        for label in group.places:
            if (place := _place_of(label)) is not None:
                counts[place] = counts.get(place, 0) + group.messages
    messages = sum(messages.messages for messages in waiting)
    return tuple(
        BreachPlace(place.kind, place.name, count / messages, _pending_text(count, messages))
        for place, count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _pending_text(count: int, messages: int) -> str:
    return f"{fmt.count(count)} pending, {fmt.percent(count / messages)} of all"


def _place_of(label: str) -> Place | None:
    """Return the place of a label such as `link a->b`, None of another text; a retrier is a node."""
    place = place_of(label)
    return place if place is None or place.kind == "link" else Place("node", place.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeLag(PlacedRule):
    """The median lag of a checkpoint so far below 0 that a clock must be wrong."""

    kind: str = "negative-lag"
    unit: ClassVar[Unit] = "ms"
    higher_is_worse: ClassVar[bool] = False

    out_of: OutOf

    @property
    def what(self) -> str:
        return "lowest median lag of a checkpoint" if self.place is None else f"median lag at {self.place.name}"

    @property
    def reads(self) -> Iterable[Measure]:
        return (self._lag,)

    @property
    def _lag(self) -> Measure:
        return Measure("lowest_p50") if self.place is None else Measure("p50", self.place)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.out_of.of)
        lags = recent.windows.read(self._lag)
        empty = np.isnan(lags) & (recent.windows.column("messages") == 0)
        return self.out_of.assess(recent, lags < self.target, lags, (lags >= self.target) | empty)

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        lowest: dict[str, float] = {}
        for window in breached:
            for checkpoint in window.checkpoints:
                lag = checkpoint.lag_ms.p50
                if lag is not None and lag < self.target and (self.place is None or self.place.name == checkpoint.name):
                    lowest[checkpoint.name] = min(lag, lowest.get(checkpoint.name, 0.0))
        return [
            BreachPlace("checkpoint", name, None, f"median lag {fmt.duration(lag)}")
            for name, lag in sorted(lowest.items(), key=lambda item: item[1])
        ]

    def text(self, value: float) -> str:
        lag, limit = fmt.against(fmt.duration, value, self.target)
        where = "a checkpoint" if self.place is None else self.place.name
        return f"median lag of {where} {lag}, limit {limit}: a clock is wrong"


def quality_rules(definition: Definition) -> list[Rule]:
    alerts = definition.spec.alerts
    rules: list[Rule] = []
    for place, corruption in placed(definition, "corruption"):
        rules.append(
            CorruptionRule(
                place=place,
                severity=corruption.severity,
                target=float(corruption.max),
                resolve_after=alerts.resolve_after,
                inhibited_by=covered_by(definition, "corruption", place),
            )
        )
    for place, pending in placed(definition, "pending-age"):
        rules.append(
            PendingAge(
                place=place,
                severity=pending.severity,
                target=pending.max / 1_000,
                inhibited_by=covered_by(definition, "pending-age", place),
            )
        )
    for place, negative in placed(definition, "negative-lag"):
        rules.append(
            NegativeLag(
                place=place,
                severity=negative.severity,
                target=-float(negative.max),
                out_of=OutOf(negative.breaches, negative.of, 1, alerts.resolve_after),
                inhibited_by=covered_by(definition, "negative-lag", place),
            )
        )
    return rules
