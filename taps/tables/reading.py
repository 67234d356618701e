"""Reading of tables: what every kind of database answers, so that each is a module of its own.

A reader returns rows that are new since a position, and the position that follows. Rows go into the tap's stored plan,
so nothing is read twice: a table can have changed until another process takes over. Times are epoch ms.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import numpy as np

from lagloss_server.extraction import Records
from taps.plan import EndMark, OffsetSpan, TapPlan
from taps.records import SpanRecords

_PLACES: Final = np.iinfo(np.int64)


class TableRow(NamedTuple):
    """A row: its place in the table, by which people find it, and its id and event time as a JSON object."""

    place: int
    document: str


@dataclass(frozen=True, slots=True)
class TableRead:
    """Rows that are new since a position.

    Attributes:
        position: where the next read goes on, as JSON.
        at_ms, by_ms: when the database was asked, and when it had answered.
        until_ms: the *horizon*: each transaction that began before is over, and its rows are read; 0: not known.
        is_complete: no row that was visible is left for the next read.
        break_: why rows since the last read can be missing; empty: none is.
    """

    rows: Sequence[TableRow]
    position: Mapping[str, Any]
    at_ms: int
    by_ms: int
    until_ms: int = 0
    is_complete: bool = True
    break_: str = ""


class TableReader(Protocol):
    """Reads one table. Used by one thread at a time."""

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position; empty: of event times from `since_ms` on.

        Raises:
            TableUnreadable: it cannot be read now, or not so that no row is missed.
        """

    def close(self) -> None:
        """Give back what it holds of the database; another `read` takes it again."""


@dataclass(frozen=True, slots=True)
class TablePlan(TapPlan):
    """A plan of a table, which holds its rows: whoever repeats it makes the same blocks, whatever became of them.

    Attributes:
        rows: packed.
        position: after them.
        is_complete: no row that was visible is left.
    """

    rows: str = ""
    position: Mapping[str, Any] = field(default_factory=dict)
    is_complete: bool = False

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
    return base64.b85encode(zlib.compress(msgspec.json.encode(rows), 1)).decode() if rows else ""


def unpack_rows(packed: str) -> list[TableRow]:
    """Return the rows that were packed."""
    if not packed:
        return []
    return msgspec.json.decode(zlib.decompress(base64.b85decode(packed)), type=list[TableRow])
