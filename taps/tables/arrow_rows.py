"""Rows in Arrow's columns: as they were read, and as the documents that a plan holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, overload
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from taps.tables.reading import MAX_CHARS, TableRow

MAX_ROWS: Final = 20_000
"""Rows of a read, but for the rest of the last batch, which has as many at most."""
SCAN_S: Final = 120.0
"""For how long rows are looked for that are not where they were."""
_UTC_US: Final = pa.timestamp("us", "UTC")
_NO_ID: Final = 0
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,19}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PlacedBatch(NamedTuple):
    """Ids and event times, in a batch of two columns (of one, if a column is both), and their place."""

    place: int
    columns: pa.RecordBatch


class ArrowRows(Sequence[TableRow]):
    """Rows of batches, in their order. They become documents when they are looked at: a read is one of columns."""

    def __init__(self, batches: Sequence[PlacedBatch]) -> None:
        self._batches = batches
        self._size = sum(len(batch.columns) for batch in batches)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[TableRow]:
        encode = msgspec.json.Encoder().encode
        for place, columns in self._batches:
            times = time_values(columns.column(columns.num_columns - 1))
            for message_id, at in zip(id_values(columns.column(0)), times, strict=True):
                yield TableRow(place, encode({"id": _cut(message_id), "eventTime": _cut(at)}).decode())

    @overload
    def __getitem__(self, index: int) -> TableRow: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[TableRow]: ...

    def __getitem__(self, index: int | slice) -> TableRow | Sequence[TableRow]:
        return list(self)[index]


def id_values(column: pa.Array) -> list[Any]:
    """Return ids as JSON has them; None of those that are null or not UTF-8."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        binary = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
        values = [_text(value) for value in column.cast(binary).to_pylist()]
    if pa.types.is_fixed_size_binary(column.type):  # a uuid, where the file does not say so
        values = [value and UUID(bytes=value) for value in values]
    return values


def time_values(column: pa.Array) -> list[Any]:
    """Return event times as JSON has them: timestamps in UTC as text, all others as they are."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(pc.cast(column, _UTC_US, safe=False), pa.string())
    values: list[Any] = column.to_pylist()
    return values


def row_hashes(batch: pa.RecordBatch) -> npt.NDArray[np.uint64]:
    """Return a hash of each row's id and event time, by which rows of a table are compared: one with another time is
    another message. All without an id have the same."""
    times = batch.column(batch.num_columns - 1)
    if pa.types.is_timestamp(times.type):
        times = times.cast(pa.int64())
    hashes = (
        _NO_ID if id_ is None else xxhash.xxh3_64_intdigest(f"{id_}\0{at}".encode())
        for id_, at in zip(id_values(batch.column(0)), times.to_pylist(), strict=True)
    )
    return np.fromiter(hashes, np.uint64, len(batch))


def comparable_ids(column: pa.Array) -> pa.Array:
    """Return ids in a type that Arrow compares."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def typed_ids(ids: Iterable[str], kind: pa.DataType) -> pa.Array:
    """Return ids as values of a column of this type, as `id_values` writes them; those that it cannot have are left
    out."""
    if pa.types.is_integer(kind):
        bounds = np.iinfo(kind.to_pandas_dtype())
        numbers = (int(text) for text in ids if _INTEGER.fullmatch(text))
        return pa.array([number for number in numbers if bounds.min <= number <= bounds.max], kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([UUID(text).bytes for text in ids if _UUID.fullmatch(text)], kind)
    return pa.array(list(ids), kind)


class WantedIds:
    """Ids that are looked for in columns of any type."""

    def __init__(self, ids: Iterable[str]) -> None:
        self._ids = frozenset(ids)
        self._typed: dict[pa.DataType, pa.Array] = {}

    def are_in(self, column: pa.Array) -> pa.Array:
        """Return of each value of a column whether it is one of them."""
        column = comparable_ids(column)
        if column.type not in self._typed:
            self._typed[column.type] = typed_ids(self._ids, column.type)
        return pc.is_in(column, self._typed[column.type])

    def bounds(self, kind: pa.DataType) -> tuple[Any, Any] | None:
        """Return the least and the greatest of them as values of a type; None: its order is not the same everywhere, or
        no value of it is wanted."""
        if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            return None
        values = typed_ids(self._ids, kind).to_pylist()
        return (min(values), max(values)) if values else None


def _cut(value: Any) -> Any:
    return value[:MAX_CHARS] if isinstance(value, str) else value


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
