"""How a pipeline stands: what is worst about it now, and where that puts it among the others.

The order is total: by state, worst first; within a state by critical incidents, certain loss, lag against its target
and the least error budget left; then by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from msgspec import structs, to_builtins

from dashboard.queries.condition import Condition, Freshness
from lagloss_server.model.window import Interval, LossRatio, Part, loss_ratio, rfc3339
from lagloss_server.queries.budgets import Budgets
from lagloss_server.sums.error_budget import Budget


class State(StrEnum):
    """Status of a pipeline; the worst first."""

    LOSS = "loss"
    CRITICAL = "critical"
    BLIND = "blind"
    STALE = "stale"
    UNKNOWN = "unknown"
    LATE = "late"
    BUDGET = "budget"
    WARNING = "warning"
    NOT_CLOSED = "not-closed"
    OK = "ok"
    IDLE = "idle"


_RANKS = {state: rank for rank, state in enumerate(State)}


class Minute(Part, frozen=True):
    """The newest closed window, as columns hold it. `since_s`: start (epoch s) of the first of the windows that had its
    verdict without a break; None where that is longer ago than was looked, and before `overview.detailed`. `lag_ms`:
    its E2E lag at the SLA's percentile, None where results do not hold that one. `is_late`: whether it is above its
    target, or too few were on time."""

    start_s: int
    verdict: str
    since_s: int | None
    messages: int
    lost: Interval
    lag_ms: float | None
    on_time_share: float | None
    is_late: bool

    @property
    def loss_ratio(self) -> LossRatio:
        return loss_ratio(self.lost, self.messages)

    def document(self) -> dict[str, Any]:
        return {
            "window_start": rfc3339(self.start_s),
            "verdict": self.verdict,
            "verdict_since": None if self.since_s is None else rfc3339(self.since_s),
            "messages": self.messages,
            "lost": structs.asdict(self.lost),
            "loss_ratio": structs.asdict(self.loss_ratio),
            "lag_ms": self.lag_ms,
            "on_time_share": self.on_time_share,
            "late": self.is_late,
        }


@dataclass(frozen=True, slots=True)
class Hour:
    """Sums of an hour (UTC, epoch s), or of a minute; `lag_ms`: its E2E p95. None: unknown."""

    start_s: int
    lag_ms: float | None = None
    loss_ratio: float | None = None

    def document(self) -> dict[str, Any]:
        return {"start": rfc3339(self.start_s), "e2e_p95_ms": self.lag_ms, "loss_ratio": self.loss_ratio}


@dataclass(frozen=True, slots=True)
class Targets:
    """Targets of the newest definition."""

    loss: float
    lag_percentile: float
    lag_ms: float


@dataclass(frozen=True)
class PipelineStatus:
    """One pipeline. `newest`: None before its first closed window. `budgets`: None where there were no messages.
    `hours`: none before `overview.detailed`; `minutes`: its first ones, while there are hardly any hours."""

    pipeline: str
    description: str
    condition: Condition
    fresh: Freshness
    targets: Targets
    newest: Minute | None = None
    budgets: Budgets = field(default_factory=dict)
    hours: tuple[Hour, ...] = ()
    minutes: tuple[Hour, ...] = ()
    critical: int = 0
    warning: int = 0

    @property
    def is_current(self) -> bool:
        """Whether the newest closed window is current."""
        return self.newest is not None and self.condition in (Condition.FINE, Condition.IDLE)

    @property
    def least_budget(self) -> tuple[float, float]:
        """Of the error budget that has least left: at most, then at least."""
        return min(
            (_left(budget) for budget in self.budgets.values() if budget is not None), default=(math.inf, math.inf)
        )

    @cached_property
    def state(self) -> State:
        """The first of `State` that is true of it."""
        verdict = self.newest.verdict if self.newest is not None and self.is_current else None
        is_in_state = {  # in the order of `State`
            State.LOSS: verdict == "loss",
            State.CRITICAL: self.critical > 0,
            State.BLIND: self.condition is Condition.BLIND,
            State.STALE: self.condition is Condition.STALE,
            State.UNKNOWN: verdict == "unknown",
            State.LATE: self.newest is not None and self.is_current and self.newest.is_late,
            State.BUDGET: any(budget is not None and budget.is_used_up for budget in self.budgets.values()),
            State.WARNING: self.warning > 0,
            State.NOT_CLOSED: self.newest is None,
            State.IDLE: verdict == "idle",
        }
        return next((state for state, is_so in is_in_state.items() if is_so), State.OK)

    def document(self) -> dict[str, Any]:
        """Return the status as `/api/v1/overview` prints it."""
        return {
            "pipeline": self.pipeline,
            "description": self.description,
            "state": self.state,
            "condition": self.condition,
            "freshness": self.fresh.document(),
            "targets": asdict(self.targets),
            "newest": None if self.newest is None else self.newest.document(),
            "budgets": {
                objective: None
                if budget is None
                else {"allowed": budget.allowed, "bad": structs.asdict(budget.used), "left": to_builtins(budget.left)}
                for objective, budget in self.budgets.items()
            },
            "open_incidents": {"critical": self.critical, "warning": self.warning},
            "hours": [hour.document() for hour in self.hours],
        }


class Order(StrEnum):
    """Orders of pipelines. Of all but names the worst first; equal ones are in the order of `worst_first`."""

    WORST = "worst"
    NAME = "name"
    LOSS = "loss"
    LAG = "lag"
    BUDGET = "budget"
    INCIDENTS = "incidents"
    NEWEST = "newest"

    def key(self, standing: PipelineStatus) -> tuple[float | str, ...]:
        """Return what pipelines that are in the order of `worst_first` are sorted by."""
        newest = standing.newest
        match self:
            case Order.WORST:
                return _rank(standing)
            case Order.NAME:
                return (standing.pipeline,)
            case Order.LOSS:
                return (-_loss(newest),)
            case Order.LAG:
                return (-(newest.lag_ms or 0.0) if newest is not None else 0.0,)
            case Order.BUDGET:
                return standing.least_budget
            case Order.INCIDENTS:
                return -standing.critical, -standing.warning
            case Order.NEWEST:
                return (-math.inf if newest is None else newest.start_s,)


def worst_first(standings: Iterable[PipelineStatus]) -> list[PipelineStatus]:
    return sorted(standings, key=_rank)


def _left(budget: Budget) -> tuple[float, float]:
    left_share = budget.left
    if left_share is None:
        return (-math.inf, -math.inf) if budget.is_used_up else (math.inf, math.inf)
    return left_share.max, left_share.min


def _loss(newest: Minute | None) -> float:
    return 0.0 if newest is None else newest.loss_ratio.min or 0.0


def _rank(standing: PipelineStatus) -> tuple[float | str, ...]:
    newest = standing.newest
    loss = _loss(newest)
    lag = 0.0 if newest is None else (newest.lag_ms or 0.0) / max(standing.targets.lag_ms, 1.0)
    return _RANKS[standing.state], -standing.critical, -loss, -lag, *standing.least_budget, standing.pipeline
