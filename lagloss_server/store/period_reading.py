"""Reading the sums of time ranges: days before hours before minutes, of many pipelines in each statement."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import Protocol

from sqlalchemy import BigInteger, ColumnElement, Connection, TableValuedAlias, Text, cast, func, select, true

from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.results import unpack_minute, unpack_rollup
from lagloss_server.store.schema import core as tables
from lagloss_server.sums.rollup import COUNTS, PERIOD_S, VERDICT_COLUMNS, Period, Rollup, period_of

Ranges = Mapping[str, Sequence[TimeRange]]
"""By pipeline; ascending, and none overlaps another."""
RowKey = tuple[str, int]
"""A row by its pipeline and its start (epoch s)."""


class Memory(Protocol):
    """Keeps what was read, by keys that name its version."""

    def get(self, key: Hashable, /) -> Rollup | None: ...

    def put(self, key: Hashable, value: Rollup, /) -> Rollup: ...


@dataclass(frozen=True, slots=True)
class RangeTotal(TimeRange):
    """The closed windows of a time range, added up. `cut`: minutes whose sums only an hour across the rim has, so that
    `total` is without them."""

    total: Rollup
    cut: int = 0


@dataclass(slots=True)
class PeriodReading:
    """One pass over the rows of pipelines, coarse ones first: see `periods.series_of` for what is asked.
    `_found`: what was found, by pipeline and range."""

    connection: Connection
    edges: Mapping[str, Sequence[int]]
    counts_only: bool = False
    memory: Memory | None = None
    settled_s: int = 0
    _found: dict[str, list[list[tuple[int, Rollup]]]] = field(init=False)

    def __post_init__(self) -> None:
        for edges in self.edges.values():
            if list(edges) != sorted(set(edges)) or len(edges) < 2:
                raise ValueError(f"expected at least two edges in ascending order, found {edges}")
        self._found = {name: [[] for _ in edges[1:]] for name, edges in self.edges.items()}

    def parts(self) -> dict[str, list[RangeTotal]]:
        """Return the ranges of each pipeline, in the order of its edges."""
        pruned_s, hours = self._pruned_before(), self._marked("hour")
        days = self._marked("day") | {(name, period_of("day", start)) for name, start in hours}
        # where the minutes of a marked hour are gone, its roll-up is all there is
        as_is_s = max(pruned_s, self.settled_s - PERIOD_S["hour"] + 1)
        remaining: Ranges = {name: [TimeRange(edges[0], edges[-1])] for name, edges in self.edges.items()}
        take = self._count if self.counts_only else self._take
        remaining = take("day", remaining, days)
        remaining = take("hour", remaining, {(name, start) for name, start in hours if start >= as_is_s})
        forever_s = max((edges[-1] for edges in self.edges.values()), default=0)
        clipped = _each(remaining, lambda _, ranges: _clipped(ranges, pruned_s, forever_s))
        if self.counts_only:
            self._count_minutes(clipped)
        else:
            self._take_minutes(clipped)
        cuts = self._cuts(_each(remaining, lambda name, ranges: self._parted(name, _clipped(ranges, 0, pruned_s))))
        return {
            name: [
                RangeTotal(from_s, to_s, _merged(rows), cut)
                for (from_s, to_s), rows, cut in zip(pairwise(self.edges[name]), totals, cuts[name], strict=True)
            ]
            for name, totals in self._found.items()
        }

    def _count(self, period: Period, ranges: Ranges, stale: Set[RowKey]) -> Ranges:
        """Add up, where they are stored, the counts of the roll-ups that `_take` would take; what is left of the
        ranges."""
        length, row = PERIOD_S[period], tables.RollupRow
        passed: dict[str, list[TimeRange]] = {}
        for name, start in sorted(stale):
            passed.setdefault(name, []).append(TimeRange(start, start + length))
        fresh = _each(ranges, lambda name, some: self._parted(name, _outside(some, passed.get(name, ()))))
        query = _asked(_each(fresh, lambda name, some: self._whole(name, some, length)))
        columns = [getattr(row, name) for name in (*VERDICT_COLUMNS.values(), *COUNTS)]
        # lateral: each range is looked up by itself, also where thousands are of one pipeline
        columns_query = (
            select(
                func.array_agg(row.start).label("starts"), *(cast(func.sum(column), BigInteger) for column in columns)
            )
            .where(row.pipeline == query.c.name, row.period == period)
            .where(row.start >= query.c.from_s, row.start < query.c.to_s)
            .lateral("found")
        )
        rows = self.connection.execute(
            select(query.c.name, query.c.from_s, columns_query)
            .select_from(query.join(columns_query, true()))
            .where(columns_query.c.starts.is_not(None))
        )
        taken: dict[str, list[int]] = {}
        for name, from_s, starts, *sums in rows:
            verdicts = {verdict: number for verdict, number in zip(VERDICT_COLUMNS, sums, strict=False) if number}
            counts = dict(zip(COUNTS, sums[len(VERDICT_COLUMNS) :], strict=True))
            self._add(name, from_s, Rollup.of_counts(verdicts, counts))
            taken.setdefault(name, []).extend(starts)
        return _each(ranges, lambda name, some: _without(some, _joined(taken.get(name, ()), length)))

    def _take(self, period: Period, ranges: Ranges, stale: Set[RowKey]) -> Ranges:
        """Take the roll-ups that lie between two edges and in one of these ranges, without the stale ones; what is left
        of the ranges."""
        length, row = PERIOD_S[period], tables.RollupRow
        query = _asked(_each(ranges, lambda name, some: self._whole(name, some, length)))
        within = (row.pipeline == query.c.name, row.start >= query.c.from_s, row.start < query.c.to_s)
        rows = self.connection.execute(
            select(row.pipeline, row.start, row.computed_at).where(row.period == period, *within)
        )
        versions = {
            (name, start): computed_at
            for name, start, computed_at in rows
            if (name, start) not in stale and self._position(name, start) == self._position(name, start + length - 1)
        }
        taken: dict[str, list[int]] = {}
        for (name, start), total in self._read(period, versions, partial(self._rollups, period)):
            self._add(name, start, total)
            taken.setdefault(name, []).append(start)
        return _each(ranges, lambda name, some: _without(some, _joined(taken.get(name, ()), length)))

    def _whole(self, name: str, ranges: Sequence[TimeRange], length: int) -> list[TimeRange]:
        """Return the parts of ranges that whole periods of this length fill; nothing where no edges are so far
        apart."""
        if max(late - early for early, late in pairwise(self.edges[name])) < length:
            return []
        filled = (TimeRange(-(-some.from_s // length) * length, some.to_s // length * length) for some in ranges)
        return [some for some in filled if some.length_s > 0]

    def _read(
        self,
        kind: str,
        versions: Mapping[RowKey, Hashable],
        read: Callable[[Iterable[RowKey]], Iterator[tuple[RowKey, Rollup]]],
    ) -> Iterator[tuple[RowKey, Rollup]]:
        """Return these rows; those that are remembered in this version are not read again."""
        if self.memory is None:
            yield from read(versions)
            return
        memory_key = str(self.connection.engine.url), kind
        missing = []
        for place, version in versions.items():
            cached = self.memory.get((memory_key, place, version))
            if cached is None:
                missing.append(place)
            else:
                yield place, cached
        if missing:
            for place, value in read(missing):
                yield place, self.memory.put((memory_key, place, versions[place]), value)

    def _rollups(self, period: Period, places: Iterable[RowKey]) -> Iterator[tuple[RowKey, Rollup]]:
        row = tables.RollupRow
        in_places = (row.period == period, *tables.at_places(row.pipeline, row.start, places))
        for name, start, packed in self.connection.execute(
            select(row.pipeline, row.start, row.packed).where(*in_places)
        ):
            if (rollup := unpack_rollup(name, period, start, packed)) is not None:
                yield (name, start), rollup

    def _take_minutes(self, ranges: Ranges) -> None:
        window, query = tables.WindowRow, _asked(ranges)
        columns = (window.pipeline, window.window_start, window.revision, window.closed_at)
        rows = self.connection.execute(select(*columns).where(*_within(query)))
        versions = {(name, start): (revision, closed_at) for name, start, revision, closed_at in rows}
        for (name, start), total in self._read("minute", versions, self._minutes):
            self._add(name, start, total)

    def _minutes(self, places: Iterable[RowKey]) -> Iterator[tuple[RowKey, Rollup]]:
        window = tables.WindowRow
        in_places = tables.at_places(window.pipeline, window.window_start, places)
        columns = (window.pipeline, window.window_start, window.document, window.facts)
        for name, start, document, facts in self.connection.execute(select(*columns).where(*in_places)):
            if (minute := unpack_minute(name, start, document, facts)) is not None:
                yield (name, start), minute

    def _count_minutes(self, ranges: Ranges) -> None:
        """Add minutes up where they are stored."""
        window, query = tables.WindowRow, _asked(_each(ranges, self._parted))
        sums = [func.sum(getattr(window, name)) for name in COUNTS]
        rows = self.connection.execute(
            select(query.c.name, query.c.from_s, window.verdict, func.count(), *sums)
            .where(*_within(query))
            .group_by(query.c.name, query.c.from_s, window.verdict)
        )
        for name, from_s, verdict, windows, *sums_found in rows:
            counts = {count: int(value) for count, value in zip(COUNTS, sums_found, strict=True)}
            self._add(name, from_s, Rollup.of_counts({verdict: windows}, counts))

    def _cuts(self, ranges: Ranges) -> dict[str, list[int]]:
        """Return by range the minutes of these ranges that are dropped, but summed up in an hour's roll-up."""
        hour, row = PERIOD_S["hour"], tables.RollupRow
        cuts = {name: [0] * len(totals) for name, totals in self._found.items()}
        if not any(ranges.values()):
            return cuts
        query = _asked(ranges)
        rows = self.connection.execute(
            select(row.pipeline, query.c.from_s, query.c.to_s, row.start).where(
                row.pipeline == query.c.name,
                row.period == "hour",
                row.start > query.c.from_s - hour,
                row.start < query.c.to_s,
            )
        )
        for name, from_s, to_s, start in rows:
            part = TimeRange(from_s, to_s).clipped(start, start + hour)
            if part is not None:
                cuts[name][self._position(name, part.from_s)] += part.minutes
        return cuts

    def _marked(self, period: Period) -> set[tuple[str, int]]:
        mark = tables.RollupDirtyRow
        query = select(mark.pipeline, mark.start).where(tables.is_any(mark.pipeline, self.edges), mark.period == period)
        return {(name, start) for name, start in self.connection.execute(query)}

    def _pruned_before(self) -> int:
        """Return the start before which windows were dropped (see `aggregator.maintenance.retention`)."""
        pruned = tables.PrunedRow
        query = select(pruned.before_s).where(pruned.table_name == tables.WindowRow.__tablename__)
        return self.connection.execute(query).scalar() or 0

    def _position(self, name: str, moment_s: int) -> int:
        """Return the position of the range between edges that holds this moment; -1 before the first."""
        return bisect_right(self.edges[name], moment_s) - 1

    def _add(self, name: str, start: int, part: Rollup) -> None:
        self._found[name][self._position(name, start)].append((start, part))

    def _parted(self, name: str, ranges: Sequence[TimeRange]) -> list[TimeRange]:
        """Return the ranges, parted at the edges."""
        edges = self.edges[name]
        parted: list[TimeRange] = []
        for some in ranges:
            between = edges[bisect_right(edges, some.from_s) : bisect_left(edges, some.to_s)]
            parted += map(TimeRange, (some.from_s, *between), (*between, some.to_s))
        return parted


def _each(ranges: Ranges, change: Callable[[str, Sequence[TimeRange]], list[TimeRange]]) -> Ranges:
    return {name: change(name, some) for name, some in ranges.items()}


def _asked(ranges: Ranges) -> TableValuedAlias:
    rows = ((name, range_.from_s, range_.to_s) for name, some in ranges.items() for range_ in some)
    return tables.rows_of(rows, name=Text(), from_s=BigInteger(), to_s=BigInteger())


def _within(listed: TableValuedAlias) -> tuple[ColumnElement[bool], ...]:
    """Return the windows of the ranges that are asked for."""
    window = tables.WindowRow
    return (
        window.pipeline == listed.c.name,
        window.window_start >= listed.c.from_s,
        window.window_start < listed.c.to_s,
    )


def _merged(parts: Sequence[tuple[int, Rollup]]) -> Rollup:
    """Return all parts in the order of their starts, so that the checkpoints are in the order of the flow."""
    if len(parts) == 1:
        return parts[0][1]
    return Rollup.merged(part for _, part in sorted(parts, key=itemgetter(0)))


def _without(ranges: Iterable[TimeRange], taken: Sequence[TimeRange]) -> list[TimeRange]:
    """Return the ranges without `taken`; all ascending, each of `taken` within one range."""
    remaining: list[TimeRange] = []
    start_s = 0
    for some in ranges:
        from_s = some.from_s
        while start_s < len(taken) and taken[start_s].from_s < some.to_s:
            if taken[start_s].from_s > from_s:
                remaining.append(TimeRange(from_s, taken[start_s].from_s))
            from_s = taken[start_s].to_s  # what is left of this range begins there
            start_s += 1
        if from_s < some.to_s:
            remaining.append(TimeRange(from_s, some.to_s))
    return remaining


def _joined(starts: Iterable[int], length: int) -> list[TimeRange]:
    """Return periods of this length, neighbours as one range: of a month of a thousand pipelines there are many."""
    joined: list[TimeRange] = []
    from_s = to_s = 0
    for start in sorted(starts):
        if start != to_s:
            if from_s < to_s:
                joined.append(TimeRange(from_s, to_s))
            from_s = start
        to_s = start + length
    return [*joined, TimeRange(from_s, to_s)] if from_s < to_s else joined


def _outside(ranges: Iterable[TimeRange], passed: Sequence[TimeRange]) -> list[TimeRange]:
    """Return what of the ranges lies outside of `passed`, which may reach beyond them; all ascending."""
    ranges = list(ranges)
    within = [part for passed_range in passed for part in _clipped(ranges, passed_range.from_s, passed_range.to_s)]
    return _without(ranges, within)


def _clipped(ranges: Iterable[TimeRange], from_s: int, to_s: int) -> list[TimeRange]:
    return [part for some in ranges if (part := some.clipped(from_s, to_s)) is not None]
