"""Message ids of parts of records, as bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import MAX_ID_BYTES
from lagloss_server.extraction import kinds
from lagloss_server.extraction.columns import I8, I64, PartColumn
from lagloss_server.extraction.reasons import CODES
from lagloss_server.packing.compiled import U8, Int, compiled_bare

SEPARATOR: Final = b"/"
"""Between the parts of a composite id."""
_END: Final = 0xFF
"""Between ids, while they are written one after the other: no byte of UTF-8."""
_MISSING: Final = -1
_BAD: Final = -2
_UUID_SIZE: Final = 36
_ABSENT, _NULL, _INT, _NANOS, _DATE = kinds.ABSENT, kinds.NULL, kinds.INT, kinds.NANOS, kinds.DATE
_TEXT, _BYTES, _UUID, _LARGE_INT = kinds.TEXT, kinds.BYTES, kinds.UUID, kinds.LARGE_INT


def measure_parts(parts: Sequence[PartColumn]) -> tuple[I64, I8]:
    """Return of each row the bytes of each part's text, as [part, row], and why one has none: of `CODES`, or 0."""
    sizes = np.empty((len(parts), parts[0].kinds.size), np.int64)
    for part, row_sizes in zip(parts, sizes, strict=True):
        _measure(part.data, part.kinds, part.numbers, part.starts, part.sizes, row_sizes)
    codes = np.zeros(sizes.shape[1], np.int8)
    codes[(sizes == _BAD).any(axis=0)] = CODES["bad_id"]
    codes[(sizes == _MISSING).any(axis=0)] = CODES["no_id"]
    return sizes, codes


def measure_ids(parts: Sequence[PartColumn]) -> tuple[I64, I8]:
    """Return of each row the bytes of each part's text, as [part, row], and why it is no id: of `CODES`, or 0."""
    sizes, codes = measure_parts(parts)
    is_long = sizes.sum(axis=0) + (len(parts) - 1) * len(SEPARATOR) > MAX_ID_BYTES
    codes[(codes == 0) & (is_long | (sizes.min(axis=0) == 0))] = CODES["bad_id"]
    return sizes, codes


def write_ids(parts: Sequence[PartColumn], sizes: I64, rows: npt.NDArray[np.intp]) -> list[bytes]:
    """Return the ids of these rows, which `measure_ids` found to be good."""
    if not rows.size:
        return []
    widths = np.take(sizes, rows, axis=1)  # contiguous, whatever indexing makes of it: loops are compiled for that
    ends = np.cumsum(widths.sum(axis=0) + len(parts))  # a separator, or the end, after each part
    out = np.full(int(ends[-1]), SEPARATOR[0], np.uint8)
    out[ends - 1] = _END
    positions = ends - widths.sum(axis=0) - len(parts)
    for part, part_sizes in zip(parts, widths, strict=True):
        _write(part.data, part.kinds, part.numbers, part.starts, part.sizes, rows, positions, part_sizes, out)
        positions = positions + part_sizes + 1
    return out[:-1].tobytes().split(bytes([_END]))


@compiled_bare
def _character_end(data: U8, position: Int, end: Int) -> Int:
    """Return where the character ends that begins at this byte of 0x80 or more; -1 if it is no UTF-8 (RFC 3629)."""
    first = data[position]
    if first < 0xC2 or first > 0xF4:
        return -1
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    if position + size > end:
        return -1
    second = data[position + 1]
    low = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
    high = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
    if second < low or second > high:
        return -1
    for step in range(2, size):
        if data[position + step] & 0xC0 != 0x80:
            return -1
    return position + size


@compiled_bare
def _is_utf8(data: U8, position: Int, end: Int) -> bool:
    """Return whether these bytes are UTF-8."""
    high = 0
    for index in range(position, end):  # plain ASCII, the most frequent, without a branch a byte
        high |= data[index]
    if high < 0x80:
        return True
    while position < end:
        position = position + 1 if data[position] < 0x80 else _character_end(data, position, end)
        if position < 0:
            return False
    return True


@compiled_bare
def _is_integer(kind: Int) -> bool:
    return bool(_INT <= kind <= _NANOS or kind == _DATE)


@compiled_bare
def _measure(data: U8, reasons: I8, numbers: I64, starts: I64, spans: I64, sizes: I64) -> None:
    for row in range(reasons.size):
        kind = reasons[row]
        if kind in (_TEXT, _LARGE_INT):
            sizes[row] = spans[row]
        elif kind == _BYTES:
            utf8 = _is_utf8(data, starts[row], starts[row] + spans[row])
            sizes[row] = spans[row] if utf8 else 2 * spans[row]
        elif _is_integer(kind):
            rest, size = numbers[row], 1
            if rest < 0:
                size = 2
            while rest <= -10 or rest >= 10:
                rest = _tenth(rest)
                size += 1
            sizes[row] = size
        elif kind == _UUID:
            sizes[row] = _UUID_SIZE
        elif kind in (_ABSENT, _NULL):
            sizes[row] = _MISSING
        else:
            sizes[row] = _BAD


@compiled_bare
def _tenth(number: Int) -> Int:
    """Return a tenth, rounded towards 0."""
    return number // 10 + (1 if number < 0 and number % 10 != 0 else 0)


@compiled_bare
def _hex(byte: Int) -> Int:
    return byte + (0x30 if byte < 10 else 0x57)


@compiled_bare
def _write(
    data: U8, reasons: I8, numbers: I64, starts: I64, spans: I64, rows: Any, places: I64, sizes: I64, out: U8
) -> None:
    for number in range(rows.size):
        row, position, size = rows[number], places[number], sizes[number]
        kind, start = reasons[row], starts[row]
        if _is_integer(kind):
            rest = numbers[row]
            if rest < 0:
                out[position] = 0x2D
            for place in range(position + size - 1, position + (1 if rest < 0 else 0) - 1, -1):
                after = _tenth(rest)
                out[place] = 0x30 + abs(rest - after * 10)
                rest = after
        elif kind == _UUID or (kind == _BYTES and size != spans[row]):
            for step in range(spans[row]):
                if kind == _UUID and (step == 4 or step == 6 or step == 8 or step == 10):
                    out[position] = 0x2D
                    position += 1
                byte = data[start + step]
                out[position], out[position + 1] = _hex(byte >> 4), _hex(byte & 15)
                position += 2
        else:
            for step in range(size):
                out[position + step] = data[start + step]
