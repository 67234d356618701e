"""Sketches, packed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.sketch import MAX_KEY, MIN_KEY, Sketch
from lagloss_server.judging.packed_sketches import pack_sketches, unpack_sketches

KEYS = st.just(0) | st.integers(MIN_KEY, MAX_KEY) | st.integers(-MAX_KEY, -MIN_KEY) | st.integers(10_200, 10_240)
SKETCHES = st.dictionaries(KEYS, st.integers(0, 60) | st.integers(0, (1 << 63) - 1), max_size=40).map(Sketch.from_bins)


@given(st.lists(SKETCHES, max_size=8))
def test_sketches_come_back_bin_by_bin(sketches: list[Sketch]) -> None:
    found = unpack_sketches(pack_sketches(sketches))
    assert [list(sketch.bins().items()) for sketch in found] == [list(sketch.bins().items()) for sketch in sketches]
    assert {(sketch.keys.dtype, sketch.counts.dtype) for sketch in found} <= {(np.dtype("i4"), np.dtype("i8"))}


def test_a_bin_of_a_usual_sketch_takes_a_byte() -> None:
    sketch = Sketch.of(np.random.default_rng(1).exponential(100, 2_500))
    assert len(pack_sketches([sketch])) < sketch.keys.size
