"""Error budgets: how many messages may be bad, how many are, and whether an objective was kept by that.

Alerts, reports and the overview judge by these. Bad messages are an interval, lost ones and those not on time, so
whether a target was kept has three answers. It was *missed* if what is bad for certain is more than the budget. It was
*met* if all that may be bad is within the budget, even if every message of every minute without a verdict were bad,
too. Else it is *unproven*. Nothing unknown ever counts as good, and nothing as bad that is not certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs, to_builtins

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.model.place import Place
from lagloss_server.model.rule_places import of_pipeline, spread
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Interval, LossRatio
from lagloss_server.sums.rollup import Rollup

Objective = Literal["loss", "on-time"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("loss", "on-time")
Status = Literal["met", "missed", "unproven", "none"]
"""`none`: there was no message to judge."""
Counts = TypeVar("Counts", int, npt.NDArray[np.int64])


class BudgetShare(Struct, frozen=True, gc=False):
    """Bounds of a share of an error budget; below 0 or above 1 where it is overspent."""

    min: float
    max: float


"""Bounds `min` and `max` of a budget, spent or left; left is below 0 if more than all of it is spent."""
FOREVER_S: Final = 1 << 40
BUDGET_DAYS: Final = 30
"""Error budgets are of today and the days before it (UTC), so many in all."""


@dataclass(frozen=True, slots=True)
class BurnSpans:
    """A budget burns too fast if it burns more than `times` as fast as it may over the long span and over the short one
    that ends with it."""

    name: str
    long_s: int
    short_s: int
    times: float
    severity: Severity


BURN_SPANS: Final = (
    BurnSpans("1h", 3_600, 300, 14.4, "critical"),
    BurnSpans("6h", 6 * 3_600, 1_800, 6.0, "critical"),
    BurnSpans("3d", 72 * 3_600, 6 * 3_600, 1.0, "warning"),
)


def budget_of(definition: Definition, objective: Objective) -> float:
    """Return the share of messages that may be lost, or may not be on time; 0 where a target of 100 % leaves none."""
    return definition.spec.sla.loss.max if objective == "loss" else 1 - on_time_target(definition)


def on_time_target(definition: Definition, destination: str | None = None) -> float:
    """Return the share of messages that has to be on time, in the pipeline or at a destination: as the rule says, else
    the percentile of the lag's SLA."""
    sla, entries = definition.spec.sla, definition.spec.alerts.on_time
    if destination is None:
        settings, lag = of_pipeline(entries), sla.lag
    else:
        place = Place("destination", destination)
        settings, lag = dict(spread(entries, definition.graph, [place])).get(place), sla.lag_at(destination)
    target = None if settings is None else settings.target
    return lag.share if target is None else target


def bad_of(objective: Objective, total: Callable[[str], Counts]) -> tuple[Counts, Counts]:
    """Return how many messages are bad as single windows count them, and of how many: lost for certain, or not on time
    (rule 12: what has not arrived counts). `total` gives the sum of a column of windows by its name (see
    `lagloss_server.sums.rollup.Rollup`). `bad_interval` returns what of it is certain."""
    if objective == "loss":
        return total("lost_min"), total("messages")
    total_of = total("on_time_of")
    return total_of - total("on_time"), total_of


def bad_interval(objective: Objective, total: Rollup) -> tuple[Interval, int]:
    """Return how many messages are bad, from those that are for certain to those that cannot be ruled out; and of how
    many.

    Not on time for certain is what was delivered too late or lost for certain. What is perhaps lost, overdue or pending
    may have been delivered in time all the same: only the beacon that says so is missing, or not there yet.
    """
    low, high = total.lost_min, total.lost_max + total.pending
    if objective == "loss":
        return Interval(low, high), total.messages
    late, total_of = max(0, total.delivered - total.on_time), total.on_time_of  # of a sample both are rounded
    return Interval(min(total_of, late + low), min(total_of, late + high)), total_of


@dataclass(frozen=True, slots=True)
class Target(TimeRange):
    """Objectives of a pipeline, or of one destination of it, in the windows of a time range, by that version of its
    definition.

    `loss_max`: share of messages that may be lost; `on_time_min`: share that has to be delivered within `lag_ms`.
    """

    version: int
    loss_max: float
    on_time_min: float
    lag_ms: int
    budgets: tuple[Fraction, ...]

    @classmethod
    def of(cls, version: int, definition: Definition, from_s: int, to_s: int, destination: str | None = None) -> Target:
        sla, on_time_min = definition.spec.sla, on_time_target(definition, destination)
        loss, lag = (sla.loss, sla.lag) if destination is None else (sla.loss_at(destination), sla.lag_at(destination))
        # exact, so that 29 of 100 are within 0.29 and 1 - 0.95 is 5 %
        budgets = tuple(Fraction(share).limit_denominator(10**9) for share in (loss.max, 1 - on_time_min))
        return cls(from_s, to_s, version, loss.max, on_time_min, lag.target, budgets)

    def budget(self, objective: Objective) -> Fraction:
        return self.budgets[OBJECTIVES.index(objective)]

    def document(self) -> dict[str, Any]:
        return {
            "version": self.version,
            **self.bounds(),
            "loss_max": self.loss_max,
            "on_time_min": self.on_time_min,
            "lag_ms": self.lag_ms,
        }


def targets_of(versions: Sequence[StoredPipeline], destination: str | None = None) -> list[Target]:
    """Return the targets of a pipeline's versions (oldest first), or of one destination's, for all time; equal promises
    are one target."""
    targets: list[Target] = []
    for index, stored in enumerate(versions):
        starts = -FOREVER_S if index == 0 else -(-stored.applied_at_ms // (1_000 * WINDOW_S)) * WINDOW_S
        if targets and targets[-1].from_s >= starts and len(targets) > 1:
            targets.pop()  # it was replaced before a window began
            targets[-1] = replace(targets[-1], to_s=FOREVER_S)
        target = Target.of(stored.version, stored.definition, starts, FOREVER_S, destination)
        if targets and _promise(targets[-1]) == _promise(target):
            continue
        if targets:
            targets[-1] = replace(targets[-1], to_s=starts)
        targets.append(target)
    return targets


def targets_within(targets: Sequence[Target], from_s: int, to_s: int) -> list[Target]:
    """Return those in force from `from_s` to `to_s`, clipped to that."""
    return [
        replace(target, from_s=max(target.from_s, from_s), to_s=min(target.to_s, to_s))
        for target in targets
        if target.from_s < to_s and target.to_s > from_s
    ]


def target_at(targets: Sequence[Target], start_s: int) -> Target:
    """Return the one in force for the window that starts then."""
    return targets[bisect_right(targets, start_s, key=lambda target: target.from_s) - 1]


def _promise(target: Target) -> tuple[object, ...]:
    return target.loss_max, target.on_time_min, target.lag_ms


@dataclass(frozen=True, slots=True)
class Budget:
    """Use of the `allowed` bad messages: at least those that are bad for certain; at most all that cannot be ruled out,
    with every message of minutes without a verdict. Nothing unknown counts as good."""

    allowed: float
    used: Interval

    @property
    def spent(self) -> BudgetShare | None:
        """The share that is used up; None if none may be bad."""
        if not self.allowed:
            return None
        return BudgetShare(self.used.min / self.allowed, self.used.max / self.allowed)

    @property
    def left(self) -> BudgetShare | None:
        """The share that is not; None if none may be bad."""
        spent = self.spent
        return None if spent is None else BudgetShare(1 - spent.max, 1 - spent.min)

    @property
    def is_used_up(self) -> bool:
        """For certain."""
        return self.used.min > 0 and self.used.min >= self.allowed


@dataclass(frozen=True, slots=True)
class Attainment:
    """One objective over some stretches. `bad` of the messages `of`, where `allowed` (the budget) may be; `unseen`: the
    messages that minutes without a verdict would have at the mean rate of the closed ones."""

    objective: Objective
    status: Status
    of: int
    bad: Interval
    allowed: float
    unseen: int

    @property
    def target(self) -> float | None:
        """The share of messages that had to be good; of several targets, by the messages of each."""
        return 1 - self.allowed / self.of if self.of else None

    @property
    def good(self) -> LossRatio:
        """The share of messages that were: from what is certainly good to what is not certainly bad."""
        if not self.of:
            return LossRatio(None, None)
        return LossRatio(max(0.0, 1 - self.bad.max / self.of), 1 - self.bad.min / self.of)

    @property
    def budget(self) -> Budget | None:
        """None where there was no message to judge. Else it says what the status says: missed if more than all is used
        for certain, met if no more than all may be."""
        return Budget(self.allowed, Interval(self.bad.min, self.bad.max + self.unseen)) if self.of else None

    def document(self) -> dict[str, Any]:
        spent, left_share = (None, None) if self.budget is None else (self.budget.spent, self.budget.left)
        nothing = LossRatio(None, None)
        return {
            "objective": self.objective,
            "status": self.status,
            "target": self.target,
            "good_share": to_builtins(self.good),
            "messages": self.of,
            "bad": structs.asdict(self.bad),
            "budget": {
                "messages": self.allowed,
                "spent": to_builtins(spent or nothing),
                "left": to_builtins(left_share or nothing),
            },
            "unseen_estimate": self.unseen,
        }


def judge(objective: Objective, parts: Iterable[tuple[Rollup, Target]], missing: int) -> Attainment:
    """Judge an objective over stretches of time, each by the target in force there. `missing`: minutes of all of them
    together that should have a result and have none."""
    bad_min = bad_max = total_of = closed = unknown = 0
    by_budget: Counter[Fraction] = Counter()
    for total, target in parts:
        bad, messages = bad_interval(objective, total)
        bad_min, bad_max, total_of = bad_min + bad.min, bad_max + bad.max, total_of + messages
        by_budget[target.budget(objective)] += messages
        closed += total.windows
        unknown += total.verdicts.get("unknown", 0)
    allowed = sum((share * messages for share, messages in by_budget.items()), Fraction(0))
    unseen = unseen_estimate(total_of, unknown + missing, closed)
    status: Status = "unproven"
    if not total_of and not unknown and not missing:
        status = "none"
    elif bad_min > allowed:
        status = "missed"
    elif total_of and bad_max + unseen <= allowed:
        status = "met"
    return Attainment(objective, status, total_of, Interval(bad_min, bad_max), float(allowed), unseen)


def unseen_estimate(total: int, minutes: int, closed: int) -> int:
    """Return the messages that so many minutes without a verdict would have at the mean rate of the closed ones, which
    have the messages `total`."""
    return ceil(Fraction(total * minutes, closed)) if closed else 0


def overall(attainments: Iterable[Attainment]) -> Status:
    """Return the worst status of all objectives."""
    return worst_status(attainment.status for attainment in attainments)


def worst_status(statuses: Iterable[Status]) -> Status:
    """Return the worst of these; `none` of none."""
    known_statuses = set(statuses)
    order: tuple[Status, ...] = ("missed", "unproven", "met")
    return next((status for status in order if status in known_statuses), "none")
