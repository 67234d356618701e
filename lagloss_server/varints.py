"""Avro's integers in compiled loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lagloss_server.compiled import compiled

U8 = npt.NDArray[np.uint8]
Int = Any


@compiled
def varint(data: U8, at: Int, end: Int) -> tuple[Int, Int]:
    """Return a zigzag long and its end; an end of -1 where it does not fit."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < 64:
        byte = data[at]
        value |= np.uint64(byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, -1
