"""Stored windows, kept in memory: of a pipeline's closed windows, only those that changed are read again.

They are kept by hour, each with a digest that changes whenever one of its windows is closed or revised. As far back as
rules speak, windows are read with their documents; before, back to the start of the longest span that ends there, only
their counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Integer, Row, and_, func, literal_column, select

from alerting.rules.budget import LONGEST_S
from alerting.rules.windows import WindowReader, Windows
from lagloss_server.store.schema.core import WindowRow, table_of

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

    digest: Digest
    stamps: Mapping[int, Stamp]
    windows: Windows


class StoredWindows:
    """The closed windows of a pipeline, read for one version of its definition."""

    def __init__(self, pipeline: str, reader: WindowReader) -> None:
        self._name = pipeline
        self._reader = reader
        self._digest: Digest = ()
        self._hours: dict[int, _Hour] = {}
        self.windows = self._reader.windows(())
        """As last read, those that are no history, oldest first."""
        self.newest_s: int | None = None
        """Start of the newest closed window, history or not."""
        self.has_read = False

    def refresh(self, connection: Connection, seen_from_s: int) -> None:
        """Read the changed windows that rules judge, from this moment on, and those before that they need as context.
        The connection is in a REPEATABLE READ transaction."""
        from_s = (seen_from_s - LONGEST_S) // HOUR_S * HOUR_S
        self.has_read = True
        digest = (from_s, *_numbers(connection.execute(select(*_DIGEST).where(self._within(from_s))).one()))
        if digest == self._digest:
            return
        by_hour = select(_HOUR, *_DIGEST).where(self._within(from_s)).group_by(_HOUR)
        digests = {int(row[0]): _numbers(row[1:]) for row in connection.execute(by_hour)}
        hours = {hour: kept for hour, kept in self._hours.items() if digests.get(hour) == kept.digest}
        for hour in sorted(digests.keys() - hours.keys()):
            hours[hour] = self._read(connection, hour, digests[hour], seen_from_s - CONTEXT_S)
        self._hours = dict(sorted(hours.items()))
        self._digest = digest
        self.windows = self._reader.joined([hour.windows for hour in self._hours.values()])
        newest = select(func.max(_WINDOW.c.window_start)).where(_WINDOW.c.pipeline == self._name)
        self.newest_s = connection.execute(newest).scalar_one()

    def _read(self, connection: Connection, hour: int, digest: Digest, documents_from_s: int) -> _Hour:
        """Read an hour, with the documents of its changed windows."""
        within = self._within(hour * HOUR_S, (hour + 1) * HOUR_S)
        rows = connection.execute(select(*_COUNTS).where(within).order_by(_WINDOW.c.window_start)).all()
        before = self._hours.get(hour)
        stamps = {row.window_start: (row.revision, row.closed_at, row.history) for row in rows}
        kept = {} if before is None or len(before.windows) == 0 else self._kept(before, stamps)
        wanted = [
            row.window_start
            for row in rows
            if not row.history and row.window_start not in kept and row.window_start >= documents_from_s
        ]
        read = select(_WINDOW.c.window_start, _WINDOW.c.document).where(within, _WINDOW.c.window_start.in_(wanted))
        documents = {row.window_start: row.document for row in connection.execute(read)} if wanted else {}

        def row_of(row: Row[Any]) -> Any:
            start = row.window_start
            if start in kept:
                return kept[start]
            return self._reader.row(start, documents[start]) if start in documents else self._reader.counts(row)

        return _Hour(digest, stamps, self._reader.windows([row_of(row) for row in rows if not row.history]))

    def _kept(self, before: _Hour, stamps: Mapping[int, Stamp]) -> dict[int, Any]:
        """Return the rows of the unchanged windows."""
        return {
            start: row
            for start, row in zip(before.windows.starts.tolist(), before.windows.rows.tolist(), strict=True)
            if before.stamps[start] == stamps.get(start)
        }

    def _within(self, from_s: int, to_s: int | None = None) -> ColumnElement[bool]:
        begins = and_(_WINDOW.c.pipeline == self._name, _WINDOW.c.window_start >= from_s)
        return begins if to_s is None else and_(begins, _WINDOW.c.window_start < to_s)


def _numbers(row: Iterable[Any]) -> Digest:
    return tuple(int(number) for number in row)
