"""Records of a topic as columns, their headers, and what an extraction gives of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction.columns import I8, ByteColumn
from lagloss_server.extraction.reasons import CODES, Reason
from lagloss_server.model.taps import FORMATS, Extraction, Format

__all__ = ["BROKEN_HEADERS", "FORMATS", "Extracted", "Extraction", "Format", "Headers", "Records"]

Headers = Sequence[tuple[str, bytes | None]]


class _BrokenHeaders(tuple[tuple[str, bytes | None], ...]):
    __slots__ = ()


BROKEN_HEADERS: Final[Headers] = _BrokenHeaders()
"""Of a record with headers that no client of Kafka's hands out."""


def _nowhere() -> npt.NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one topic, of any partitions, a row each. `timestamp_ms`: the record's own, ms since the epoch.

    `keys` and `values` may be Arrow arrays of type binary or large_binary, and `headers` one of lists of structs (key,
    value), as Spark's Kafka source has them; they are then read in place. `partitions`, `offsets`: where they are in
    the topic; empty if no id is made of them.
    """

    timestamp_ms: npt.NDArray[np.int64]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None]
    partitions: npt.NDArray[np.int64] = field(default_factory=_nowhere)
    offsets: npt.NDArray[np.int64] = field(default_factory=_nowhere)

    def __len__(self) -> int:
        return len(self.timestamp_ms)

    def cut(self, start: int, end: int) -> Records:
        """Return the rows from `start` to before `end`."""
        rows = slice(start, end)
        return Records(
            self.timestamp_ms[rows],
            self.keys[rows],
            self.values[rows],
            self.headers[rows],
            self.partitions[rows],
            self.offsets[rows],
        )

    def at(self, rows: npt.NDArray[np.intp]) -> Records:
        """Return these rows of records in lists."""
        chosen = rows.tolist()
        keys, values, headers = ([column[row] for row in chosen] for column in (self.keys, self.values, self.headers))
        places = (column[rows] if column.size else column for column in (self.partitions, self.offsets))
        return Records(self.timestamp_ms[rows], keys, values, headers, *places)

    def value_sizes(self) -> npt.NDArray[np.int64]:
        """Return the bytes of each value, 0 for a tombstone; shape (records,)."""
        if hasattr(self.values, "buffers"):
            import pyarrow.compute as pc

            sizes: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(self.values), 0).to_numpy(zero_copy_only=False)
            return sizes
        return np.fromiter((len(value or b"") for value in self.values), np.int64, len(self))

    def header(self, name: str) -> ByteColumn:
        """Return the header of this name of each record; a null if there is none, or it has no value. Of several of a
        name it is the last, as for Kafka's own clients."""
        if _is_arrow(self.headers):
            return _of_arrow(self.headers, name)
        values: list[bytes | None] = []
        for row in self.headers:
            value = None
            for key, content in row or ():
                if key == name:
                    value = content
            values.append(value)
        return ByteColumn.of(values)

    def with_header(self, name: str) -> dict[int, bytes]:
        """Return by row the header of this name of the records that have one, no bytes if it has no value. Of several
        of a name it is the last."""
        if _is_arrow(self.headers):
            of_row, values, named = _named(self.headers, name)
            return {row: value or b"" for row, value in zip(of_row[named].tolist(), values.take(named), strict=True)}
        return {
            index: content or b""
            for index, row in enumerate(self.headers)
            if row
            for key, content in row
            if key == name
        }

    def broken_headers(self) -> I8:
        """Return why the headers of each record cannot be read: a code of `CODES`, or 0."""
        broken = np.zeros(len(self), np.int8)
        if not _is_arrow(self.headers):
            broken[[index for index, row in enumerate(self.headers) if row is BROKEN_HEADERS]] = CODES["bad_headers"]
        return broken


def _is_arrow(headers: object) -> bool:
    """Return whether these are an Arrow array, which is read without an object per header."""
    return hasattr(headers, "flatten")


class _Named(NamedTuple):
    """Headers of many records in one column: the row of each, its value, and the positions of those of a name."""

    of_row: npt.NDArray[np.int64]
    values: ByteColumn
    named: npt.NDArray[np.intp]


def _named(headers: Any, name: str) -> _Named:
    import pyarrow.compute as pc

    flat = headers.flatten()
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    is_named = pc.fill_null(pc.equal(flat.field("key"), name), False).to_numpy(zero_copy_only=False)
    return _Named(
        np.repeat(np.arange(len(headers)), sizes), ByteColumn.of(flat.field("value")), np.flatnonzero(is_named)
    )


def _of_arrow(headers: Any, name: str) -> ByteColumn:
    of_row, values, named = _named(headers, name)
    starts, ends = np.full(len(headers), -1, np.int64), np.zeros(len(headers), np.int64)
    starts[of_row[named]], ends[of_row[named]] = values.starts[named], values.ends[named]  # the last one stays
    return ByteColumn(values.data, starts, ends)


@dataclass(frozen=True, slots=True)
class Extracted:
    """What records gave: `rows`, ascending, that have an id and a time and pass `where`, with their ids (UTF-8 of 1 to
    255 bytes) and event times (ms since the epoch); how many rows `where` leaves out; by reason, the rows (ascending)
    that could not be read."""

    rows: npt.NDArray[np.intp]
    ids: list[bytes]
    event_ms: npt.NDArray[np.float64]
    left_out: int
    unreadable_rows: Mapping[Reason, npt.NDArray[np.intp]]

    @property
    def unreadable(self) -> dict[Reason, tuple[int, int]]:
        """Return by reason how many rows could not be read, and the first of them."""
        return {reason: (int(rows.size), int(rows[0])) for reason, rows in self.unreadable_rows.items()}
