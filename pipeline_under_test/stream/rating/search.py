"""The search for the highest rate that is sustained: doubled until it is not, then the bracket is bisected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST_RATE: Final = 100.0
LOWEST_RATE: Final = 1.0
TOLERANCE: Final = 0.1
"""The bracket's width, as a share of its upper end, at which the search stops."""
FULL_LOAD: Final = 0.95
"""A load that made less than this share of what it was to make has no more to give."""


class NothingSustained(RuntimeError):
    """Even the lowest rate is too high; the message gives the next step."""


@dataclass(frozen=True, slots=True)
class RateTrial:
    """Outcome of some seconds at a rate: the events a second that were really sent, and the 95th percentile of their
    lag (infinite if they were not done in time)."""

    asked_per_s: float
    sent_per_s: float
    lag_p95_s: float

    @property
    def is_full(self) -> bool:
        """Whether the load made what was asked for."""
        return self.sent_per_s >= FULL_LOAD * self.asked_per_s


def highest_sustained(
    attempt: Callable[[float], RateTrial], lag_target_s: float, first: float = FIRST_RATE
) -> RateTrial:
    """Return the best trial within the lag target; at a rate that is a tenth higher it fails, or the load has no more
    to give.

    Args:
        attempt: tries a rate, in events a second.
        lag_target_s: what the 95th percentile of lag must not exceed.
        first: where to begin.

    Raises:
        NothingSustained: if no rate is sustained.
    """
    best, too_much = _bracket(attempt, lag_target_s, first)
    while too_much - best.asked_per_s > TOLERANCE * too_much:
        trial = attempt((best.asked_per_s + too_much) / 2)
        if trial.lag_p95_s > lag_target_s:
            too_much = trial.asked_per_s
        elif trial.is_full:
            best = trial
        else:
            return trial
    return best


def _bracket(attempt: Callable[[float], RateTrial], lag_target_s: float, first: float) -> tuple[RateTrial, float]:
    """Return a trial that held, and a rate that did not, at most twice as high; the same rate where the load ended
    first."""
    trial = attempt(first)
    while trial.lag_p95_s > lag_target_s:
        too_much = trial.asked_per_s
        if too_much <= LOWEST_RATE:
            raise NothingSustained(
                f"expected a lag of {lag_target_s:g} s at {LOWEST_RATE:g} event/s, found {trial.lag_p95_s:.1f} s; "
                "raise --lag-target, or check the node's log"
            )
        trial = attempt(max(LOWEST_RATE, too_much / 2))
        if trial.lag_p95_s <= lag_target_s:
            return trial, too_much
    while True:
        if not trial.is_full:
            return trial, trial.asked_per_s
        higher = attempt(2 * trial.asked_per_s)
        if higher.lag_p95_s > lag_target_s:
            return trial, higher.asked_per_s
        trial = higher
