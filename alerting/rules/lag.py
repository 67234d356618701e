"""Lag: a percentile above its target in k of n windows, end to end or at one place; and the share that is on time.

A window without a value is good when no message came in, else it says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Document, Unit
from alerting.rules.counting import OutOf, WindowRun
from alerting.rules.places import lag_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import IDLE, Flags, Floats, percentile_name
from lagloss_server import format as fmt
from lagloss_server.model.alert_rules import LagAlert, Severity
from lagloss_server.model.definition import Definition
from lagloss_server.rules.error_budget import on_time_target


@dataclass(frozen=True, slots=True)
class LagRule:
    """`of`: whose lag, for people; `place`: None for the end-to-end lag."""

    kind: ClassVar[str] = "lag"
    unit: ClassVar[Unit] = "ms"
    higher_is_worse: ClassVar[bool] = True
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    name: str
    severity: Severity
    what: str
    target: float
    out_of: OutOf
    place: tuple[Literal["link", "node", "checkpoint"], str] | None

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        lags = stretch.windows.measure(self.name)
        return self.out_of.assess(stretch, lags > self.target, lags, (lags <= self.target) | _empty(stretch, lags))

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        if self.place is None:
            return lag_places(breached)
        return [BreachPlace(*self.place, None, self.what)]

    def text(self, value: float) -> str:
        lag, target = fmt.against(fmt.duration, value, self.target)
        return f"{self.what} {lag}, target {target}"


@dataclass(frozen=True, slots=True)
class OnTime:
    """The share of messages delivered within the lag target. `measure`: where windows have it, else the counts."""

    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = False

    name: str
    kind: Literal["on-time", "lag"]
    severity: Severity
    target: float
    within_ms: int
    out_of: OutOf
    inhibited_by: tuple[str, ...] = ()
    what: ClassVar[str] = "on-time share"

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        of = stretch.windows.column("on_time_of")
        shares = np.where(of > 0, stretch.windows.column("on_time") / np.maximum(of, 1), np.nan)
        return self.out_of.assess(
            stretch, shares < self.target, shares, (shares >= self.target) | _empty(stretch, shares)
        )

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        return lag_places(breached)

    def text(self, value: float) -> str:
        share, target = fmt.against(fmt.percent, value, self.target)
        return f"{share} of messages within {fmt.duration(self.within_ms)}, target {target}"


def lag_rules(definition: Definition) -> list[LagRule | OnTime]:
    """Return a rule for each entry of `lag`. An end-to-end percentile that windows do not hold is judged by the on-time
    share."""
    return [_lag_rule(definition, settings) for settings in definition.spec.alerts.lag]


def on_time_rules(definition: Definition) -> list[OnTime]:
    settings = definition.spec.alerts.on_time
    if settings is None:
        return []
    out_of = OutOf(settings.breaches, settings.of, settings.min_messages, definition.spec.alerts.resolve_after)
    target = on_time_target(definition)
    within_ms = definition.spec.sla.lag.target
    return [OnTime("on-time", "on-time", settings.severity, target, within_ms, out_of, ("loss", "lag"))]


def _lag_rule(definition: Definition, settings: LagAlert) -> LagRule | OnTime:
    out_of = OutOf(settings.breaches, settings.of, settings.min_messages, definition.spec.alerts.resolve_after)
    sla = definition.spec.sla.lag
    if settings.target is None:
        percentile = percentile_name(sla.percentile)
        if percentile is None:
            return OnTime(settings.name, "lag", settings.severity, sla.percentile / 100, sla.target, out_of)
        return LagRule(settings.name, settings.severity, f"end-to-end lag {percentile}", sla.target, out_of, None)
    place, what = _place(settings)
    return LagRule(settings.name, settings.severity, f"{what} p95", settings.target, out_of, place)


def _place(settings: LagAlert) -> tuple[tuple[Literal["link", "node", "checkpoint"], str], str]:
    if settings.link is not None:
        link = f"{settings.link.from_}->{settings.link.to}"
        return ("link", link), f"queue time of link {link}"
    if settings.node is not None:
        return ("node", settings.node), f"process duration of node {settings.node}"
    checkpoint = settings.checkpoint or ""
    return ("checkpoint", checkpoint), f"lag at {checkpoint}"


def _empty(stretch: WindowRun, values: Floats) -> Flags:
    """Return the windows without a value because no message came in."""
    empty = (stretch.windows.column("verdict") == IDLE) | (stretch.windows.column("messages") == 0)
    none: Flags = np.isnan(values) & empty
    return none
