"""Checksummed frames: the records of a spool's files, so that a reader finds the good ones around a damaged one.

A frame is ``LGLS``, a kind (1 byte), the payload's length (uint32), xxh3_64 of kind, length and payload (uint64), and
the payload; all little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import xxhash

MAGIC: Final = b"LGLS"
_HEADER: Final = struct.Struct("<4sBIQ")
_SUMMED: Final = struct.Struct("<BI")


@dataclass(frozen=True, slots=True)
class Frame:
    """A good frame: its kind (one byte), its payload, and the position right after it."""

    kind: int
    payload: memoryview
    end: int


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return the frame of this payload; `kind` is one byte."""
    return _HEADER.pack(MAGIC, kind[0], len(payload), _checksum(kind[0], payload)) + payload


def frames(data: bytes) -> Iterator[Frame]:
    """Yield the good frames in their order; damaged or truncated ones are skipped."""
    view, position = memoryview(data), 0
    while (position := data.find(MAGIC, position)) >= 0:
        frame = _read(view, position)
        if frame is None:
            position += 1
        else:
            yield frame
            position = frame.end


def _read(view: memoryview, position: int) -> Frame | None:
    begin = position + _HEADER.size
    if begin > len(view):
        return None
    _, kind, length, checksum = _HEADER.unpack_from(view, position)
    if begin + length > len(view):
        return None
    payload = view[begin : begin + length]
    return Frame(kind, payload, begin + length) if _checksum(kind, payload) == checksum else None


def _checksum(kind: int, payload: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(_SUMMED.pack(kind, len(payload)))
    digest.update(payload)
    return digest.intdigest()
