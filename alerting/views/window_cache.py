"""Stored windows, kept in memory: of a pipeline's closed windows, only those that changed are read again.

They are kept by hour, each with a digest that changes whenever one of its windows is closed or revised. As far back as
rules speak, windows are read with their documents; before, back to the start of the longest span that ends there, only
their counts. Windows that closings name are read for many pipelines at once, without a look at the digests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Row,
    Text,
    and_,
    any_,
    func,
    literal,
    literal_column,
    select,
)

from alerting.rules.budget import LONGEST_S
from alerting.rules.windows import WindowReader, Windows
from lagloss_server.store.schema.core import WindowRow, rows_of, table_of

HOUR_S: Final = 3_600
CONTEXT_S: Final = 2 * HOUR_S
"""Windows with documents before those that are spoken of: enough for any k of n."""

Digest = tuple[int, ...]
_WINDOW = table_of(WindowRow)


_DIGEST: Final = (
    func.count(),
    func.coalesce(func.sum(_WINDOW.c.revision), 0),
    func.coalesce(func.sum(_WINDOW.c.closed_at), 0),
    func.count().filter(_WINDOW.c.history),
)
_HOUR: Final = (_WINDOW.c.window_start // literal_column(str(HOUR_S), Integer)).label("hour")
_COUNTS: Final = tuple(
    _WINDOW.c[name]
    for name in (
        *("window_start", "revision", "closed_at", "history", "verdict"),
        *("messages", "lost_min", "on_time", "on_time_of", "pending"),
    )
)
Stamp = tuple[int, int, bool]
"""Revision, moment of closing and whether it is history: a window that keeps them is as it was."""


@dataclass(frozen=True, slots=True)
class _Hour:
    """An hour as last read. `windows`: those of its windows that are no history."""

    stamps: Mapping[int, Stamp]
    windows: Windows

    @property
    def digest(self) -> Digest:
        """As `_DIGEST` computes it."""
        stamps = self.stamps.values()
        return (len(stamps), *(sum(stamp[at] for stamp in stamps) for at in range(3)))


class StoredWindows:
    """The closed windows of a pipeline, read for one version of its definition."""

    def __init__(self, pipeline: str, reader: WindowReader) -> None:
        self._name = pipeline
        self._reader = reader
        self._hours: dict[int, _Hour] = {}
        self._digests: dict[int, Digest] = {}
        self._joined: Windows | None = self._reader.windows(())
        self.newest_s: int | None = None
        """Start of the newest closed window, history or not."""
        self.has_read = False

    @property
    def windows(self) -> Windows:
        """As last read, those that are no history, oldest first."""
        if self._joined is None:
            self._joined = self._reader.joined([self._hours[hour].windows for hour in sorted(self._hours)])
        return self._joined

    def refresh(self, connection: Connection, seen_from_s: int) -> None:
        """Read the changed windows that rules judge, from this moment on, and those before that they need as context.
        The connection is in a REPEATABLE READ transaction."""
        from_s = first_s(seen_from_s)
        self._drop_before(from_s)
        if self.has_read:
            found = _numbers(connection.execute(select(*_DIGEST).where(self._within(from_s))).one())
            if found == tuple(map(sum, zip(_NONE, *self._digests.values(), strict=True))):
                return
        self.has_read = True
        by_hour = select(_HOUR, *_DIGEST).where(self._within(from_s)).group_by(_HOUR)
        digests = {int(row[0]): _numbers(row[1:]) for row in connection.execute(by_hour)}
        for hour in self._hours.keys() - digests.keys():
            self._put(hour, {}, self._reader.windows(()))
        changed = {hour for hour, digest in digests.items() if self._digests.get(hour) != digest}
        if changed:
            self._read(connection, changed, seen_from_s - CONTEXT_S)
        newest = select(func.max(_WINDOW.c.window_start)).where(_WINDOW.c.pipeline == self._name)
        self.newest_s = connection.execute(newest).scalar_one()

    def take(self, rows: Collection[Row[Any]], seen_from_s: int) -> int | None:
        """Take in rows of windows as `read_named` gives them; return the start of the first that changed, if one did.
        What was read before has to be as complete as a `refresh` leaves it."""
        self._drop_before(first_s(seen_from_s))
        by_hour: dict[int, list[Row[Any]]] = {}
        for row in rows:
            hour = self._hours.get(row.window_start // HOUR_S)
            is_new = hour is None or hour.stamps.get(row.window_start) != _stamp(row)
            if is_new and row.window_start >= first_s(seen_from_s):
                by_hour.setdefault(row.window_start // HOUR_S, []).append(row)
        for at, changed in by_hour.items():
            before = self._hours.get(at) or _Hour({}, self._reader.windows(()))
            new = {row.window_start: _stamp(row) for row in changed}
            kept = before.windows.rows
            if before.stamps.keys() & new.keys():
                kept = kept[[start not in new for start in kept["start"].tolist()]]
            read = [self._row(row, seen_from_s - CONTEXT_S, row.document) for row in changed if not row.history]
            merged = np.concatenate([kept, self._reader.windows(read).rows])
            if len(kept) and kept["start"][-1] > min(new):
                merged = merged[np.argsort(merged["start"], kind="stable")]
            self._put(at, {**before.stamps, **new}, self._reader.of_rows(merged))
        changed_s = [row.window_start for changed in by_hour.values() for row in changed]
        if changed_s:
            self.newest_s = max(changed_s if self.newest_s is None else (self.newest_s, *changed_s))
        return min(changed_s, default=None)

    def _read(self, connection: Connection, hours: set[int], documents_from_s: int) -> None:
        """Read these hours, with the documents of their changed windows."""
        within = and_(
            self._within(min(hours) * HOUR_S, (max(hours) + 1) * HOUR_S), _is_any(_HOUR.element, sorted(hours))
        )
        rows = connection.execute(select(*_COUNTS).where(within).order_by(_WINDOW.c.window_start)).all()
        stamps = {row.window_start: _stamp(row) for row in rows}
        kept = {start: row for hour in hours for start, row in self._unchanged(hour, stamps)}
        wanted = [
            row.window_start
            for row in rows
            if not row.history and row.window_start not in kept and row.window_start >= documents_from_s
        ]
        if wanted:
            within = and_(self._within(wanted[0], wanted[-1] + 1), _is_any(_WINDOW.c.window_start, wanted))
            for start, document in connection.execute(select(_WINDOW.c.window_start, _WINDOW.c.document).where(within)):
                kept[start] = self._reader.row(start, document)
        found: dict[int, list[Row[Any]]] = {hour: [] for hour in hours}
        for row in rows:
            found[row.window_start // HOUR_S].append(row)
        for hour, of_hour in found.items():
            read = [kept.get(row.window_start) or self._reader.counts(row) for row in of_hour if not row.history]
            of = {row.window_start: stamps[row.window_start] for row in of_hour}
            self._put(hour, of, self._reader.windows(read))

    def _unchanged(self, hour: int, stamps: Mapping[int, Stamp]) -> Iterator[tuple[int, Any]]:
        """Yield the rows of an hour's windows that are as they were."""
        before = self._hours.get(hour)
        if before is not None and len(before.windows):
            for start, row in zip(before.windows.starts.tolist(), before.windows.rows.tolist(), strict=True):
                if before.stamps[start] == stamps.get(start):
                    yield start, row

    def _row(self, row: Row[Any], documents_from_s: int, document: dict[str, Any]) -> Any:
        if row.window_start < documents_from_s:
            return self._reader.counts(row)
        return self._reader.row(row.window_start, document)

    def _put(self, hour: int, stamps: Mapping[int, Stamp], windows: Windows) -> None:
        self._joined = None
        if not stamps:
            self._hours.pop(hour, None)
            self._digests.pop(hour, None)
            return
        self._hours[hour] = _Hour(stamps, windows)
        self._digests[hour] = self._hours[hour].digest

    def _drop_before(self, from_s: int) -> None:
        for hour in [hour for hour in self._hours if hour < from_s // HOUR_S]:
            self._put(hour, {}, self._reader.windows(()))

    def _within(self, from_s: int, to_s: int | None = None) -> ColumnElement[bool]:
        begins = and_(_WINDOW.c.pipeline == self._name, _WINDOW.c.window_start >= from_s)
        return begins if to_s is None else and_(begins, _WINDOW.c.window_start < to_s)


def first_s(seen_from_s: int) -> int:
    """Return the start (epoch s) of the first hour that rules need which speak of windows from that moment on."""
    return (seen_from_s - LONGEST_S) // HOUR_S * HOUR_S


def read_named(connection: Connection, named: Mapping[str, Collection[int]]) -> dict[str, list[Row[Any]]]:
    """Return the rows of these windows of many pipelines, oldest first, with their documents."""
    asked = rows_of(
        ((name, start) for name, starts in named.items() for start in starts), name=Text(), start=BigInteger()
    )
    is_asked = and_(_WINDOW.c.pipeline == asked.c.name, _WINDOW.c.window_start == asked.c.start)
    found: dict[str, list[Row[Any]]] = {}
    columns: tuple[Any, ...] = (_WINDOW.c.pipeline, *_COUNTS, _WINDOW.c.document)
    for row in connection.execute(select(*columns).join(asked, is_asked).order_by(_WINDOW.c.window_start)):
        found.setdefault(row.pipeline, []).append(row)
    return found


def read_lossy(connection: Connection, named: Mapping[str, Collection[int]]) -> list[str]:
    """Return the pipelines of which one of these windows is lossy."""
    asked = rows_of(
        ((name, start) for name, starts in named.items() for start in starts), name=Text(), start=BigInteger()
    )
    is_asked = and_(_WINDOW.c.pipeline == asked.c.name, _WINDOW.c.window_start == asked.c.start)
    found = select(_WINDOW.c.pipeline).distinct().join(asked, is_asked).where(_WINDOW.c.verdict == "loss")
    return list(connection.execute(found).scalars())


_NONE: Final = (0,) * len(_DIGEST)


def _stamp(row: Row[Any]) -> Stamp:
    return row.revision, row.closed_at, row.history


def _numbers(row: Iterable[Any]) -> Digest:
    return tuple(int(number) for number in row)


def _is_any(column: ColumnElement[int], numbers: list[int]) -> ColumnElement[bool]:
    return column == any_(literal(numbers, ARRAY(BigInteger)))
