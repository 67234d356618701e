"""Lag: a percentile above its target in k of n windows, end to end or at one place; and the share that is on time.

A window without a value is good when no message came in, else it says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import PlacedRule, Unit
from alerting.rules.counting import OutOf, WindowSlice
from alerting.rules.loss import loss_rules
from alerting.rules.measures import Measure, covered_by, own_targets, placed
from alerting.rules.places import lag_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import IDLE, Flags, Floats
from lagloss_server.base import format as fmt
from lagloss_server.judging.sla import held_percentile
from lagloss_server.model.alert_rules import LagAlert
from lagloss_server.model.definition import Definition
from lagloss_server.model.place import Place
from lagloss_server.model.window import HeldPercentile, Window
from lagloss_server.sums.error_budget import on_time_target

_LAG_OF: Final = {
    "destination": "end-to-end lag at {}",
    "node": "process duration of node {}",
    "link": "queue time of link {}",
    "checkpoint": "lag at {}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LagRule(PlacedRule):
    """`percentile`: which of the lag it reads, for people `what`."""

    kind: str = "lag"
    unit: ClassVar[Unit] = "ms"

    what: str
    out_of: OutOf
    percentile: HeldPercentile

    @property
    def lag(self) -> Measure:
        return Measure(self.percentile, self.place)

    @property
    def reads(self) -> Iterable[Measure]:
        return (self.lag,)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.out_of.of)
        lags = recent.windows.read(self.lag)
        return self.out_of.assess(recent, lags > self.target, lags, (lags <= self.target) | _empty(recent, lags))

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        if self.place is None:
            return lag_places(breached)
        return [BreachPlace(self.place.kind, self.place.name, None, self.what)]

    def text(self, value: float) -> str:
        lag, target = fmt.against(fmt.duration, value, self.target)
        return f"{self.what} {lag}, target {target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnTime(PlacedRule):
    """The share of messages delivered within the lag target, all or those due at a destination."""

    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = False

    kind: Literal["on-time", "lag"]
    within_ms: int
    out_of: OutOf
    what: ClassVar[str] = "on-time share"

    @property
    def reads(self) -> Iterable[Measure]:
        return Measure("on_time", self.place), Measure("on_time_of", self.place)

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.out_of.of)
        on_time, total = (recent.windows.read(measure) for measure in self.reads)
        shares = np.where(total > 0, on_time / np.maximum(total, 1), np.nan)
        return self.out_of.assess(
            recent, shares < self.target, shares, (shares >= self.target) | _empty(recent, shares)
        )

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return lag_places(breached)

    def text(self, value: float) -> str:
        share, target = fmt.against(fmt.percent, value, self.target)
        what = "messages" if self.place is None else f"messages due at {self.place}"
        return f"{share} of {what} within {fmt.duration(self.within_ms)}, target {target}"


def lag_rules(definition: Definition) -> list[LagRule | OnTime]:
    """Return a rule for each place of `lag`. An end-to-end percentile that windows do not hold is judged by the on-time
    share."""
    rules = placed(definition, "lag", own_targets(definition, "lag"))
    return [_lag_rule(definition, place, settings) for place, settings in rules]


def on_time_rules(definition: Definition) -> list[OnTime]:
    alerts, sla = definition.spec.alerts, definition.spec.sla
    others = {rule.name for rule in (*loss_rules(definition), *lag_rules(definition))}
    rules = []
    for place, settings in placed(definition, "on-time", own_targets(definition, "lag")):
        lag = sla.lag if place is None else sla.lag_at(place.name)
        target = on_time_target(definition) if place is None else settings.target or lag.share
        covering = ["loss", "lag", *([] if place is None else [place.rule("loss"), place.rule("lag")])]
        rules.append(
            OnTime(
                kind="on-time",
                severity=settings.severity,
                target=target,
                within_ms=lag.target,
                out_of=OutOf(settings.breaches, settings.of, settings.min_messages, alerts.resolve_after),
                inhibited_by=(
                    *(name for name in covering if name in others),
                    *covered_by(definition, "on-time", place),
                ),
                place=place,
            )
        )
    return rules


def _lag_rule(definition: Definition, place: Place | None, settings: LagAlert) -> LagRule | OnTime:
    sla = definition.spec.sla
    common: dict[str, Any] = {
        "severity": settings.severity,
        "place": place,
        "out_of": OutOf(settings.breaches, settings.of, settings.min_messages, definition.spec.alerts.resolve_after),
        "inhibited_by": covered_by(definition, "lag", place),
    }
    what = "end-to-end lag" if place is None else _LAG_OF[place.kind].format(place.name)
    if place is not None and place.kind != "destination":
        return LagRule(what=f"{what} p95", target=settings.target or sla.lag.target, percentile="p95", **common)
    end_to_end = sla.lag if place is None else sla.lag_at(place.name)
    percentile = held_percentile(end_to_end.percentile) or (None if settings.target is None else "p95")
    if percentile is None:
        return OnTime(kind="lag", target=end_to_end.share, within_ms=end_to_end.target, **common)
    target = settings.target or end_to_end.target
    return LagRule(what=f"{what} {percentile}", target=target, percentile=percentile, **common)


def _empty(recent: WindowSlice, values: Floats) -> Flags:
    """Return the windows without a value because no message came in."""
    empty = (recent.windows.column("verdict") == IDLE) | (recent.windows.column("messages") == 0)
    none: Flags = np.isnan(values) & empty
    return none
