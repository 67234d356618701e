"""Varints: columns of integers as Avro writes them, zigzag and 7 bits a byte, without a length."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

MAX_BYTES: Final = 10
"""Of one 64-bit integer."""


def pack(values: Iterable[int] | npt.NDArray[np.int64]) -> bytes:
    """Return integers of 64 bits, each in as few bytes as it takes."""
    column = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.int64)
    if column.size == 0:
        return b""
    zigzag = ((column << 1) ^ (column >> 63)).view(np.uint64)
    shifts = np.arange(MAX_BYTES, dtype=np.uint64) * np.uint64(7)
    left = zigzag[:, None] >> shifts
    wanted = left != 0
    wanted[:, 0] = True
    groups = (left & np.uint64(0x7F)).astype(np.uint8)
    groups[:, :-1] |= wanted[:, 1:].astype(np.uint8) << 7
    packed: bytes = groups[wanted].tobytes()
    return packed


def unpack(data: bytes) -> npt.NDArray[np.int64]:
    """Return the integers in `data`.

    Raises:
        ValueError: the last one is cut off, or one is longer than 64 bits take.
    """
    raw = np.frombuffer(data, np.uint8)
    if raw.size == 0:
        return np.empty(0, np.int64)
    stops = np.flatnonzero(raw < 0x80)
    if stops.size == 0 or stops[-1] != raw.size - 1:
        raise ValueError("expected whole varints, found one that is cut off")
    starts = np.concatenate(([0], stops[:-1] + 1))
    widths = stops - starts + 1
    widest = int(widths.max())
    if widest > MAX_BYTES:
        raise ValueError(f"expected varints of at most {MAX_BYTES} bytes, found one of {widest}")
    zigzag = (raw[starts] & 0x7F).astype(np.uint64)
    for place in range(1, widest):
        longer = np.flatnonzero(widths > place)
        groups = (raw[starts[longer] + place] & 0x7F).astype(np.uint64)
        zigzag[longer] |= groups << np.uint64(7 * place)
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
