"""Avro's binary encoding of values, field by field, and of columns of numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

NULL: Final = b"\0"
"""The union branch of a field that is null."""
PRESENT: Final = b"\2"
"""The union branch of one that is not."""
_LIMIT: Final = 1 << 63
_LOW_BITS, _GOES_ON = 0x7F, 0x80
_MAX_BYTES: Final = 10
"""Of one number of 64 bits."""
_SHIFTS: Final = np.arange(0, 64, 7, dtype=np.uint64)
_REMEMBERED: Final = 4_096
"""Windows, samples, names and small counts return in every block."""


@lru_cache(_REMEMBERED)
def encode_long(value: int) -> bytes:
    """Encode an int or a long; raises OverflowError for what 64 bits cannot hold."""
    if not -_LIMIT <= value < _LIMIT:
        raise OverflowError(f"expected a 64-bit number, found {value}")
    rest = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while rest > _LOW_BITS:
        encoded.append(rest & _LOW_BITS | _GOES_ON)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def encode_longs(values: npt.NDArray[np.int64]) -> bytes:
    """Encode these one after another, as `encode_long` does."""
    if not values.size:
        return b""
    flat = values.ravel()
    rest = ((flat << 1) ^ (flat >> 63)).view(np.uint64)
    width = max(1, -(-int(rest.max()).bit_length() // 7))
    groups = rest[:, np.newaxis] >> _SHIFTS[:width]  # of 7 bits each, the lowest first
    is_sent: npt.NDArray[np.bool_] = groups != 0
    is_sent[:, 0] = True
    encoded: npt.NDArray[np.uint8] = groups.astype(np.uint8)
    encoded &= np.uint8(_LOW_BITS)
    encoded[:, :-1] |= is_sent[:, 1:].view(np.uint8) << np.uint8(7)
    return encoded[is_sent].tobytes()


def decode_long(data: bytes) -> int:
    """Return the number that `data` begins with."""
    rest = shift = 0
    for byte in data:
        rest |= (byte & _LOW_BITS) << shift
        if byte < _GOES_ON:
            break
        shift += 7
    return (rest >> 1) ^ -(rest & 1)


def decode_longs(data: bytes) -> npt.NDArray[np.int64]:
    """Return the numbers that are encoded one after another in `data`.

    Raises:
        ValueError: the last one is cut off, or one is longer than 64 bits take.
    """
    raw = np.frombuffer(data, np.uint8)
    return _decode_longs(raw, np.flatnonzero(raw < _GOES_ON))


def decode_rows(packed: Sequence[bytes], width: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the numbers of many values as rows of `width`, and how many rows there are up to the end of each value: a
    decoding costs the same for a few numbers as for thousands.

    Returns:
        Shapes (rows, width) and (values,).

    Raises:
        ValueError: as for `decode_longs`, or a value does not hold whole rows.
    """
    raw = np.frombuffer(b"".join(packed), np.uint8)
    stops = np.flatnonzero(raw < _GOES_ON)
    sizes = np.array([len(value) for value in packed], np.int64)
    ends = sizes.cumsum()
    if (raw[ends[sizes > 0] - 1] >= _GOES_ON).any():
        raise ValueError("expected complete numbers, found a truncated one")
    counts = stops.searchsorted(ends)
    if (counts % width).any():
        raise ValueError(f"expected {width} numbers per row, found fewer in the last row")
    return _decode_longs(raw, stops).reshape(-1, width), counts // width


def _decode_longs(raw: npt.NDArray[np.uint8], stops: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """Return the numbers whose last bytes lie at `stops`."""
    if raw.size == 0:
        return np.empty(0, np.int64)
    if stops.size == 0 or stops[-1] != raw.size - 1:
        raise ValueError("expected complete numbers, found a truncated one")
    zigzag: npt.NDArray[np.uint64] = raw[stops].astype(np.uint64)
    widths = np.diff(stops, prepend=-1)
    longer = np.flatnonzero(widths > 1)
    for place in range(1, int(widths.max())):  # from the highest group of bits down to the lowest
        if place == _MAX_BYTES or (place == _MAX_BYTES - 1 and (raw[stops[longer]] > 1).any()):
            raise ValueError("expected 64-bit numbers, found a longer one")
        zigzag[longer] = zigzag[longer] << np.uint64(7) | raw[stops[longer] - place] & _LOW_BITS
        longer = longer[widths[longer] > place + 1]
    values, is_negative = (zigzag >> np.uint64(1)).view(np.int64), (zigzag & np.uint64(1)).view(np.int64)
    values ^= np.negative(is_negative, out=is_negative)
    return values


def encode_boolean(value: bool) -> bytes:
    return b"\1" if value else b"\0"


def encode_bytes(value: bytes) -> bytes:
    return encode_long(len(value)) + value


def decode_bytes(data: bytes) -> tuple[bytes, bytes]:
    """Return what `data` begins with, encoded by `encode_bytes`, and what follows it."""
    size = decode_long(data)
    start = len(encode_long(size))
    return data[start : start + size], data[start + size :]


@lru_cache(_REMEMBERED)
def encode_string(text: str) -> bytes:
    """Encode a text; raises UnicodeEncodeError for one that UTF-8 cannot hold."""
    return encode_bytes(text.encode())


def encode_optional(value: bytes | None) -> bytes:
    """Encode the union of null and bytes."""
    return NULL if value is None else PRESENT + encode_bytes(value)


def encode_array(items: Collection[bytes]) -> bytes:
    """Encode an array or a map, given the encoding of each item."""
    return encode_long(len(items)) + b"".join(items) + NULL if items else NULL
