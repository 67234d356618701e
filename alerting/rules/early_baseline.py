"""Early baseline: what is usual for a pipeline in its first week.

A moment is compared with the hours before it and, once a day or more are known, with the hours around the same time on
these. Both are cut into slots of five minutes, and the limits are the wider the fewer days are known. A deviation that
lasts is left out of what it is compared with: else it would soon be usual. What more than one slot had before is no
deviation. The habit takes over at three days, for low values once the same time a week ago is known, since the first
weekend is lower than the days before.

All of a moment's baseline is from before it, so that a backtest finds what an alerter found at the time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from alerting.rules.habits import DAY_S, DAYS, HOUR_S, LEAST_DAYS, SPREADS, HabitSeries, UsualValues
from alerting.rules.windows import Flags, Floats, Ints
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt

SLOT_S: Final = 300
RECENT_S: Final = 2 * HOUR_S
"""Windows back to this long before an hour began are always in a view; hours before are read as habits are."""
AROUND_S: Final = 5_400
"""The slots that are so far from the same time of an earlier day count as well."""
BEFORE_DEVIATION: Final = 2 / 3
"""The share of the shortest history that must lie before a lasting deviation."""
LOW_SHARE, HIGH_SHARE = 0.1, 0.9
SIGMAS_BETWEEN: Final = 2.563
"""Standard deviations between these quantiles of a normal distribution."""
AWAY_BY_DAYS: Final = np.array([5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0])
"""A share has to be so many times further from usual, by the days that are known."""
FURTHEST: Final = 0.5
"""It need not be further away than this, unless the rule says so."""
BELOW_BY_DAYS: Final = np.array([0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3])
"""A number has to be so much lower, by the days that are known, where the same time a week ago is not: a pipeline's
first night and first weekend are no fault."""


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Counts of windows in the order of time, by their starts (epoch s): a slot's value is the sum of `parts` by that
    of `totals`, which has to be `least`."""

    starts: Ints
    parts: Ints
    totals: Ints
    least: int


@dataclass(frozen=True, slots=True)
class EarlyRule:
    """What a rule takes for usual. `least_s`: the shortest history; `over_s`: how long before a moment its own values
    begin. `below`: it is a rule of low values, by their share of what most slots exceed; else `away`: of those that far
    from the median."""

    least_s: int
    over_s: int
    below: float | None = None
    away: float = 0.0

    def bounds(self, medians: Floats, days: int) -> tuple[Floats, Floats]:
        """Return the lower and the upper bound around medians."""
        if self.below is not None:
            return self.below * BELOW_BY_DAYS[days] * medians, np.full(len(medians), np.inf)
        away = away_by_days(self.away, np.full(len(medians), days))
        return medians - away, medians + away


def completed(
    usual: UsualValues, moments_s: Ints, series: HabitSeries, counts: Callable[[], SlotCounts], rule: EarlyRule
) -> UsualValues:
    """Return what is usual at these moments, by the early baseline where the habit does not count yet."""
    is_young = usual.days < LEAST_DAYS
    if rule.below is not None:
        is_young |= np.isnan(usual.week_ago)
    if not is_young.any():
        return usual
    slot_counts = counts()
    windows = len(slot_counts.starts)
    if not windows or (series.is_empty and WINDOW_S * windows < rule.least_s):  # a pipeline's first minutes
        return usual
    slots = _Slots(slot_counts)
    starts, days = moments_s[is_young] // SLOT_S * SLOT_S, usual.days[is_young]
    keys = list(zip(starts.tolist(), days.tolist(), strict=True))
    by_key = {key: _baseline(*key, series, slots, rule) for key in dict.fromkeys(keys)}
    baselines = np.array([by_key[key] for key in keys])
    median, spread, before_s = usual.median.copy(), usual.spread.copy(), usual.before_s.copy()
    median[is_young], spread[is_young], before_s[is_young] = baselines.T
    return UsualValues(median, spread, np.where(is_young, np.nan, usual.week_ago), usual.days, before_s)


def away_by_days(target: float, days: Ints) -> Floats:
    """Return how far from usual a share may be."""
    widened: Floats = np.maximum(target, np.minimum(target * AWAY_BY_DAYS[days], FURTHEST))
    return np.where(AWAY_BY_DAYS[days] > 1, widened, target)


def compared_with(usual: UsualValues, position: int, time: str) -> str:
    """Format what a window was compared with: ` at this hour`, `, compared with 3 h before and this hour of 1 day`."""
    days = int(usual.days[position])
    if np.isnan(usual.before_s[position]):
        return f" at {time}" if days == DAYS else f" at {time} ({days} days of history)"
    parts = [f"{time} of {fmt.counted(days, 'day')}"] if days else []
    if usual.before_s[position] > 0:
        parts.insert(0, f"{fmt.duration_s(float(usual.before_s[position]))} before")
    return f", compared with {' and '.join(parts)}" + ("" if days else " (no earlier day)")


class _Slots:
    """Values of slots by their start, of those with enough to count."""

    def __init__(self, counts: SlotCounts) -> None:
        slots = counts.starts // SLOT_S
        first = np.flatnonzero(np.diff(slots, prepend=-1))
        parts, totals = (np.add.reduceat(column, first) for column in (counts.parts, counts.totals))
        windows = np.diff(first, append=len(counts.starts))
        has_enough = totals >= counts.least
        self.starts: Ints = slots[first][has_enough] * SLOT_S
        self.values: Floats = parts[has_enough] / totals[has_enough]
        self.windows: Ints = windows[has_enough]

    def between(self, from_s: int, to_s: int) -> tuple[Floats, int]:
        """Return the values of the slots with from <= start < to, and how many windows they have."""
        first, last = self.starts.searchsorted([from_s, to_s])
        return self.values[first:last], int(self.windows[first:last].sum())


def _baseline(
    moment_s: int, days: int, series: HabitSeries, slots: _Slots, rule: EarlyRule
) -> tuple[float, float, float]:
    """Return what is usual at a slot, its spread, and how long the hours before are (s); nan if too little is known."""
    to_s = moment_s - -(-rule.over_s // SLOT_S) * SLOT_S
    recent, windows = slots.between(moment_s // HOUR_S * HOUR_S - RECENT_S, to_s)
    key = moment_s, days, rule, windows, recent.tobytes()
    if key not in series.baselines:
        series.baselines[key] = _baseline_of(moment_s, days, series, recent, windows, rule)
    return series.baselines[key]


def _baseline_of(
    moment_s: int, days: int, series: HabitSeries, recent: Floats, windows: int, rule: EarlyRule
) -> tuple[float, float, float]:
    if days:
        times = (moment_s - day * DAY_S for day in range(DAYS, 0, -1))
        earlier = [series.slots(time_s - AROUND_S, time_s + AROUND_S, SLOT_S) for time_s in times]
    else:
        earlier = [series.slots(moment_s - DAY_S, moment_s // HOUR_S * HOUR_S - RECENT_S, SLOT_S)]
    values = np.concatenate([*earlier, recent])
    earlier_slots = len(values) - len(recent)
    least = rule.least_s // SLOT_S
    before = values[: _deviation_from(values, rule, int(BEFORE_DEVIATION * least), days)]
    known_s = SLOT_S * earlier_slots + WINDOW_S * windows
    if known_s < rule.least_s or len(before) < BEFORE_DEVIATION * least:
        return np.nan, np.nan, np.nan
    before_s = float(SLOT_S * max(0, len(before) - (earlier_slots if days else 0)))
    before = np.sort(before)
    low, high = (float(before[math.ceil(share * len(before)) - 1]) for share in (LOW_SHARE, HIGH_SHARE))
    lowest, highest = float(before[min(1, len(before) - 1)]), float(before[-min(2, len(before))])
    if rule.below is not None:
        return low, (low - lowest) / SPREADS, before_s
    median = float(np.median(before))
    furthest = max(median - lowest, highest - median) + rule.away
    return median, max((high - low) / SIGMAS_BETWEEN, furthest / SPREADS), before_s


def _deviation_from(values: Floats, rule: EarlyRule, least: int, days: int) -> int:
    """Return the position from which on all values are beyond the bounds around the median of those before, of which
    there are `least`; their number if there is none."""
    size = len(values)
    if size <= least:
        return size
    extremes = np.array([values.min(), values.max()])
    lowest, highest = rule.bounds(extremes, days)  # bounds rise with the median, which lies between these
    if highest[0] >= values[-1] >= lowest[1]:
        return size
    highest_after = np.maximum.accumulate(values[::-1])[::-1][least:]
    lowest_after = np.minimum.accumulate(values[::-1])[::-1][least:]
    lower, upper = rule.bounds(_medians(values, least), days)
    is_beyond: Flags = (highest_after < lower) | (lowest_after > upper)
    return least + int(is_beyond.argmax()) if is_beyond.any() else size


def _medians(values: Floats, least: int) -> Floats:
    """Return, for each position from `least` on, the median of the values before it."""
    ordered: list[float] = []
    medians = []
    for position, value in enumerate(values.tolist()):
        if position >= max(least, 1):
            medians.append((ordered[(position - 1) // 2] + ordered[position // 2]) / 2)
        insort(ordered, value)
    return np.array(medians)
