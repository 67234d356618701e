"""Blindness: evidence is missing, windows do not close, or a node does not report. Idle is not blind.

Suppressed until the alerter has run for the threshold itself, so a cold start does not page before the first window
can close.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Unit
from alerting.rules.counting import OutOf, WindowSlice, by_the_clock, of_last
from alerting.rules.measures import Measure
from alerting.rules.view import PipelineView
from alerting.rules.windows import BLIND, SEEING
from lagloss_server.base import format as fmt
from lagloss_server.judging.freshness import STALE_AFTER_S, stale_after_s
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.window import Window

_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Reporting:
    """`unknown` for lack of evidence, or because closing failed, in k of n windows. Pending and overdue are lag, a new
    version is no fault."""

    kind: ClassVar[str] = "blind"
    name: ClassVar[str] = "blind/evidence"
    what: ClassVar[str] = "share of windows without complete evidence"
    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = True
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    severity: Severity
    out_of: OutOf

    @property
    def target(self) -> float:
        return (self.out_of.breaches - 1) / self.out_of.of

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, self.out_of.of)
        evidence = recent.windows.column("evidence")
        blind = evidence == BLIND
        counted = np.minimum(np.arange(len(blind)) + 1, self.out_of.of)
        return self.out_of.assess(recent, blind, of_last(self.out_of.of, blind) / counted, evidence == SEEING)

    def due_s(self, view: PipelineView) -> float:
        return math.inf

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        windows: dict[str, int] = {}
        for window in breached:
            for reason in window.reasons:
                kind, _, node = reason.partition(":")
                if kind == "evidence":
                    windows[node] = windows.get(node, 0) + 1
        return [
            BreachPlace(
                "node", node, count / len(breached), f"evidence incomplete in {count} of {len(breached)} windows"
            )
            for node, count in sorted(windows.items(), key=lambda item: -item[1])
        ]

    def text(self, value: float) -> str:
        allowed = f"limit {self.out_of.breaches - 1} of {self.out_of.of}"
        return f"{fmt.percent(value)} of the last windows have no verdict for lack of evidence, {allowed}"


@dataclass(frozen=True, slots=True)
class ClosingHealth:
    """Rule `blind/closing`: no window has closed. A pipeline that never had a window is not blind."""

    kind: ClassVar[str] = "blind"
    name: ClassVar[str] = "blind/closing"
    what: ClassVar[str] = "time since the newest closed window"
    unit: ClassVar[Unit] = "s"
    higher_is_worse: ClassVar[bool] = True
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    severity: Severity
    target: float

    def assess(self, view: PipelineView) -> Assessment:
        since_s = None if view.newest_end_s is None else view.now_s - view.newest_end_s
        is_breach = since_s is not None and min(since_s, view.watched_s) > self.target
        return by_the_clock(view, since_s, is_breach)

    def due_s(self, view: PipelineView) -> float:
        return math.inf if view.newest_end_s is None else max(view.newest_end_s, view.watched_since_s) + self.target

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        waits, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"newest closed window ended {waits} ago, limit {limit}"


@dataclass(frozen=True, slots=True)
class ReportsHealth:
    """No report from a node that reported yesterday at this time, all the while that it is now silent.

    Where no window closes, reports are not consumed either, and `blind/closing` covers that.
    """

    kind: ClassVar[str] = "blind"
    name: ClassVar[str] = "blind/reports"
    what: ClassVar[str] = "time since a node's last report"
    unit: ClassVar[Unit] = "s"
    higher_is_worse: ClassVar[bool] = True
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()
    inhibited_by: ClassVar[tuple[str, ...]] = ("blind/closing",)
    target: ClassVar[float] = STALE_AFTER_S

    severity: Severity

    def assess(self, view: PipelineView) -> Assessment:
        silent_s = {node: view.now_s - view.reported_s.get(node, view.now_s - _DAY_S) for node in view.expected}
        too_long = sorted(
            (-silence_s, node) for node, silence_s in silent_s.items() if min(silence_s, view.watched_s) > self.target
        )
        texts = [(node, f"no report for {fmt.duration_s(-silence)}") for silence, node in too_long]
        places = tuple(BreachPlace("node", node, None, text) for node, text in texts)
        return by_the_clock(view, max(silent_s.values(), default=0.0), bool(too_long), places)

    def due_s(self, view: PipelineView) -> float:
        return math.inf  # nodes that fall silent are found for all pipelines at once: see `pre_check`

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        silence, limit = fmt.against(fmt.duration_s, value, self.target)
        return f"no report for {silence} from a node that reported yesterday, limit {limit}"


def blind_rules(definition: Definition) -> list[Reporting | ClosingHealth | ReportsHealth]:
    settings = definition.spec.alerts.blind
    if settings is None:
        return []
    out_of = OutOf(settings.breaches, settings.of, 0, definition.spec.alerts.resolve_after)
    severity = settings.severity
    return [
        ClosingHealth(severity, stale_after_s(definition.spec.grace)),
        Reporting(severity, out_of),
        ReportsHealth(severity),
    ]
