"""Reading of tables: what every kind of database answers, so that each is a module of its own.

A reader returns rows that are new since a position, and the position that follows. Rows go into the tap's stored plan,
so nothing is read twice: a table can have changed until another process takes over. It also says which of some rows
are not there any more, see `TableReader.missing`. Times are epoch ms.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, Self

import msgspec
import numpy as np

from lagloss.wire.format import MAX_ID_BYTES
from lagloss_server.extraction import Records
from taps.plan import EndMark, OffsetSpan, TapPlan
from taps.records import SpanRecords

MAX_CHARS: Final = MAX_ID_BYTES + 1
"""Of an id or time that is a text. A longer one is cut: it is invalid in any case, and a plan need not hold it."""
_PLACES: Final = np.iinfo(np.int64)


class TableRow(NamedTuple):
    """A row: its place in the table, by which people find it, and its id and event time as a JSON object."""

    place: int
    document: str


class SeenRow(NamedTuple):
    """A row that a read returned before: its place then, its message id, and its event time."""

    place: int
    id: str
    event_ms: int


class TableVersion(msgspec.Struct, frozen=True):
    """Which state of which table was read. A row that one version shows and a later one does not is gone, if both are
    of the same `store` and `columns`.

    Attributes:
        store: the server or catalog that was asked. Of two of them, neither says anything about the other's rows.
        columns: how ids are written, such as the type of their column: with another one, equal ids can differ.
        at: how far the store was, ascending: whatever was there at a lower one is there, or is gone. A store that can
            answer with an earlier state than it did before (a replica that is behind) must say so here.
        table: another one once the table was dropped and created again.
        content: another one once it was truncated or rewritten.
    """

    store: str
    columns: str = ""
    at: tuple[int, ...] = ()
    table: str = ""
    content: str = ""


class MissingRows(NamedTuple):
    """Ids of rows that a version of a table does not have."""

    ids: frozenset[str]
    version: TableVersion


@dataclass(frozen=True, slots=True)
class TableRead:
    """Rows that are new since a position.

    Attributes:
        position: where the next read goes on, as JSON.
        at_ms, by_ms: when the database was asked, and when it had answered.
        until_ms: the *horizon*: each transaction that began before is over, and its rows are read; 0: not known.
        is_complete: no row that was visible is left for the next read.
        break_: why rows since the last read can be missing; empty: none is.
        late_ms: of such rows, by how much their event times can be before that read.
        version: of the table, at least as far as any of the reads before that led to this position; None: its rows
            cannot be compared again.
    """

    rows: Sequence[TableRow]
    position: Mapping[str, Any]
    at_ms: int
    by_ms: int
    until_ms: int = 0
    is_complete: bool = True
    break_: str = ""
    late_ms: int = 0
    version: TableVersion | None = None


class TableReader(Protocol):
    """Reads one table. Used by one thread at a time.

    Attributes:
        interval_s: between two looks for new rows.
    """

    @property
    def interval_s(self) -> float: ...

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position; empty: of event times from `since_ms` on.

        Raises:
            TableUnreadable: it cannot be read now, or not so that no row is missed.
        """

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        """Return the ids of those of these rows that the table does not have: at their places, where it is cheap to
        look, nor anywhere else by their ids. All of it is of one snapshot, whose version is returned with them: the
        caller judges by it whether they are certainly gone, and looks twice.

        Up to a few thousand rows; `place` and `event_ms` say where to look first, and only the id says which row it is.
        It is called by a thread that does nothing else for this table, and can take a minute or two.

        Raises:
            TableUnreadable: it cannot be read now, or a row that is there could be hidden: by a right, a policy, a
                timeout, or a file that cannot be opened.
        """

    def close(self) -> None:
        """Give back what it holds of the database; another call takes it again."""


@contextmanager
def closed_on_error(reader: TableReader) -> Iterator[None]:
    """Have a reader give back what it holds after an error: the next call begins anew."""
    try:
        yield
    except BaseException:
        reader.close()
        raise


@dataclass(frozen=True, slots=True)
class TablePlan(TapPlan):
    """A plan of a table, which holds its rows: whoever repeats it makes the same blocks, whatever became of them.

    Attributes:
        rows: packed.
        position: after them.
        is_complete: no row that was visible is left.
        version: of the table that they were seen in; None: they cannot be compared again.
    """

    rows: str = ""
    position: Mapping[str, Any] = field(default_factory=dict)
    is_complete: bool = False
    version: TableVersion | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the plan in a document."""
        version = document.get("version")
        version = None if version is None else msgspec.convert(version, TableVersion)
        return super(TablePlan, cls).of({**document, "version": version})

    def read(self) -> dict[int, SpanRecords]:
        """Return the rows as records of the plan's span."""
        rows = unpack_rows(self.rows)
        by_ms = np.array([mark.by_ms for span in self.spans for mark in span.ends[-1:] for _ in rows], np.int64)
        nothing = [None] * len(rows)
        records = Records(by_ms, nothing, [row.document.encode() for row in rows], nothing)
        places = np.fromiter((row.place for row in rows), np.int64, len(rows))
        return {span.partition: SpanRecords(places, records, np.zeros(len(rows), np.bool_)) for span in self.spans}


def span_of(rows: Sequence[TableRow], after_ms: int, by_ms: int) -> OffsetSpan:
    """Return the span of rows that came after a look (0: not known) and by another."""
    before = (EndMark(int(_PLACES.min), after_ms, after_ms),) if after_ms else ()
    return OffsetSpan(0, 0, len(rows), (*before, EndMark(int(_PLACES.max), by_ms, by_ms)))


def pack_rows(rows: Sequence[TableRow]) -> str:
    """Return rows as text for JSON."""
    return base64.b85encode(zlib.compress(msgspec.json.encode(list(rows)), 1)).decode() if rows else ""


def unpack_rows(packed: str) -> list[TableRow]:
    """Return the rows that were packed."""
    if not packed:
        return []
    return msgspec.json.decode(zlib.decompress(base64.b85decode(packed)), type=list[TableRow])
