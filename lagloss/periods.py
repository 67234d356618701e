"""Periods: what the windows of any stretch of time come to, exactly, from as few stored rows as can tell it.

A whole day is one row, a whole hour another, and what is left at the rims is read by the minute. A roll-up that is
marked (a window of it changed, and it was not computed anew yet) or missing is passed over for the finer rows. Sums and
merged sketches only: no ratio and no percentile is ever averaged.

Minutes are kept for weeks, roll-ups for years. Where minutes are gone, an hour cannot be parted any more: what a rim
cuts of it counts in no stretch, and `Stretch.cut` says how much that is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter
from typing import Final

from sqlalchemy import Connection, func, or_, select

from lagloss import tables
from lagloss.facts import WindowFacts
from lagloss.rollup import COUNTS_BYTES, PERIOD_S, Period, Rollup, period_of
from lagloss.store import Store
from lagloss.wire import WINDOW_S

Range = tuple[int, int]
"""[from, to), epoch s."""
_RANGES_A_QUERY: Final = 500


@dataclass(frozen=True, slots=True)
class Stretch:
    """The closed windows with from <= start < to (epoch s). `cut`: minutes whose sums only an hour across the rim has,
    so that `total` is without them."""

    from_s: int
    to_s: int
    total: Rollup
    cut: int = 0

    @property
    def minutes(self) -> int:
        """Windows that start in it, closed or not."""
        return _minutes_between(self.from_s, self.to_s)


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known of a stretch, in minutes that add up to `minutes`.

    `closed` have a result; `before` lie before the first that anything is kept of; `to_come` are not due yet; `missing`
    should have a result and have none: not closed, dropped, or cut (`cut` of them) at a rim.
    """

    minutes: int
    closed: int
    before: int
    to_come: int
    missing: int
    cut: int


def total(store: Store, pipeline: str, from_s: int, to_s: int) -> Rollup:
    """The closed windows with from <= start < to."""
    (stretch,) = series(store, pipeline, (from_s, to_s))
    return stretch.total


def series(store: Store, pipeline: str, edges: Sequence[int], *, counts_only: bool = False) -> list[Stretch]:
    """The stretches between each two neighbours of `edges` (epoch s, ascending), in one pass.

    Args:
        counts_only: totals have no sketches and no checkpoints. Some 10,000 hours take half a second then.
    """
    with _snapshot(store) as connection:
        return _Reading(connection, pipeline, tuple(edges), counts_only).stretches()


def coverage(stretch: Stretch, first_s: int | None, due_s: float) -> Coverage:
    """What is known of a stretch.

    Args:
        first_s: where what is kept of the pipeline begins, see `first_known`.
        due_s: windows that start then or later cannot be expected to be closed.
    """
    minutes, closed = stretch.minutes, stretch.total.windows
    known_from_s = stretch.to_s if first_s is None else min(max(first_s, stretch.from_s), stretch.to_s)
    due_to_s = min(max(int(due_s), known_from_s), stretch.to_s)
    before = min(_minutes_between(stretch.from_s, known_from_s), minutes - closed)
    missing = max(0, min(_minutes_between(known_from_s, due_to_s), minutes - before) - closed)
    return Coverage(minutes, closed, before, minutes - before - closed - missing, missing, stretch.cut)


def first_known(store: Store, pipeline: str) -> int | None:
    """Start (epoch s) of the first window that anything is kept of; None of none.

    Of an hour whose minutes are gone: windows go on without a gap from a pipeline's first, so it began that many
    minutes before the hour's end.
    """
    window, row = tables.Window, tables.Rollup
    with store.engine.connect() as connection:
        minute = connection.execute(select(func.min(window.window_start)).where(window.pipeline == pipeline)).scalar()
        hour = connection.execute(
            select(row.start, row.windows)
            .where(row.pipeline == pipeline, row.period == "hour")
            .order_by(row.start)
            .limit(1)
        ).one_or_none()
    if hour is None:
        return minute
    if minute is not None and minute < hour.start + PERIOD_S["hour"]:
        return int(minute)
    return int(hour.start + PERIOD_S["hour"] - WINDOW_S * hour.windows)


def hour_edges(from_s: int, to_s: int) -> list[int]:
    """`from_s`, the full hours (UTC) after it, and `to_s`."""
    first = period_of("hour", from_s) + PERIOD_S["hour"]
    return [from_s, *range(first, to_s, PERIOD_S["hour"]), to_s]


@dataclass(slots=True)
class _Reading:
    """One pass over the rows of a pipeline, coarse ones first. `_parts`: what was found, by stretch."""

    connection: Connection
    pipeline: str
    edges: tuple[int, ...]
    counts_only: bool
    _parts: list[list[tuple[int, Rollup]]] = field(init=False)

    def __post_init__(self) -> None:
        if list(self.edges) != sorted(set(self.edges)) or len(self.edges) < 2:
            raise ValueError(f"expected two or more edges in ascending order, found {self.edges}")
        self._parts = [[] for _ in self.edges[1:]]

    def stretches(self) -> list[Stretch]:
        pruned_s = self._pruned_before()
        dirty_hours = self._marked("hour")
        dirty_days = self._marked("day") | {period_of("day", hour) for hour in dirty_hours}
        left = self._take("day", [(self.edges[0], self.edges[-1])], lambda start: start not in dirty_days)
        # where the minutes of a marked hour are gone, its roll-up is all there is
        left = self._take("hour", left, lambda start: start not in dirty_hours or start < pruned_s)
        self._take_minutes(_clipped(left, pruned_s, self.edges[-1]))
        cuts = self._cuts(_parted(_clipped(left, self.edges[0], pruned_s), self.edges))
        return [
            Stretch(from_s, to_s, _merged(parts), cut)
            for (from_s, to_s), parts, cut in zip(pairwise(self.edges), self._parts, cuts, strict=True)
        ]

    def _take(self, period: Period, ranges: Iterable[Range], usable: Callable[[int], bool]) -> list[Range]:
        """Takes the roll-ups that lie in one stretch and in one of these ranges; what is left of the ranges."""
        length, row = PERIOD_S[period], tables.Rollup
        packed = func.substring(row.packed, 1, COUNTS_BYTES) if self.counts_only else row.packed
        whole = self._whole(ranges, length)
        taken: list[Range] = []
        for chunk in _chunks(whole):
            asked = select(row.start, packed).where(
                row.pipeline == self.pipeline,
                row.period == period,
                or_(*((row.start >= from_s) & (row.start < to_s) for from_s, to_s in chunk)),
            )
            for start, found in self.connection.execute(asked):
                if usable(start) and self._place(start) == self._place(start + length - 1):
                    self._add(start, Rollup.unpack_counts(found) if self.counts_only else Rollup.unpack(found))
                    taken.append((start, start + length))
        return _without(ranges, sorted(taken))

    def _whole(self, ranges: Iterable[Range], length: int) -> list[Range]:
        """The parts of ranges that whole periods of this length fill; nothing where no stretch has room for one."""
        if max(late - early for early, late in pairwise(self.edges)) < length:
            return []
        filled = ((-(-from_s // length) * length, to_s // length * length) for from_s, to_s in ranges)
        return [(from_s, to_s) for from_s, to_s in filled if from_s < to_s]

    def _take_minutes(self, ranges: Sequence[Range]) -> None:
        window = tables.Window
        columns = [window.window_start, window.document, *([] if self.counts_only else [window.facts])]
        for chunk in _chunks(ranges):
            asked = select(*columns).where(
                window.pipeline == self.pipeline,
                or_(*((window.window_start >= from_s) & (window.window_start < to_s) for from_s, to_s in chunk)),
            )
            for found in self.connection.execute(asked):
                facts = WindowFacts() if self.counts_only else WindowFacts.unpack(found.facts)
                self._add(found.window_start, Rollup.of_window(found.document, facts))

    def _cuts(self, ranges: Sequence[Range]) -> list[int]:
        """By stretch: the minutes of these ranges, which are gone, that an hour's roll-up holds."""
        hour, row = PERIOD_S["hour"], tables.Rollup
        cuts = [0] * len(self._parts)
        for chunk in _chunks(ranges):
            asked = select(row.start).where(
                row.pipeline == self.pipeline,
                row.period == "hour",
                or_(*((row.start > from_s - hour) & (row.start < to_s) for from_s, to_s in chunk)),
            )
            for start in self.connection.execute(asked).scalars():
                for early, late in _clipped(chunk, start, start + hour):
                    cuts[self._place(early)] += _minutes_between(early, late)
        return cuts

    def _marked(self, period: Period) -> set[int]:
        mark = tables.RollupDirty
        asked = select(mark.start).where(mark.pipeline == self.pipeline, mark.period == period)
        return set(self.connection.execute(asked).scalars())

    def _pruned_before(self) -> int:
        """Windows that start before this were dropped (see `aggregator.retention`)."""
        pruned = tables.Pruned
        asked = select(pruned.before_s).where(pruned.table_name == tables.Window.__tablename__)
        return self.connection.execute(asked).scalar() or 0

    def _place(self, moment_s: int) -> int:
        """Position of the stretch that holds this moment; -1 before the first."""
        return bisect_right(self.edges, moment_s) - 1

    def _add(self, start: int, part: Rollup) -> None:
        self._parts[self._place(start)].append((start, part))


@contextmanager
def _snapshot(store: Store) -> Iterator[Connection]:
    """A connection that sees the database as it is now throughout: no roll-up changes between two queries."""
    with store.engine.connect() as connection:
        yield connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)


def _merged(parts: Sequence[tuple[int, Rollup]]) -> Rollup:
    """All parts in the order of their starts, so that the checkpoints are in the order of the flow."""
    if len(parts) == 1:
        return parts[0][1]
    return Rollup.merged(part for _, part in sorted(parts, key=itemgetter(0)))


def _without(ranges: Iterable[Range], taken: Sequence[Range]) -> list[Range]:
    """What is left of the ranges without what was taken; all ascending, what was taken lies in one of them each."""
    left: list[Range] = []
    at = 0
    for from_s, to_s in ranges:
        while at < len(taken) and taken[at][0] < to_s:
            if taken[at][0] > from_s:
                left.append((from_s, taken[at][0]))
            from_s = taken[at][1]  # what is left of this range begins there
            at += 1
        if from_s < to_s:
            left.append((from_s, to_s))
    return left


def _parted(ranges: Iterable[Range], edges: Sequence[int]) -> list[Range]:
    """The ranges, parted at the edges that lie in them."""
    parted: list[Range] = []
    for from_s, to_s in ranges:
        between = edges[bisect_right(edges, from_s) : bisect_left(edges, to_s)]
        parted += pairwise([from_s, *between, to_s])
    return parted


def _clipped(ranges: Iterable[Range], from_s: int, to_s: int) -> list[Range]:
    both = ((max(early, from_s), min(late, to_s)) for early, late in ranges)
    return [(early, late) for early, late in both if early < late]


def _chunks(ranges: Sequence[Range]) -> Iterator[Sequence[Range]]:
    return (ranges[at : at + _RANGES_A_QUERY] for at in range(0, len(ranges), _RANGES_A_QUERY))


def _minutes_between(from_s: int, to_s: int) -> int:
    """Windows with from <= start < to."""
    return -(-to_s // WINDOW_S) - -(-from_s // WINDOW_S)
