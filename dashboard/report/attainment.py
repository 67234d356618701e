"""Attainment: whether an objective was kept, judged by what is certain and by what cannot be ruled out.

Bad messages are an interval, lost ones and those not on time, so whether a target was kept has three answers. It was
*missed* if what is bad for certain is more than the budget. It was *met* if all that may be bad is within the budget,
even if every message of every minute without a verdict were bad, too. Else it is *unproven*. Nothing unknown ever
counts as good, and nothing as bad that is not certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final, Literal

from dashboard.report.budget import Budget
from lagloss.budgets import Objective, bad_interval, budget, on_time_target
from lagloss.definition import Definition
from lagloss.periods import Coverage, Stretch
from lagloss.result import Interval, rfc3339
from lagloss.store import StoredPipeline
from lagloss.wire import WINDOW_S

Status = Literal["met", "missed", "unproven", "none"]
"""`none`: there was no message to judge."""
FOREVER_S: Final = 1 << 40
OBJECTIVES: Final[tuple[Objective, ...]] = ("loss", "on-time")


@dataclass(frozen=True, slots=True)
class Target:
    """What a pipeline promised in windows with from <= start < to (epoch s), by that version of its definition.

    `loss_max`: share of messages that may be lost; `on_time_min`: share that has to be delivered within `lag_ms`.
    """

    version: int
    from_s: int
    to_s: int
    loss_max: float
    on_time_min: float
    lag_ms: int
    budgets: tuple[Fraction, ...]

    @classmethod
    def of(cls, version: int, definition: Definition, from_s: int, to_s: int) -> Target:
        sla = definition.spec.sla
        # exact, so that 29 of 100 are within 0.29 and 1 - 0.95 is 5 %
        budgets = tuple(Fraction(budget(definition, one)).limit_denominator(10**9) for one in OBJECTIVES)
        return cls(version, from_s, to_s, sla.loss.max, on_time_target(definition), sla.lag.target, budgets)

    def budget(self, objective: Objective) -> Fraction:
        return self.budgets[OBJECTIVES.index(objective)]

    def document(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "from": rfc3339(self.from_s),
            "to": rfc3339(self.to_s),
            "loss_max": self.loss_max,
            "on_time_min": self.on_time_min,
            "lag_ms": self.lag_ms,
        }


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
    def good(self) -> dict[str, float | None]:
        """The share of messages that were: from what is certainly good to what is not certainly bad."""
        if not self.of:
            return {"min": None, "max": None}
        return {"min": max(0.0, 1 - self.bad.max / self.of), "max": 1 - self.bad.min / self.of}

    @property
    def budget(self) -> Budget | None:
        """None where there was no message to judge. Else it says what the status says: missed if more than all is used
        for certain, met if no more than all may be."""
        return Budget(self.allowed, Interval(self.bad.min, self.bad.max + self.unseen)) if self.of else None

    def document(self) -> dict[str, Any]:
        spent, left = (None, None) if self.budget is None else (self.budget.spent, self.budget.left)
        nothing = {"min": None, "max": None}
        return {
            "objective": self.objective,
            "status": self.status,
            "target": self.target,
            "good_share": self.good,
            "messages": self.of,
            "bad": asdict(self.bad),
            "budget": {
                "messages": self.allowed,
                "spent": spent or nothing,
                "left": left or nothing,
            },
            "unseen_estimate": self.unseen,
        }


def judge(objective: Objective, parts: Sequence[tuple[Stretch, Target]], known: Coverage) -> Attainment:
    """An objective over stretches, each against the target in force there; `known`: of all of them."""
    bad_min = bad_max = of = closed = unknown = 0
    by_budget: Counter[Fraction] = Counter()
    for stretch, target in parts:
        bad, messages = bad_interval(objective, stretch.total)
        bad_min, bad_max, of = bad_min + bad.min, bad_max + bad.max, of + messages
        by_budget[target.budget(objective)] += messages
        closed += stretch.total.windows
        unknown += stretch.total.verdicts.get("unknown", 0)
    allowed = sum((share * messages for share, messages in by_budget.items()), Fraction(0))
    unseen = unseen_estimate(of, unknown + known.missing, closed)
    status: Status = "unproven"
    if not of and not unknown and not known.missing:
        status = "none"
    elif bad_min > allowed:
        status = "missed"
    elif of and bad_max + unseen <= allowed:
        status = "met"
    return Attainment(objective, status, of, Interval(bad_min, bad_max), float(allowed), unseen)


def unseen_estimate(of: int, minutes: int, closed: int) -> int:
    """The messages that so many minutes without a verdict would have at the mean rate of the closed ones, which have
    the messages `of`."""
    return ceil(Fraction(of * minutes, closed)) if closed else 0


def overall(attainments: Iterable[Attainment]) -> Status:
    """One word for all objectives: the worst."""
    found = {one.status for one in attainments}
    order: tuple[Status, ...] = ("missed", "unproven", "met")
    return next((status for status in order if status in found), "none")


def targets_of(versions: Sequence[StoredPipeline]) -> list[Target]:
    """The targets of a pipeline's versions (oldest first) for all time; versions that promise the same are one."""
    found: list[Target] = []
    for at, stored in enumerate(versions):
        starts = -FOREVER_S if at == 0 else -(-stored.applied_at_ms // (1_000 * WINDOW_S)) * WINDOW_S
        if found and found[-1].from_s >= starts and len(found) > 1:
            found.pop()  # it was replaced before a window began
            found[-1] = replace(found[-1], to_s=FOREVER_S)
        target = Target.of(stored.version, stored.definition, starts, FOREVER_S)
        if found and _promise(found[-1]) == _promise(target):
            continue
        if found:
            found[-1] = replace(found[-1], to_s=starts)
        found.append(target)
    return found


def targets_within(targets: Sequence[Target], from_s: int, to_s: int) -> list[Target]:
    """Those in force from `from_s` to `to_s`, clipped to that."""
    return [
        replace(target, from_s=max(target.from_s, from_s), to_s=min(target.to_s, to_s))
        for target in targets
        if target.from_s < to_s and target.to_s > from_s
    ]


def target_at(targets: Sequence[Target], start_s: int) -> Target:
    """The one in force for the window that starts then."""
    return targets[bisect_right(targets, start_s, key=lambda target: target.from_s) - 1]


def _promise(target: Target) -> tuple[object, ...]:
    return target.loss_max, target.on_time_min, target.lag_ms
