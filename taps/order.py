"""Order: which records of a partition come after one of their key with a later event time. Pure.

The answer for a record follows from the offsets before it alone, not from plans, so that a plan that is repeated makes
the same blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from lagloss_server.packing.compiled import compiled

REACH: Final = 20_000
"""How many offsets before a record are looked at."""
Bools = npt.NDArray[np.bool_]
_I64 = npt.NDArray[np.int64]
_F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeyTimes:
    """Records of a partition that have a key, by offset: hashes of keys, event times in epoch ms; shape (records,)."""

    offsets: _I64
    keys: npt.NDArray[np.uint64]
    event_ms: _F64

    @classmethod
    def none(cls) -> Self:
        return cls(np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0, np.float64))

    @classmethod
    def joined(cls, parts: Sequence[KeyTimes]) -> Self:
        """Return the records of all parts, which follow each other."""
        return cls(
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.keys for part in parts]),
            np.concatenate([part.event_ms for part in parts]),
        )

    def at(self, rows: npt.NDArray[np.intp] | Bools) -> KeyTimes:
        """Return these rows alone."""
        return KeyTimes(self.offsets[rows], self.keys[rows], self.event_ms[rows])

    def __len__(self) -> int:
        return self.offsets.size


class PartitionOrder:
    """The newest records of a partition, against which those that follow are judged."""

    def __init__(self) -> None:
        self._known = KeyTimes.none()

    def take(self, following: KeyTimes, newest_ms: float) -> Bools:
        """Return which of the records that follow are out of order, and remember them.

        Args:
            newest_ms: an event time after it is none (epoch ms): its record is neither out of order nor overtakes any.
        """
        every = KeyTimes.joined([self._known, following])
        rows = np.flatnonzero(every.event_ms <= newest_ms)
        is_out = np.zeros(len(every), np.bool_)
        is_out[rows] = are_out_of_order(every.at(rows))
        taken = is_out[len(self._known) :]
        self._known = every.at(every.offsets > every.offsets[-1] - REACH) if len(every) else every
        return taken


def are_out_of_order(records: KeyTimes) -> Bools:
    """Return which records come, by at most `REACH` offsets, after one of their key with a later event time."""
    keys, codes = np.unique(records.keys, return_inverse=True)
    is_out = np.zeros(len(records), np.bool_)
    newest, later = np.full(keys.size, -1, np.int64), np.empty(len(records), np.int64)
    _mark(codes.astype(np.int64), records.offsets, records.event_ms, newest, later, is_out)
    return is_out


@compiled
def _mark(codes: _I64, offsets: _I64, event_ms: _F64, newest: _I64, later: _I64, is_out: Bools) -> None:
    """Fill `is_out`; `newest` is the last row of each code so far, `later` of each row the nearest before it of its
    code with a later event time, -1 for none."""
    for row in range(codes.size):
        before = newest[codes[row]]
        while before >= 0 and event_ms[before] <= event_ms[row]:
            before = later[before]
        later[row] = before
        newest[codes[row]] = row
        is_out[row] = before >= 0 and offsets[before] >= offsets[row] - REACH
