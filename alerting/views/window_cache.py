"""Stored windows, kept in memory: of a pipeline's closed windows, those that rules may yet find something new in.

From some hour on they are kept, each with a row and a stamp that changes whenever it is closed or revised. Hours before
were judged: of each there is a digest, which changes whenever one of its windows does, and then they are read again.
Counts reach further back, as far as short spans do; what a long span needs is read when a rule asks for it. Windows
that closings name are read for many pipelines at once, without a look at the digests.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Row,
    and_,
    any_,
    func,
    literal,
    literal_column,
    select,
)

from alerting.rules.budget import LONGEST_S, LONGEST_SHORT_S
from alerting.rules.early_baseline import RECENT_S
from alerting.rules.view import HORIZON_S
from alerting.rules.windows import COUNTED, EarlierCounts, Ints, WindowReader, Windows
from lagloss_server.store.results import unpack_window
from lagloss_server.store.schema.core import WindowRow, at_places, table_of

HOUR_S: Final = 3_600
CONTEXT_S: Final = RECENT_S
"""Windows with documents before the hour in which those that are judged begin: enough for any k of n, and for an early
baseline."""
UNSETTLED_S: Final = 3_600
"""Windows that are younger than this are likely to be closed again."""

_WINDOW = table_of(WindowRow)
_STAMP: Final = (_WINDOW.c.revision, _WINDOW.c.closed_at, _WINDOW.c.history)
_HOUR: Final = (_WINDOW.c.window_start // literal_column(str(HOUR_S), Integer)).label("hour")
_DIGEST: Final = (
    func.count(),
    func.sum(_WINDOW.c.revision),
    func.sum(_WINDOW.c.closed_at),
    func.count().filter(_WINDOW.c.history),
)


@dataclass(frozen=True, slots=True)
class JudgedWindows:
    """What was judged of a pipeline's windows: those before `to_s` (epoch s), a full hour. `digests`: of these, a row
    each of hour, windows, sums of revisions and moments of closing, and how many are history. `live`: newest window
    with live beacons before those that have to be read, by watched checkpoint."""

    to_s: int
    digests: Ints
    live: Mapping[str, int]


class StoredWindows:
    """The closed windows of a pipeline, read for one version of its definition."""

    def __init__(self, pipeline: str, reader: WindowReader, engine: Engine) -> None:
        self._name = pipeline
        self._reader = reader
        self._engine = engine
        self._rows = reader.rows(())
        self._stamps = _numbers((), 4)  # start, revision, moment of closing, whether it is history
        self._judged = JudgedWindows(0, _numbers((), 5), {})
        self._settled_s = 0
        self._earlier: EarlierCounts | None = None
        self.newest_s: int | None = None
        """Start of the newest closed window, history or not."""
        self.has_read = False

    @property
    def windows(self) -> Windows:
        """As last read, those that are no history, oldest first."""
        return self._reader.of_rows(self._rows, self._earlier, self._judged.live)

    @property
    def judged(self) -> JudgedWindows:
        return self._judged

    def restore(self, judged: JudgedWindows) -> None:
        """Take over what another alerter has judged, so that it need not be read."""
        if judged.to_s > self._judged.to_s:
            self._forget_before(judged)

    def refresh(self, connection: Connection, seen_from_s: int) -> None:
        """Read the changed windows that rules judge, from this moment on as far as they were not judged yet, and those
        before that they need as context. The connection is in a REPEATABLE READ transaction."""
        oldest_s, first_s = seen_from_s // HOUR_S * HOUR_S, first_needed_s(seen_from_s)
        self._judge_to(oldest_s)
        by_hour = select(_HOUR, *_DIGEST).where(self._within(first_s, self._judged.to_s)).group_by(_HOUR)
        digests = _numbers(connection.execute(by_hour.order_by(_HOUR)), 5)
        known_digests = self._judged.digests
        is_as_judged = np.array_equal(digests, known_digests[known_digests[:, 0] >= first_s // HOUR_S])
        if not self.has_read or not is_as_judged:
            self._earlier = None
        if not is_as_judged:
            self._judged = JudgedWindows(oldest_s, digests[digests[:, 0] < oldest_s // HOUR_S], {})
        self._read(connection)
        if self._earlier is None:
            self._earlier = self._read_counts(connection, self._judged.to_s - LONGEST_SHORT_S)
        self.has_read = True
        newest = select(func.max(_WINDOW.c.window_start)).where(_WINDOW.c.pipeline == self._name)
        self.newest_s = connection.execute(newest).scalar_one()

    def take(self, rows: Collection[Row[Any]], seen_from_s: int) -> float:
        """Take in rows of windows as `read_named` gives them; return the start of the first that changed, inf if none
        did, -inf if one was judged, so that a `refresh` has to look further back."""
        first_s = first_needed_s(seen_from_s)
        changed = [row for row in rows if row.window_start >= first_s and not self._knows(row)]
        if not changed:
            return math.inf
        starts: list[int] = [row.window_start for row in changed]
        first_s = min(starts)
        if first_s < self._judged.to_s:
            return -math.inf
        read = self._read_rows((row.window_start, row.document) for row in changed if not row.history)
        self._rows = _merged(self._rows, self._rows["start"], self._reader.rows(read), starts)
        stamps = _numbers(((row.window_start, *_stamp(row)) for row in changed), 4)
        self._stamps = _merged(self._stamps, self._stamps[:, 0], stamps, starts)
        self.newest_s = max(starts if self.newest_s is None else (self.newest_s, *starts))
        return first_s

    def _knows(self, row: Row[Any]) -> bool:
        index = int(self._stamps[:, 0].searchsorted(row.window_start))
        return bool(self._stamps[index : index + 1].tolist() == [[row.window_start, *_stamp(row)]])

    def settle(self, now_s: float) -> bool:
        """Note that there is nothing to be found in the windows as they are, and forget those that no later one needs;
        return whether there were some. Kept are those that may be closed again soon or have pending messages, and
        those whose messages a watched checkpoint has still to see."""
        recent_s = min(int(now_s - UNSETTLED_S), self.newest_s or 0)  # after an outage, windows of long ago are new
        hour_s = recent_s // HOUR_S * HOUR_S
        if hour_s <= max(self._judged.to_s, self._settled_s):  # once per hour, however often judged ones are read again
            return False
        windows = self.windows
        kept_s = [recent_s, *windows.starts[windows.column("pending") > 0].tolist()]
        for name in windows.watched:
            live_s, due_s = windows.newest_live(name), windows.starts[windows.due(name)]
            kept_s += [] if live_s is None else due_s[due_s > live_s].tolist()
        has_moved = self._judge_to(min(kept_s) // HOUR_S * HOUR_S)
        self._settled_s = hour_s if has_moved else self._settled_s
        return has_moved

    def _judge_to(self, to_s: int) -> bool:
        """Call the windows before that moment judged; return whether they were not."""
        before = self._judged
        if to_s <= before.to_s:
            return False
        starts, first_hour = self._stamps[:, 0], first_needed_s(to_s - HORIZON_S) // HOUR_S
        new = _digests(self._stamps[(starts >= before.to_s) & (starts < to_s)])
        digests = np.concatenate([before.digests[before.digests[:, 0] >= first_hour], new])
        gone = self._reader.of_rows(self._rows[self._rows["start"] < to_s - CONTEXT_S], live_before=before.live)
        live_s = {name: gone.newest_live(name) for name in gone.watched}
        live = {
            name: start_s for name, start_s in live_s.items() if start_s is not None and start_s >= to_s - HORIZON_S
        }
        self._forget_before(JudgedWindows(to_s, digests, live))
        return True

    def _forget_before(self, judged: JudgedWindows) -> None:
        """Forget the windows that are no context any more, but for their counts."""
        kept_s, counted_s = judged.to_s - CONTEXT_S, judged.to_s - LONGEST_SHORT_S
        if self._earlier is not None:
            gone = self._rows[self._rows["start"] < kept_s]
            starts = np.concatenate([self._earlier.starts, gone["start"]])
            counts = np.hstack([self._earlier.counts, _compact([gone[name] for name in COUNTED])])
            since = starts >= counted_s
            self._earlier = EarlierCounts(starts[since], counts[:, since], counted_s, self._read_all_counts)
        self._rows = self._rows[self._rows["start"] >= kept_s].copy()
        self._stamps = self._stamps[self._stamps[:, 0] >= kept_s].copy()
        self._judged = judged

    def _read(self, connection: Connection) -> None:
        """Read the windows after those that were judged, and their context: documents of changed ones only."""
        within = self._within(self._judged.to_s - CONTEXT_S)
        query = select(_WINDOW.c.window_start, *_STAMP).where(within).order_by(_WINDOW.c.window_start)
        stamps = _numbers(connection.execute(query), 4)
        before = set(map(tuple, self._stamps.tolist()))
        are_new = [stamp not in before for stamp in map(tuple, stamps.tolist())]
        unchanged = stamps[np.invert(are_new), 0] if len(stamps) else ()
        changed = stamps[are_new & (stamps[:, 3] == 0), 0].tolist() if len(stamps) else []
        read = []
        if changed:
            within = and_(
                self._within(changed[0], changed[-1] + 1),
                _WINDOW.c.window_start == any_(literal(changed, ARRAY(BigInteger))),
            )
            documents = connection.execute(select(_WINDOW.c.window_start, _WINDOW.c.document).where(within))
            read = self._read_rows((start, document) for start, document in documents)
        rows = self._rows[np.isin(self._rows["start"], unchanged)]
        self._rows = _merged(rows, rows["start"], self._reader.rows(sorted(read, key=lambda row: row[0])), changed)
        self._stamps = stamps

    def _read_rows(self, documents: Iterable[tuple[int, bytes]]) -> list[tuple[Any, ...]]:
        """Return the numbers of these windows, but for those that are unreadable."""
        windows = ((start, unpack_window(self._name, start, document)) for start, document in documents)
        return [self._reader.row(start, window) for start, window in windows if window is not None]

    def _read_counts(self, connection: Connection, from_s: float) -> EarlierCounts:
        """Read the counts of the windows from that moment on that have no row."""
        columns = [_WINDOW.c[name] for name in ("window_start", *COUNTED)]
        first_s = max(from_s, first_needed_s(self._judged.to_s))
        within = self._within(int(first_s), self._judged.to_s - CONTEXT_S)
        query = select(*columns).where(within, ~_WINDOW.c.history).order_by(_WINDOW.c.window_start)
        counts = _numbers(connection.execute(query), len(columns)).T
        return EarlierCounts(counts[0].copy(), _compact(counts[1:]), from_s, self._read_all_counts)

    def _read_all_counts(self) -> EarlierCounts:
        with self._engine.begin() as connection:
            self._earlier = self._read_counts(connection, -math.inf)
        return self._earlier

    def _within(self, from_s: int, to_s: int | None = None) -> ColumnElement[bool]:
        begins = and_(_WINDOW.c.pipeline == self._name, _WINDOW.c.window_start >= from_s)
        return begins if to_s is None else and_(begins, _WINDOW.c.window_start < to_s)


def first_needed_s(seen_from_s: int) -> int:
    """Return the start (epoch s) of the first hour that rules need which speak of windows from that moment on."""
    return (seen_from_s - LONGEST_S) // HOUR_S * HOUR_S


def read_named(connection: Connection, named: Mapping[str, Collection[int]]) -> dict[str, list[Row[Any]]]:
    """Return the rows of these windows of many pipelines, oldest first, with their documents."""
    rows_by_pipeline: dict[str, list[Row[Any]]] = {}
    columns: tuple[Any, ...] = (_WINDOW.c.pipeline, _WINDOW.c.window_start, *_STAMP, _WINDOW.c.document)
    for row in connection.execute(select(*columns).where(*_are_named(named)).order_by(_WINDOW.c.window_start)):
        rows_by_pipeline.setdefault(row.pipeline, []).append(row)
    return rows_by_pipeline


def read_lossy(connection: Connection, named: Mapping[str, Collection[int]]) -> list[str]:
    """Return the pipelines of which one of these windows is lossy."""
    query = select(_WINDOW.c.pipeline).distinct().where(*_are_named(named), _WINDOW.c.verdict == "loss")
    return list(connection.execute(query).scalars())


def _are_named(named: Mapping[str, Collection[int]]) -> tuple[ColumnElement[bool], ...]:
    places = ((name, start) for name, starts in named.items() for start in starts)
    return at_places(_WINDOW.c.pipeline, _WINDOW.c.window_start, places)


def _stamp(row: Row[Any]) -> list[int]:
    return [row.revision, row.closed_at, int(row.history)]


def _numbers(rows: Iterable[Iterable[Any]], columns: int) -> Ints:
    return np.array([[int(number) for number in row] for row in rows], np.int64).reshape(-1, columns)


def _digests(stamps: Ints) -> Ints:
    """Return the digests of the hours of these windows, as `_DIGEST` computes them."""
    hours, first = np.unique(stamps[:, 0] // HOUR_S, return_index=True)
    if not len(hours):
        return _numbers((), 5)
    ones = np.ones((len(stamps), 1), np.int64)
    sums = np.add.reduceat(np.hstack([ones, stamps[:, 1:]]), first)
    return np.hstack([hours[:, np.newaxis], sums])


def _merged(before: Any, before_starts: Ints, new: Any, starts: Collection[int]) -> Any:
    """Return the rows of an array with `new` ones in place of those of the windows that start then; all oldest
    first."""
    if not len(before) or not starts or min(starts) > before_starts[-1]:
        return np.concatenate([before, new])
    unchanged = before[~np.isin(before_starts, list(starts))]
    merged = np.concatenate([unchanged, new])
    return merged[np.argsort(merged["start"] if merged.dtype.names else merged[:, 0], kind="stable")]


def _compact(counts: Any) -> np.ndarray[Any, Any]:
    """Return the rows of counts in the narrowest type that holds them."""
    array = np.array(counts, np.int64)
    return array.astype(np.min_scalar_type(int(array.max(initial=0))))
