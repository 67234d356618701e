"""Integers of variable length in compiled loops, as Avro writes them."""

from __future__ import annotations

import numpy as np

from lagloss_server.packing.compiled import U8, Int, compiled_bare


@compiled_bare
def _varint(data: U8, position: Int, end: Int) -> tuple[np.uint64, Int]:
    """Return a varint's 64 bits and its end; an end of -1 where it does not fit or has more bits."""
    value, shift = np.uint64(0), np.uint64(0)
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        if shift == 63 and byte > 1:
            return np.uint64(0), -1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += np.uint64(7)
    return np.uint64(0), -1


@compiled_bare
def avro_long(data: U8, position: Int, end: Int) -> tuple[Int, Int]:
    """Return a long of Avro, which is a varint in zigzag, and its end; an end of -1 as above."""
    bits, position = _varint(data, position, end)
    return np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1)), position
