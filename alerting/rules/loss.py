"""Loss: too many windows with verdict `loss`, or, where traffic is thin, too much loss over a longer time.

A window breaches when its verdict is `loss`; `ok` and `idle` are good, `unknown` says nothing either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Document, Unit
from alerting.rules.counting import OutOf, WindowRun, making_up
from alerting.rules.places import loss_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import IDLE, LOSS, OK, Flags, Floats
from lagloss_server import format as fmt
from lagloss_server.model.alert_rules import LossAlert, Severity
from lagloss_server.model.definition import Definition


@dataclass(frozen=True, slots=True)
class _Loss:
    kind: ClassVar[str] = "loss"
    what: ClassVar[str] = "loss_ratio"
    unit: ClassVar[Unit] = "ratio"
    higher_is_worse: ClassVar[bool] = True

    settings: LossAlert
    target: float
    out_of: OutOf

    def where(self, breached: Sequence[Document]) -> list[BreachPlace]:
        return loss_places(breached)

    def text(self, value: float) -> str:
        lost, target = fmt.against(fmt.percent, value, self.target)
        return f"{lost} of messages lost, target {target}"


class LossRule(_Loss):
    """k of the last n windows, or one whose loss ratio is over `atOnce`, with `minMessages` in the n together."""

    name: ClassVar[str] = "loss"
    inhibited_by: ClassVar[tuple[str, ...]] = ()

    @property
    def severity(self) -> Severity:
        return self.settings.severity

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        lossy, ratios = _lossy(stretch), _ratios(stretch)
        at_once = lossy & self.out_of.enough(stretch) & (ratios > self.settings.at_once)
        found = making_up(self.out_of.of, lossy, self.out_of.breach_at(stretch, lossy)) | at_once
        begun = self.out_of.begun(stretch, lossy, found, ratios)
        return stretch.assessment(found, ratios, _good(stretch), self.out_of.resolve_after, begun)


class LossTicket(_Loss):
    """Where the n windows hold fewer messages than `minMessages`: a lossy window at the end of a span (`ticketOver`)
    that lost more than the target as a whole."""

    name: ClassVar[str] = "loss/ticket"
    severity: ClassVar[Severity] = "warning"
    inhibited_by: ClassVar[tuple[str, ...]] = ("loss",)

    def assess(self, view: PipelineView) -> Assessment:
        stretch = WindowRun.of(view, self.out_of.of)
        span_s = self.settings.ticket_over // 1_000
        messages = view.windows.sums_over("messages", span_s, stretch.first)
        ratios = view.windows.sums_over("lost_min", span_s, stretch.first) / np.maximum(messages, 1)
        found = _lossy(stretch) & ~self.out_of.enough(stretch) & (ratios > self.target)
        return stretch.assessment(found, ratios, _good(stretch), self.out_of.resolve_after)


def loss_rules(definition: Definition) -> list[LossRule | LossTicket]:
    settings, target = definition.spec.alerts.loss, definition.spec.sla.loss.max
    if settings is None:
        return []
    resolve_after = definition.spec.alerts.resolve_after
    out_of = OutOf(settings.breaches, settings.of, settings.min_messages, resolve_after)
    return [LossRule(settings, target, out_of), LossTicket(settings, target, out_of)]


def _lossy(stretch: WindowRun) -> Flags:
    lossy: Flags = stretch.windows.column("verdict") == LOSS
    return lossy


def _good(stretch: WindowRun) -> Flags:
    return np.isin(stretch.windows.column("verdict"), (OK, IDLE))


def _ratios(stretch: WindowRun) -> Floats:
    ratios: Floats = stretch.windows.column("lost_min") / np.maximum(stretch.windows.column("messages"), 1)
    return ratios
