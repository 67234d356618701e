"""Positions of some of a block's beacons: uint16, little-endian, ascending, at least one."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

_POSITION: Final = np.dtype("<u2")


def pack_positions(is_one: npt.NDArray[np.bool_]) -> bytes | None:
    """Return the positions of the beacons that are; None if none is. Shape (beacons,)."""
    return np.flatnonzero(is_one).astype(_POSITION).tobytes() or None


def positions_fit(packed: bytes, count: int) -> bool:
    """Return whether these are the positions of some beacons, one at least, of a block of `count`."""
    if not packed or len(packed) % _POSITION.itemsize:
        return False
    positions = read_positions(packed)
    return bool(positions[-1] < count and (positions[1:] > positions[:-1]).all())


def read_positions(packed: bytes) -> npt.NDArray[np.intp]:
    """Return the positions."""
    return np.frombuffer(packed, _POSITION).astype(np.intp)


def pick_positions(packed: bytes, rows: npt.NDArray[np.intp]) -> bytes | None:
    """Return the positions in a block that is made of the beacons at these rows (ascending); None if none is left."""
    return pack_positions(np.isin(rows, read_positions(packed)))
