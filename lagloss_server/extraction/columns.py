"""Columns: the bytes of many records in one array, and parts of these records as kinds, numbers and spans."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.extraction import kinds
from lagloss_server.extraction.values import Absent, Days, Micros, Millis, Moment, Nanos, UnreadablePart, Uuid
from lagloss_server.packing.compiled import U8

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]

_NOTHING: Final = np.frombuffer(b"", np.uint8)
_KINDS: Final[dict[type, int]] = {
    Absent: kinds.ABSENT, UnreadablePart: kinds.ABSENT, type(None): kinds.NULL, bool: kinds.BOOL, int: kinds.INT,
    Millis: kinds.MILLIS, Micros: kinds.MICROS, Nanos: kinds.NANOS, Days: kinds.DATE, Moment: kinds.MOMENT,
    float: kinds.FLOAT, str: kinds.TEXT, bytes: kinds.BYTES, Uuid: kinds.UUID,
}  # fmt: skip
_NUMBERS: Final = frozenset({kinds.BOOL, kinds.INT, kinds.MILLIS, kinds.MICROS, kinds.NANOS, kinds.DATE, kinds.MOMENT})
_WHOLE: Final = frozenset({kinds.INT, kinds.MILLIS, kinds.MICROS, kinds.NANOS, kinds.DATE})
"""Kinds of integers that are ids as they are."""


@dataclass(frozen=True, slots=True)
class ByteColumn:
    """Bytes of each row: row i is `data[starts[i]:ends[i]]`, a null where `starts[i]` is -1."""

    data: U8
    starts: I64
    ends: I64

    @classmethod
    def of(cls, values: Sequence[bytes | None]) -> ByteColumn:
        """Return the column of these values. An Arrow array of type binary or large_binary is taken without copying."""
        if hasattr(values, "buffers"):
            return cls._of_arrow(values)
        try:
            sizes = np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]  # see below
            data = b"".join(values)  # type: ignore[arg-type]
        except TypeError:  # there are nulls
            sizes = np.fromiter((-1 if value is None else len(value) for value in values), np.int64, len(values))
            data = b"".join(value for value in values if value is not None)
        ends = np.cumsum(np.maximum(sizes, 0))
        starts = ends - sizes
        starts[sizes < 0] = -1
        return cls(np.frombuffer(data, np.uint8), starts, ends)

    @classmethod
    def _of_arrow(cls, values: Any) -> ByteColumn:
        _, offsets, data = values.buffers()
        kind = np.int64 if str(values.type).startswith("large_") else np.int32
        bounds = np.frombuffer(offsets, kind)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        first, last = (int(bounds[0]), int(bounds[-1])) if len(values) else (0, 0)
        bounds -= first
        starts = bounds[:-1].copy()
        if values.null_count:
            starts[values.is_null().to_numpy(zero_copy_only=False)] = -1
        bytes_ = np.frombuffer(data or b"", np.uint8)[first:last]
        bytes_.flags.writeable = False  # as all others are: loops are compiled for each kind of array
        return cls(bytes_, starts, bounds[1:])

    def __len__(self) -> int:
        return self.starts.size

    @property
    def is_null(self) -> npt.NDArray[np.bool_]:
        return self.starts < 0

    def at(self, row: int) -> bytes:
        """Return the bytes of a row that is no null."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()

    def take(self, rows: npt.NDArray[np.intp]) -> list[bytes | None]:
        """Return the bytes of these rows, None for a null."""
        return [self.at(row) if self.starts[row] >= 0 else None for row in rows.tolist()]

    def rows(self) -> list[bytes | None]:
        """Return the bytes of each row, None for a null."""
        data = self.data.tobytes()
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        return [data[start:end] if start >= 0 else None for start, end in bounds]


@dataclass(frozen=True, slots=True)
class PartColumn:
    """One part of every record: its kind (see `kinds`), and its number or its span in `data`."""

    data: U8
    kinds: I8
    numbers: I64
    starts: I64
    sizes: I64

    @classmethod
    def of_values(cls, values: Sequence[object]) -> PartColumn:
        """Return the column of values that readers of formats return."""
        column_kinds: list[int] = []
        numbers: list[int] = []
        spans: list[bytes] = []
        for value in values:
            kind, number, span = _cell(value)
            column_kinds.append(kind)
            numbers.append(number)
            spans.append(span)
        sizes = np.fromiter(map(len, spans), np.int64, len(spans))
        data = np.frombuffer(b"".join(spans), np.uint8)
        return cls(data, np.array(column_kinds, np.int8), np.array(numbers, np.int64), np.cumsum(sizes) - sizes, sizes)

    @classmethod
    def of_bytes(cls, column: ByteColumn) -> PartColumn:
        """Return whole columns of bytes as parts; a null is absent."""
        kinds_ = np.where(column.is_null, kinds.ABSENT, kinds.BYTES).astype(np.int8)
        return cls(column.data, kinds_, np.zeros(len(column), np.int64), column.starts, column.ends - column.starts)

    @classmethod
    def of_millis(cls, timestamps_ms: I64) -> PartColumn:
        """Return timestamps as parts."""
        return cls._of_numbers(timestamps_ms, kinds.MILLIS)

    @classmethod
    def of_integers(cls, numbers: I64) -> PartColumn:
        """Return integers as parts."""
        return cls._of_numbers(numbers, kinds.INT)

    @classmethod
    def of_text(cls, text: bytes, rows: int) -> PartColumn:
        """Return the same text as the part of so many rows."""
        empty = np.zeros(rows, np.int64)
        sizes = np.full(rows, len(text), np.int64)
        return cls(np.frombuffer(text, np.uint8), np.full(rows, kinds.TEXT, np.int8), empty, empty, sizes)

    @classmethod
    def _of_numbers(cls, numbers: I64, kind: int) -> PartColumn:
        empty = np.zeros(numbers.size, np.int64)
        return cls(_NOTHING, np.full(numbers.size, kind, np.int8), numbers, empty, empty)

    def value(self, row: int) -> int | bytes | None:
        """Return the number of a row, or the bytes of its span; None if it has neither."""
        kind = self.kinds[row]
        if kind in (kinds.TEXT, kinds.BYTES, kinds.LARGE_INT):
            return self.data[self.starts[row] : self.starts[row] + self.sizes[row]].tobytes()
        return int(self.numbers[row]) if kind in _WHOLE else None


def _cell(value: Any) -> tuple[int, int, bytes]:
    """Return a value's kind, and its number or the bytes of its span."""
    kind = _KINDS.get(type(value), kinds.OTHER)
    if kind == kinds.TEXT:
        try:
            return kind, 0, value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
            return kinds.OTHER, 0, b""
    if kind in (kinds.BYTES, kinds.UUID):
        return kind, 0, value
    if kind in _NUMBERS:
        if -(2**63) <= value < 2**63:
            return kind, value, b""
        return (kinds.LARGE_INT, 0, str(value).encode()) if kind == kinds.INT else (kinds.OTHER, 0, b"")
    if kind == kinds.FLOAT:
        return kind, int.from_bytes(struct.pack("<d", value), "little", signed=True), b""
    return kind, 0, b""
