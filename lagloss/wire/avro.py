"""Avro's binary encoding of values, field by field, and of columns of numbers: fastavro takes seven times as long for a
report, whose bins are dicts to it."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

NULL: Final = b"\0"
"""The union branch of a field that is null."""
_PRESENT: Final = b"\2"
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
        raise OverflowError(f"expected a number of 64 bits, found {value}")
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
    if raw.size == 0:
        return np.empty(0, np.int64)
    stops = np.flatnonzero(raw < 0x80)
    if stops.size == 0 or stops[-1] != raw.size - 1:
        raise ValueError("expected whole numbers, found one that is cut off")
    starts = np.concatenate(([0], stops[:-1] + 1))
    widths = stops - starts + 1
    widest = int(widths.max())
    if widest > _MAX_BYTES:
        raise ValueError(f"expected numbers of at most {_MAX_BYTES} bytes, found one of {widest}")
    zigzag = (raw[starts] & 0x7F).astype(np.uint64)
    for place in range(1, widest):
        longer = np.flatnonzero(widths > place)
        groups = (raw[starts[longer] + place] & 0x7F).astype(np.uint64)
        zigzag[longer] |= groups << np.uint64(7 * place)
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)


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
    return NULL if value is None else _PRESENT + encode_bytes(value)


def encode_items(count: int, items: bytes) -> bytes:
    """Encode an array or a map, given the encoding of its items one after another."""
    return encode_long(count) + items + NULL if count else NULL


def encode_array(items: Collection[bytes]) -> bytes:
    """Encode an array or a map, given the encoding of each item."""
    return encode_items(len(items), b"".join(items))
