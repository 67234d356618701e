"""Error budgets: the share of messages that may be bad, and which are. Alerts and reports speak of the same ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from lagloss.definition import Definition

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
    """How many messages are bad for certain, and of how many. `total` gives the sum of a column of windows by its name
    (see `lagloss.rollup.Rollup`)."""
    if objective == "loss":
        return total("lost_min"), total("messages")
    of = total("on_time_of")
    return of - total("on_time"), of
