"""Positions of some of a block's beacons: what fits, and what is left of them in a part of the block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.positions import pack_positions, pick_positions, positions_fit, read_positions


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_positions_stay_with_their_beacons(marked: set[int], kept: set[int]) -> None:
    packed, rows = pack_positions(np.isin(np.arange(41), list(marked))), sorted(kept)
    assert (packed is None) is (not marked)
    if packed is None:
        return
    assert read_positions(packed).tolist() == sorted(marked)
    assert positions_fit(packed, 41)
    assert positions_fit(packed, max(marked)) is False
    picked = pick_positions(packed, np.array(rows, np.intp))
    left = [at for at, row in enumerate(rows) if row in marked]
    assert (read_positions(picked).tolist() if picked else []) == left
