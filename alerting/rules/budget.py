"""Budget: how many times too fast the error budget burns, over a long span and a short one that ends with it.

After the Google SRE workbook, "Alerting on SLOs": the long span says that it matters, the short one that it still goes
on. A burn rate of 1 uses the budget up exactly; 14.4 over an hour uses 2 % of a month's.

A pipeline that is younger than the long span is judged over the history that it has, bad messages by all messages of
that history, as soon as it has as much as the short span: an hour of heavy loss on a service's first day is as bad as
on any other, but three minutes say nothing about three days.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.base import Unit
from alerting.rules.counting import WindowSlice
from alerting.rules.measures import Measure
from alerting.rules.places import lag_places, loss_places
from alerting.rules.view import PipelineView
from alerting.rules.windows import UNKNOWN, Flags, Floats
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition
from lagloss_server.model.rule_places import of_pipeline
from lagloss_server.model.window import Window
from lagloss_server.sums.error_budget import BURN_SPANS, BurnSpans, Objective, bad_of, budget_of

LONGEST_S: Final = max(spans.long_s for spans in BURN_SPANS)
LONGEST_SHORT_S: Final = max(spans.short_s for spans in BURN_SPANS)


@dataclass(frozen=True, slots=True)
class BurnRate:
    """`budget`: the share of messages that may be bad."""

    kind: ClassVar[str] = "budget"
    unit: ClassVar[Unit] = "times"
    higher_is_worse: ClassVar[bool] = True
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()

    objective: Objective
    spans: BurnSpans
    budget: float
    min_messages: int
    resolve_after: int
    inhibited_by: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"budget/{self.objective}/{self.spans.name}"

    @property
    def severity(self) -> Severity:
        return self.spans.severity

    @property
    def what(self) -> str:
        return f"burn rate of the {self.objective} budget over {self.spans.name}"

    @property
    def target(self) -> float:
        return self.spans.times

    def assess(self, view: PipelineView) -> Assessment:
        recent = WindowSlice.of(view, 1)
        if not len(recent.windows):
            return Assessment((), {}, ())
        long = short = self._burn_rates(view, self.spans.short_s, recent.first)
        burning: Flags = short > self.target
        if burning.any():  # else the long span, which reaches far back, need not be read
            long = self._burn_rates(view, self.spans.long_s, recent.first)
            many = view.windows.sums_over("messages", self.spans.long_s, recent.first) >= self.min_messages
            history_s = recent.windows.starts + WINDOW_S - view.windows.first_s()
            burning &= (long > self.target) & many & (history_s >= self.spans.short_s)
        return recent.assessment(burning, long, ~burning & self._known(recent), self.resolve_after)

    def _burn_rates(self, view: PipelineView, span_s: int, first: int) -> Floats:
        """Return the burn rate of each window from position `first` on, over the span that ends with it; 0 without
        messages."""
        bad, total = bad_of(self.objective, lambda name: view.windows.sums_over(name, span_s, first))
        rates: Floats = bad / np.maximum(total, 1) / self.budget
        return rates

    def _known(self, recent: WindowSlice) -> Flags:
        """Return the windows with a known outcome of their messages: not known to be lost is not known to be good."""
        if self.objective == "loss":
            is_known: Flags = recent.windows.column("verdict") != UNKNOWN
            return is_known
        knows: Flags = (recent.windows.column("on_time_of") > 0) | (recent.windows.column("messages") == 0)
        return knows

    def due_s(self, view: PipelineView) -> float:
        return math.inf

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return loss_places(breached) if self.objective == "loss" else lag_places(breached)

    def text(self, value: float) -> str:
        spans = f"{self.spans.name} and the last {fmt.duration_s(self.spans.short_s)}"
        return f"{self.objective} budget burn rate {value:.3g} over {spans}, limit {self.target:g}"


def budget_rules(definition: Definition) -> list[BurnRate]:
    """Return the rules of each objective whose own rule is on and that leaves a budget: a target of 100 % leaves
    none."""
    alerts = definition.spec.alerts
    if alerts.budget is None:
        return []
    rules = []
    loss = ("loss",) if of_pipeline(alerts.loss) is not None else ()
    lag = ("lag",) if of_pipeline(alerts.lag) is not None else ()
    if loss:
        rules += _of_objective(definition, "loss", loss)
    if of_pipeline(alerts.on_time) is not None:
        rules += _of_objective(definition, "on-time", (*loss, *lag))
    return rules


def _of_objective(definition: Definition, objective: Objective, inhibited_by: tuple[str, ...]) -> list[BurnRate]:
    """Return an objective's rules by span, each inhibited by the shorter ones."""
    budget = budget_of(definition, objective)
    settings, resolve_after = definition.spec.alerts.budget, definition.spec.alerts.resolve_after
    rules: list[BurnRate] = []
    if settings is not None and budget > 0:
        for spans in BURN_SPANS:
            shorter = tuple(rule.name for rule in rules)
            rules.append(
                BurnRate(objective, spans, budget, settings.min_messages, resolve_after, (*inhibited_by, *shorter))
            )
    return rules
