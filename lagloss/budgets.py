"""Error budgets: the share of messages that may be bad, and which are. Alerts and reports speak of the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lagloss.definition import Definition
from lagloss.result import Interval
from lagloss.rollup import Rollup

Objective = Literal["loss", "on-time"]
Counts = TypeVar("Counts", int, npt.NDArray[np.int64])


def budget(definition: Definition, objective: Objective) -> float:
    """The share of messages that may be lost, or may not be on time; 0 where a target of 100 % leaves none."""
    return definition.spec.sla.loss.max if objective == "loss" else 1 - on_time_target(definition)


def on_time_target(definition: Definition) -> float:
    """The share of messages that has to be on time: as the rule says, else the percentile of the lag's SLA."""
    settings = definition.spec.alerts.on_time
    given = None if settings is None else settings.target
    return definition.spec.sla.lag.percentile / 100 if given is None else given


def bad_of(objective: Objective, total: Callable[[str], Counts]) -> tuple[Counts, Counts]:
    """How many messages are bad as windows tell it at once, and of how many: lost for certain, or not on time (rule 12,
    so that what has not arrived counts). `total` gives the sum of a column of windows by its name (see
    `lagloss.rollup.Rollup`). `bad_interval` tells what of it is certain."""
    if objective == "loss":
        return total("lost_min"), total("messages")
    of = total("on_time_of")
    return of - total("on_time"), of


def bad_interval(objective: Objective, total: Rollup) -> tuple[Interval, int]:
    """How many messages are bad, from those that are for certain to those that cannot be ruled out; and of how many.

    Not on time for certain is what was delivered too late or lost for certain. What is perhaps lost, overdue or pending
    may have been delivered in time all the same: only the beacon that says so is missing, or not there yet.
    """
    low, high = total.lost_min, total.lost_max + total.pending
    if objective == "loss":
        return Interval(low, high), total.messages
    late, of = max(0, total.delivered - total.on_time), total.on_time_of  # of a sample both are rounded
    return Interval(min(of, late + low), min(of, late + high)), of
