"""The beacons of one window that its sample takes, each with the row of its id; and what is known of each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aggregator.kernel.columns import Column
from aggregator.kernel.id_index import Rows
from lagloss.wire.format import F32, U64, unpack_ids
from lagloss_server.model.message_ids import readable_id

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.intp] | npt.NDArray[np.int32]


@dataclass(frozen=True)
class Found:
    """The sampled beacons of one checkpoint, live or replayed, and the row of each one's id; offsets only at the first
    checkpoint."""

    ids: U64
    lags: F32
    offsets: npt.NDArray[np.int32]
    rows: Rows
    kept: Bools | None
    """Which of the column's beacons these are; None for all."""

    def places(self, rows: Ints) -> Ints:
        """Return the positions in the column of the beacons at these positions."""
        return rows if self.kept is None else np.flatnonzero(self.kept)[rows]


@dataclass(frozen=True)
class DistinctIds:
    """Knowledge of each distinct id, by row. Lags in ms.

    `masks`: presence as rows of 64-bit words, shape (words, ids); `newest`: the largest lag, live or replayed;
    `first`: the smallest live lag at each delivery checkpoint, infinity where there is none, shape (deliveries, ids).
    """

    ids: U64
    masks: U64
    newest: F32
    first: F32


def names_of(columns: Iterable[tuple[Column, Found]], hashes: Ints, n: int) -> dict[int, str]:
    """Return the names of these rows (of `n`), from the blocks of the sources' `in` that carry names."""
    is_wanted, names = np.zeros(n, bool), dict[int, str]()
    is_wanted[hashes] = True
    for column, column_hashes in columns if hashes.size else ():
        hits = np.flatnonzero(is_wanted[column_hashes.rows])
        places = column_hashes.places(hits)
        row_at = column_hashes.rows[hits].tolist()
        starts = np.array([start for start, _, _ in column.names], np.int64)
        ends = starts + np.array([count for _, count, _ in column.names], np.int64)
        firsts, lasts = np.searchsorted(places, starts).tolist(), np.searchsorted(places, ends).tolist()
        for (start, _, packed), first, last in zip(column.names, firsts, lasts, strict=True):
            if first < last:
                raw = unpack_ids(packed, (places[first:last] - start).tolist())
                names.update(zip(row_at[first:last], map(readable_id, raw), strict=True))
    return names
