"""Columns: the bytes of many records in one array, and parts of these records as kinds, numbers and spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss_server.packing.compiled import U8
from taps.extraction import kinds

I8 = npt.NDArray[np.int8]
I64 = npt.NDArray[np.int64]

_I64_MAX: Final = 2**63 - 1
_NOTHING: Final = np.frombuffer(b"", np.uint8)


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
        found = np.frombuffer(data or b"", np.uint8)[first:last]
        found.flags.writeable = False  # as all others are: loops are compiled for each kind of array
        return cls(found, starts, bounds[1:])

    def __len__(self) -> int:
        return self.starts.size

    @property
    def is_null(self) -> npt.NDArray[np.bool_]:
        return self.starts < 0

    def only(self, rows: I64) -> ByteColumn:
        """Return the column with all other rows null."""
        starts = np.full_like(self.starts, -1)
        starts[rows] = self.starts[rows]
        return ByteColumn(self.data, starts, self.ends)

    def at(self, row: int) -> bytes:
        """Return the bytes of a row that is no null."""
        return self.data[self.starts[row] : self.ends[row]].tobytes()


@dataclass(frozen=True, slots=True)
class PartColumn:
    """One part of every record: its kind (see `kinds`), and its number or its span in `data`."""

    data: U8
    kinds: I8
    numbers: I64
    starts: I64
    sizes: I64

    @classmethod
    def of_bytes(cls, column: ByteColumn) -> PartColumn:
        """Return whole columns of bytes as parts; a null is absent."""
        found = np.where(column.is_null, kinds.ABSENT, kinds.BYTES).astype(np.int8)
        return cls(column.data, found, np.zeros(len(column), np.int64), column.starts, column.ends - column.starts)

    @classmethod
    def of_millis(cls, timestamps_ms: I64) -> PartColumn:
        """Return timestamps as parts."""
        n = timestamps_ms.size
        empty = np.zeros(n, np.int64)
        return cls(_NOTHING, np.full(n, kinds.MILLIS, np.int8), timestamps_ms, empty, empty)


@dataclass(slots=True)
class PartTable:
    """Several parts of every record, to be filled in: part p of row i is at [p, i]. Spans are in `data`, or, from
    `data.size` on, in what was put beside it."""

    data: U8
    kinds: npt.NDArray[np.int8]
    numbers: I64
    starts: I64
    sizes: I64
    _beside: bytearray = field(default_factory=bytearray)

    @classmethod
    def of(cls, data: U8, parts: int, rows: int) -> PartTable:
        """Return a table in which every part is absent."""
        shape = parts, rows
        numbers, starts, sizes = (np.zeros(shape, np.int64) for _ in range(3))
        return cls(data, np.zeros(shape, np.int8), numbers, starts, sizes)

    def put_beside(self, text: bytes) -> int:
        """Keep bytes that are not in the records, and return where they start."""
        start = self.data.size + len(self._beside)
        self._beside += text
        return start

    def clear(self, row: int) -> None:
        """Make every part of a row absent."""
        self.kinds[:, row] = kinds.ABSENT

    def put(self, part: int, row: int, value: object) -> None:
        """Put a value of Python's: None, bool, int, float, str or bytes; others have no form."""
        match value:
            case None:
                self.kinds[part, row] = kinds.NULL
            case bool():
                self.kinds[part, row], self.numbers[part, row] = kinds.BOOL, value
            case int() if -_I64_MAX - 1 <= value <= _I64_MAX:
                self.kinds[part, row], self.numbers[part, row] = kinds.INT, value
            case int():
                self._put_span(part, row, kinds.LARGE_INT, str(value).encode())
            case float():
                self.kinds[part, row] = kinds.FLOAT
                self.numbers[part, row] = np.float64(value).view(np.int64)
            case str():
                try:
                    self._put_span(part, row, kinds.TEXT, value.encode())
                except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
                    self.kinds[part, row] = kinds.OTHER
            case bytes():
                self._put_span(part, row, kinds.BYTES, value)
            case _:
                self.kinds[part, row] = kinds.OTHER

    def put_moment(self, part: int, row: int, since_epoch_ns: int) -> None:
        """Put a timestamp that has no other form."""
        if -_I64_MAX - 1 <= since_epoch_ns <= _I64_MAX:
            self.kinds[part, row], self.numbers[part, row] = kinds.MOMENT, since_epoch_ns
        else:
            self.kinds[part, row] = kinds.OTHER

    def columns(self) -> list[PartColumn]:
        """Return the finished parts."""
        data = self.data
        if self._beside:
            data = np.concatenate([data, np.frombuffer(self._beside, np.uint8)])
            data.flags.writeable = False  # as above
        return [
            PartColumn(data, self.kinds[part], self.numbers[part], self.starts[part], self.sizes[part])
            for part in range(len(self.kinds))
        ]

    def _put_span(self, part: int, row: int, kind: int, text: bytes) -> None:
        self.kinds[part, row], self.sizes[part, row] = kind, len(text)
        self.starts[part, row] = self.put_beside(text)
