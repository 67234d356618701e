"""Binning: the sketch of many float32 lags by table, exactly as `lagloss.wire.sketch` bins them one by one.

The upper 16 bits of a float32 fix it to under 0.8 %; a bin is 2 % wide. So each of these 65,536 cells lies in one bin,
or in two with one boundary between: two small tables stand in for a logarithm a lag. They are made with the definition
itself, and making them checks what was just said.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import F32
from lagloss.wire.sketch import Sketch, bin_keys
from lagloss_server.packing.compiled import compiled

I32 = npt.NDArray[np.int32]
Counts = npt.NDArray[np.int64]


class Bins(NamedTuple):
    """`keys` in ascending order; for each cell the place there of its lower and upper bin, and the lowest 16 bits from
    which on the upper one holds."""

    keys: I32
    lower: npt.NDArray[np.uint16]
    upper: npt.NDArray[np.uint16]
    split: npt.NDArray[np.uint32]


@cache
def bins() -> Bins:
    cells = np.arange(1 << 16, dtype=np.uint32)
    cells = cells[(cells & 0x7F80) != 0x7F80]  # neither infinite nor no number

    def keys_at(low: npt.NDArray[np.uint32]) -> I32:
        return bin_keys((cells << np.uint32(16) | low).view(np.float32))

    lowest, highest = np.zeros_like(cells), np.full_like(cells, 0xFFFF)
    first, last = keys_at(lowest), keys_at(highest)
    below, split = lowest.copy(), highest + np.uint32(1)  # a cell in one bin is never split
    differ = first != last
    split[differ] = highest[differ]
    while (split - below)[differ].max() > 1:
        middle = (below + split) // np.uint32(2)
        is_lower = keys_at(np.minimum(middle, highest)) == first
        below[differ & is_lower] = middle[differ & is_lower]
        split[differ & ~is_lower] = middle[differ & ~is_lower]
    if not np.array_equal(keys_at(np.minimum(split, highest)), last):
        raise AssertionError("a cell lies in three bins")
    keys = np.unique(np.concatenate([first, last]))
    lower, upper = np.zeros(1 << 16, np.uint16), np.zeros(1 << 16, np.uint16)
    splits = np.zeros(1 << 16, np.uint32)
    lower[cells], upper[cells], splits[cells] = np.searchsorted(keys, first), np.searchsorted(keys, last), split
    return Bins(keys, lower, upper, splits)


def sketch_of(lags: F32) -> Sketch:
    """Return `Sketch.of` for finite lags in ms."""
    table = bins()
    counts = np.zeros(table.keys.size, np.int64)
    _count(lags.view(np.uint32), table.lower, table.upper, table.split, counts)
    filled = np.flatnonzero(counts)
    return Sketch(table.keys[filled], counts[filled])


@compiled
def _count(
    lags: npt.NDArray[np.uint32],
    lower: npt.NDArray[np.uint16],
    upper: npt.NDArray[np.uint16],
    split: npt.NDArray[np.uint32],
    counts: Counts,
) -> None:
    for bits in lags:
        cell = bits >> np.uint32(16)
        if bits & np.uint32(0xFFFF) < split[cell]:
            counts[lower[cell]] += 1
        else:
            counts[upper[cell]] += 1
