"""Habits of a pipeline, kept in memory and read on once an hour: its minutes by the quarter of an hour, its roll-ups by
the hour.

What was read of a past hour stays as it was, however often its windows are closed again: habits that move would revise
breaches of yesterday.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import numpy as np
from sqlalchemy import Connection, Integer, func, literal_column, select

from alerting.rules.base import Rule
from alerting.rules.habits import DAY_S, DAYS, HOUR_S, QUARTER_S, Habits, HabitSeries
from alerting.rules.measures import Measure
from alerting.rules.unusual import FilteredRule, VolumeRule, share_name
from lagloss.wire.format import WINDOW_S
from lagloss_server.store.results import unpack
from lagloss_server.store.schema.core import RollupRow, WindowRow, table_of
from lagloss_server.sums.rollup import COUNTS_BYTES, Rollup

KEPT_S: Final = (DAYS + 1) * DAY_S + 2 * HOUR_S
"""A day of windows that are judged, the days before each of them, and the hours around."""
SETTLED_H: Final = 6
"""Hours after which an hour is read: by then its windows are closed and rolled up, and it is not needed for a day."""
EARLY_H: Final = 1
"""Where no day is known yet, hours are read after so many already, and again until they have settled: rules then go by
the hours before."""
LEAST_OF: Final = 2 / 3
"""The share of its minutes, at least, that must be closed for a stretch to tell a habit."""
LEAST_MESSAGES: Final = 100
"""Messages, at least, that a share has to be of to tell a habit."""
_WINDOW, _ROLLUP = table_of(WindowRow), table_of(RollupRow)
_QUARTER = _WINDOW.c.window_start // literal_column(str(QUARTER_S), Integer)

Shares = Mapping[str, tuple[Measure, Measure]]


def shares_of(rules: Iterable[Rule]) -> dict[str, tuple[Measure, Measure]]:
    """Return the shares whose habits these rules need, by name."""
    needed = [rule.shares for rule in rules if isinstance(rule, FilteredRule | VolumeRule)]
    return {share_name(*pair): pair for pair in needed if pair}


def needs_volume(rules: Iterable[Rule]) -> bool:
    """Return whether one of these rules goes by the number of messages."""
    return any(isinstance(rule, VolumeRule) and rule.place is None for rule in rules)


class HabitCache:
    """Habits of one pipeline, for one version of its rules."""

    def __init__(self, pipeline: str, rules: Iterable[Rule]) -> None:
        rules = list(rules)
        self._name = pipeline
        self._shares = shares_of(rules)
        self._needs_volume = needs_volume(rules)
        self._hour: int | None = None
        self._begins_s = zlib.crc32(pipeline.encode()) % HOUR_S
        self._habits = habits_of({}, {name: {} for name in self._shares})

    @property
    def due_s(self) -> float:
        """When they are read on (epoch s): once an hour, those of many pipelines one after the other."""
        if not self._shares and not self._needs_volume:
            return math.inf
        return -math.inf if self._hour is None else (self._hour + 1) * HOUR_S + self._begins_s

    def refreshed(self, connection: Connection, now_s: float) -> Habits:
        """Return the habits as of now; read what is new once an hour, with at most one statement for each source."""
        hour = int(now_s - self._begins_s) // HOUR_S
        if hour != self._hour:
            to_s = (hour - SETTLED_H) * HOUR_S
            from_s = to_s - KEPT_S if self._hour is None else max(to_s - KEPT_S, (self._hour - SETTLED_H) * HOUR_S)
            volume, shares = self._habits.volume, self._habits.shares
            read_to_s = (hour - EARLY_H) * HOUR_S if self._is_young(int(now_s)) else to_s
            if self._needs_volume:
                volume = volume.updated(read_volume(connection, self._name, from_s, read_to_s), to_s - KEPT_S)
            if shares:
                read = read_shares(connection, self._name, self._shares, from_s, read_to_s)
                shares = {
                    name: usual_shares.updated(read[name], to_s - KEPT_S) for name, usual_shares in shares.items()
                }
            self._hour, self._habits = hour, Habits(volume, shares)
        return self._habits

    def _is_young(self, now_s: int) -> bool:
        """Return whether no day is known of something that is needed now."""
        needed = [*([self._habits.volume] if self._needs_volume else ()), *self._habits.shares.values()]
        return any(series.usual_at(np.array([now_s])).days[0] == 0 for series in needed)


def habits_of(quarters: Mapping[int, float], hours: Mapping[str, Mapping[int, float]]) -> Habits:
    """Return habits of messages per minute by quarter of an hour, and of shares by hour."""
    return Habits(
        HabitSeries(QUARTER_S, quarters), {name: HabitSeries(HOUR_S, values) for name, values in hours.items()}
    )


def read_volume(connection: Connection, pipeline: str, from_s: int, to_s: int) -> dict[int, float]:
    """Read messages per minute of each quarter of an hour with from <= start < to of which most minutes are closed."""
    row = _WINDOW.c
    query = (
        select(_QUARTER.label("quarter"), func.sum(row.messages), func.count())
        .where(row.pipeline == pipeline, row.window_start >= from_s, row.window_start < to_s)
        .group_by(_QUARTER)
    )
    least = LEAST_OF * QUARTER_S / WINDOW_S
    rows = connection.execute(query)
    return {
        int(start_s) * QUARTER_S: float(messages) / windows for start_s, messages, windows in rows if windows >= least
    }


def read_shares(
    connection: Connection, pipeline: str, shares: Shares, from_s: int, to_s: int
) -> dict[str, dict[int, float]]:
    """Read each share of each hour with from <= start < to that has messages enough."""
    row = _ROLLUP.c
    is_placed = any(measure.place is not None for pair in shares.values() for measure in pair)
    packed = row.packed if is_placed else func.substring(row.packed, 1, COUNTS_BYTES)
    query = select(row.start, packed).where(
        row.pipeline == pipeline,
        row.period == "hour",
        row.start >= from_s,
        row.start < to_s,
        row.windows >= int(LEAST_OF * HOUR_S / WINDOW_S),
    )
    shares_by_name: dict[str, dict[int, float]] = {name: {} for name in shares}
    for start, packed_counts in connection.execute(query):
        read = partial(Rollup.unpack_counts if is_placed else Rollup.unpack_beginning, packed_counts)
        rollup = unpack("rollup", pipeline, f"hour/{start}", read)
        if rollup is None:
            continue
        for name, (what, total) in shares.items():
            value = share_in(rollup, what, total)
            if value is not None:
                shares_by_name[name][start] = value
    return shares_by_name


def share_in(rollup: Rollup, what: Measure, measure: Measure) -> float | None:
    """Return a share in the counts of a roll-up; None if it is of too few messages."""
    messages = measure.total(rollup)
    return None if messages < LEAST_MESSAGES else what.total(rollup) / messages
