"""Lag: a percentile above its target in k of n windows, end to end or at one place; and the share that is on time.

A window without a value is good when no message came in, else it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Document, Unit
from alerting.rules.counting import OutOf, WindowRun
from alerting.rules.loss import loss_rules
from alerting.rules.measures import Measure, covered_by, own_targets, percentile_name, placed
from alerting.rules.places import lag_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import IDLE, Flags, Floats
from lagloss_server import format as fmt
from lagloss_server.model.alert_rules import LagAlert, Severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.rule_places import RulePlace
from lagloss_server.rules.error_budget import on_time_target

_LAG_OF: Final = {
    "destination": "end-to-end lag at {}",
    "node": "process duration of node {}",
    "link": "queue time of link {}",
    "checkpoint": "lag at {}",
}


@dataclass(frozen=True, slots=True)
class LagRule:
    """`lag`: what it reads, for people `what`."""

    kind: ClassVar[str] = "lag"
    unit: ClassVar[Unit] = "ms"
    higher_is_worse: ClassVar[bool] = True
    watches: ClassVar[tuple[str, ...]] = ()

    name: str
    severity: Severity
    what: str
    target: float
    out_of: OutOf
    lag: Measure
    inhibited_by: tuple[str, ...] = ()

    @property
    def place(self) -> RulePlace | None:
        return self.lag.place

    @property
    def reads(self) -> Iterable[Measure]:
        return (self.lag,)

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        lags = stretch.windows.read(self.lag)
        return self.out_of.assess(stretch, lags > self.target, lags, (lags <= self.target) | _empty(stretch, lags))

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        if self.lag.place is None:
            return lag_places(breached)
        return [BreachPlace(self.lag.place.kind, self.lag.place.name, None, self.what)]

    def text(self, value: float) -> str:
        lag, target = fmt.against(fmt.duration, value, self.target)
        return f"{self.what} {lag}, target {target}"


@dataclass(frozen=True, slots=True)
class OnTime:
    """The share of messages delivered within the lag target, all or those due at a destination."""

    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = False
    watches: ClassVar[tuple[str, ...]] = ()

    name: str
    kind: Literal["on-time", "lag"]
    severity: Severity
    target: float
    within_ms: int
    out_of: OutOf
    inhibited_by: tuple[str, ...] = ()
    place: RulePlace | None = None
    what: ClassVar[str] = "on-time share"

    @property
    def reads(self) -> Iterable[Measure]:
        return Measure("on_time", self.place), Measure("on_time_of", self.place)

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        on_time, of = (stretch.windows.read(measure) for measure in self.reads)
        shares = np.where(of > 0, on_time / np.maximum(of, 1), np.nan)
        return self.out_of.assess(
            stretch, shares < self.target, shares, (shares >= self.target) | _empty(stretch, shares)
        )

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        return lag_places(breached)

    def text(self, value: float) -> str:
        share, target = fmt.against(fmt.percent, value, self.target)
        of = "messages" if self.place is None else f"messages due at {self.place}"
        return f"{share} of {of} within {fmt.duration(self.within_ms)}, target {target}"


def lag_rules(definition: Definition) -> list[LagRule | OnTime]:
    """Return a rule for each place of `lag`. An end-to-end percentile that windows do not hold is judged by the on-time
    share."""
    found = placed(definition, "lag", own_targets(definition, "lag"))
    return [_lag_rule(definition, place, settings) for place, settings in found]


def on_time_rules(definition: Definition) -> list[OnTime]:
    alerts, sla = definition.spec.alerts, definition.spec.sla
    known = {rule.name for rule in (*loss_rules(definition), *lag_rules(definition))}
    rules = []
    for place, settings in placed(definition, "on_time", own_targets(definition, "lag")):
        lag = sla.lag if place is None else sla.lag_at(place.name)
        target = on_time_target(definition) if place is None else settings.target or lag.percentile / 100
        covering = ["loss", "lag", *([] if place is None else [place.rule("loss"), place.rule("lag")])]
        rules.append(
            OnTime(
                name="on-time" if place is None else place.rule("on-time"),
                kind="on-time",
                severity=settings.severity,
                target=target,
                within_ms=lag.target,
                out_of=OutOf(settings.breaches, settings.of, settings.min_messages, alerts.resolve_after),
                inhibited_by=(
                    *(name for name in covering if name in known),
                    *covered_by(definition, "on_time", "on-time", place),
                ),
                place=place,
            )
        )
    return rules


def _lag_rule(definition: Definition, place: RulePlace | None, settings: LagAlert) -> LagRule | OnTime:
    out_of = OutOf(settings.breaches, settings.of, settings.min_messages, definition.spec.alerts.resolve_after)
    sla = definition.spec.sla
    name = "lag" if place is None else place.rule("lag")
    covers = covered_by(definition, "lag", "lag", place)
    what = "end-to-end lag" if place is None else _LAG_OF[place.kind].format(place.name)
    if place is not None and place.kind != "destination":
        target = settings.target or sla.lag.target
        return LagRule(name, settings.severity, f"{what} p95", target, out_of, Measure("p95", place), covers)
    end_to_end = sla.lag if place is None else sla.lag_at(place.name)
    target = settings.target or end_to_end.target
    percentile = percentile_name(end_to_end.percentile) or (None if settings.target is None else "p95")
    if percentile is None:
        share = end_to_end.percentile / 100
        return OnTime(name, "lag", settings.severity, share, end_to_end.target, out_of, covers, place)
    return LagRule(name, settings.severity, f"{what} {percentile}", target, out_of, Measure(percentile, place), covers)


def _empty(stretch: WindowRun, values: Floats) -> Flags:
    """Return the windows without a value because no message came in."""
    empty = (stretch.windows.column("verdict") == IDLE) | (stretch.windows.column("messages") == 0)
    none: Flags = np.isnan(values) & empty
    return none
