"""Habits: what is usual for a pipeline at this time of day, from the same time of the last seven days.

Usual is the median of the days, and how far they lie apart is their median absolute deviation (MAD), so that one bad
day changes neither. Three days have to be known; before that rules go by the hours before (`early_baseline`). The same
time a week ago is kept apart: on a Saturday it is the better witness.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from alerting.rules.windows import Floats, Ints

DAYS: Final = 7
LEAST_DAYS: Final = 3
DAY_S: Final = 86_400
HOUR_S: Final = 3_600
QUARTER_S: Final = 900
SIGMA_OF_MAD: Final = 1.4826
"""The standard deviation of a normal distribution by its MAD."""
SPREADS: Final = 3.0
"""What lies this many standard deviations from the median is not usual."""


@dataclass(frozen=True, slots=True)
class UsualValues:
    """What is usual at some moments, nan where there is no habit. `spread`: standard deviation of the days, by their
    MAD; `week_ago`: the value a week before, nan where it is not known; `days`: how many are known; `before_s`: where
    these are too few, the seconds of the hours before that count instead, else nan."""

    median: Floats
    spread: Floats
    week_ago: Floats
    days: Ints
    before_s: Floats


class HabitSeries:
    """Values by time: of each stretch of `step_s` that is known, by its start (epoch s)."""

    def __init__(self, step_s: int, values: Mapping[int, float]) -> None:
        starts = sorted(values)
        self.step_s = step_s
        self._first_s = starts[0] if starts else 0
        self._values = np.full((starts[-1] - starts[0]) // step_s + 1 if starts else 0, np.nan)
        self._values[[(start - self._first_s) // step_s for start in starts]] = [values[start] for start in starts]
        self._usual: dict[int, tuple[float, float, float, int]] = {}
        """Median, spread, value a week before and known days of each stretch that was asked for."""
        self.baselines: dict[Hashable, tuple[float, float, float]] = {}
        """Those that `early_baseline` computed with these values."""

    @property
    def is_empty(self) -> bool:
        return not len(self._values)

    def updated(self, values: Mapping[int, float], from_s: int) -> HabitSeries:
        """Return the series from a moment on with more values."""
        values_by_start = {
            self._first_s + index * self.step_s: value for index, value in enumerate(self._values.tolist())
        }
        recent = {start: value for start, value in values_by_start.items() if start >= from_s and not math.isnan(value)}
        return HabitSeries(self.step_s, {**recent, **values})

    def usual_at(self, moments_s: Ints) -> UsualValues:
        """Return what is usual at these moments, each judged by its own stretch of the day."""
        starts = (np.asarray(moments_s) // self.step_s * self.step_s).tolist()
        new = [start for start in dict.fromkeys(starts) if start not in self._usual]
        if new:
            self._usual.update(zip(new, self._usual_of(new), strict=True))
        usual = np.array([self._usual[start] for start in starts], np.float64).reshape(len(starts), 4)
        no_hours = np.full(len(starts), np.nan)
        return UsualValues(usual[:, 0], usual[:, 1], usual[:, 2], usual[:, 3].astype(np.int64), no_hours)

    def slots(self, from_s: int, to_s: int, slot_s: int) -> Floats:
        """Return the values of the known stretches that begin with from <= start < to, oldest first, each as often as
        there are slots in it."""
        first, last = (-((self._first_s - moment) // self.step_s) for moment in (from_s, to_s))
        values = self._values[max(0, first) : max(0, last)]
        return np.repeat(values[np.isfinite(values)], self.step_s // slot_s)

    def _usual_of(self, starts: list[int]) -> list[tuple[float, float, float, int]]:
        days = self._days(starts)
        known = (~np.isnan(days)).sum(axis=1)
        has_enough = known >= LEAST_DAYS
        median, spread = np.full(len(starts), np.nan), np.full(len(starts), np.nan)
        if has_enough.any():
            median[has_enough] = np.nanmedian(days[has_enough], axis=1)
            apart = np.abs(days[has_enough] - median[has_enough][:, np.newaxis])
            spread[has_enough] = SIGMA_OF_MAD * np.nanmedian(apart, axis=1)
        return list(zip(median.tolist(), spread.tolist(), days[:, DAYS - 1].tolist(), known.tolist(), strict=True))

    def lowest_around(self, moments_s: Ints) -> UsualValues:
        """Return what is usual at these moments at the least: in their stretch, the one before and the one after, so
        that nothing hangs on the minute in which a morning begins. The spread is the widest of the three."""
        moments_s = np.asarray(moments_s)
        usual = self.usual_at(moments_s)
        around = [self.usual_at(moments_s - self.step_s), self.usual_at(moments_s + self.step_s)]
        median, spread, week_ago = usual.median, usual.spread, usual.week_ago
        for other in around:
            median = np.where(np.isnan(usual.median), np.nan, np.fmin(median, other.median))
            spread = np.fmax(spread, other.spread)
            week_ago = np.fmin(week_ago, other.week_ago)
        return UsualValues(median, spread, week_ago, usual.days, usual.before_s)

    def _days(self, starts: list[int]) -> Floats:
        """Return the values of the days before these starts, a row each, yesterday first."""
        days = np.arange(1, DAYS + 1) * DAY_S
        indexes = (np.array(starts, np.int64)[:, np.newaxis] - days - self._first_s) // self.step_s
        is_within = (indexes >= 0) & (indexes < len(self._values))
        values = np.full(indexes.shape, np.nan)
        values[is_within] = self._values[indexes[is_within]]
        return values


@dataclass(frozen=True, slots=True)
class Habits:
    """What is known of a pipeline's past days. `volume`: messages per minute by the quarter of an hour; `shares`:
    by the name of a share, its value by the hour."""

    volume: HabitSeries = field(default_factory=lambda: HabitSeries(QUARTER_S, {}))
    shares: Mapping[str, HabitSeries] = field(default_factory=dict)

    def share(self, name: str) -> HabitSeries:
        """Return the habit of a share; one of nothing if it is not known."""
        return self.shares.get(name, _NOTHING)


_NOTHING: Final = HabitSeries(HOUR_S, {})
NO_HABITS: Final = Habits()
"""Of a pipeline whose past is not known."""
