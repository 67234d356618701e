"""Indexing: a row for every distinct id, found by one look-up a beacon in an open-addressing hash table.

Ids are hashes already, but a sample leaves their lower 32 bits small and a partition their upper ones alike; one
multiplication (Knuth, TAOCP 3, 6.4) spreads what is left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lagloss.wire.format import U64
from lagloss_server.packing.compiled import compiled

Rows = npt.NDArray[np.int32]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class IdIndex:
    """Rows of distinct ids, in the order in which they were first seen."""

    def __init__(self, expected: int = 64) -> None:
        self._bits = max(7, (2 * expected - 1).bit_length())
        self._table = np.zeros(1 << self._bits, np.int32)
        self._ids = np.empty(1 << (self._bits - 1), np.uint64)
        self.size = 0

    @property
    def ids(self) -> U64:
        return self._ids[: self.size]

    def rows_of(self, ids: U64) -> Rows:
        """Return the row of each of these ids; new ones get the next rows."""
        rows = np.empty(ids.size, np.int32)
        done = 0
        while True:
            done, self.size = _number(ids, rows, done, self._table, 64 - self._bits, self._ids, self.size)
            if done == ids.size:
                return rows
            self._widen()

    def _widen(self) -> None:
        """Twice the room; the table is never more than half full."""
        self._bits += 1
        self._table = np.zeros(1 << self._bits, np.int32)
        wider = np.empty(1 << (self._bits - 1), np.uint64)
        wider[: self.size] = self.ids
        self._ids = wider
        _fill(self.ids, self._table, 64 - self._bits)


@compiled
def _number(ids: U64, rows: Rows, start: int, table: Rows, shift: int, hashes: U64, size: int) -> tuple[int, int]:
    """Fill `rows` from `start` on; how far it came before `hashes` was full, and how many ids are known now.

    Messages mostly go through a pipeline in order, so the row after the last one is tried first: it is in the cache.
    """
    last, guess = table.size - 1, 0
    for index in range(start, ids.size):
        wanted = ids[index]
        if guess < size and hashes[guess] == wanted:
            rows[index] = guess
            guess += 1
            continue
        slot = np.int64((wanted * _SPREAD) >> np.uint64(shift))
        while True:
            row = table[slot]
            if row == 0:  # an empty slot: the table holds rows from 1 on
                if size == hashes.size:
                    return index, size
                hashes[size] = wanted
                size += 1
                row = table[slot] = size
                break
            if hashes[row - 1] == wanted:
                break
            slot = (slot + 1) & last
        rows[index] = row - 1
        guess = row  # one more than the row: the next id's, most likely
    return ids.size, size


@compiled
def _fill(ids: U64, table: Rows, shift: int) -> None:
    last = table.size - 1
    for row in range(ids.size):
        slot = np.int64((ids[row] * _SPREAD) >> np.uint64(shift))
        while table[slot] != 0:
            slot = (slot + 1) & last
        table[slot] = row + 1
