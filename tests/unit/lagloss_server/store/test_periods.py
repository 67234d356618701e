"""What is known of a stretch of time, and counts read of the beginning of what a roll-up is packed in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from lagloss.wire.sketch import Sketch
from lagloss_server.model.window import Interval
from lagloss_server.store.period_reading import RangeTotal, _joined, _without
from lagloss_server.store.periods import coverage
from lagloss_server.sums.rollup import COUNTS_BYTES, CheckpointSums, Rollup


@given(st.integers(0, 500), st.integers(1, 500), st.integers(-100, 700), st.integers(-100, 700), st.floats(0, 1))
def test_what_is_known_of_a_stretch_adds_up_to_its_minutes(
    from_min: int, length: int, first_min: int, due_min: int, share: float
) -> None:
    due = range(max(from_min, first_min), min(from_min + length, due_min))
    closed = round(share * len(due))
    stretch = RangeTotal(60 * from_min, 60 * (from_min + length), Rollup(windows=closed))
    known = coverage(stretch, 60 * first_min, 60 * due_min)
    assert known.minutes == length == known.closed + known.before + known.to_come + known.missing
    assert known.missing == len(due) - closed
    assert known.before == len(range(from_min, min(first_min, from_min + length)))


def test_what_objectives_are_judged_by_is_read_of_the_beginning_of_a_rollup_however_large_it_is() -> None:
    most, lags = 2**62, Sketch.of(np.random.default_rng(1).lognormal(5, 3, 100_000))
    names = ("windows", "messages", "delivered", "filtered", "dead", "pending", "unexplained", "on_time", "on_time_of")
    sums = {name: most + number for number, name in enumerate(names)}
    verdicts = dict.fromkeys(("idle", "loss", "ok", "unknown"), most)
    proofs = dict.fromkeys(("beacons", "tallies"), most)
    checkpoints = {"src.in": CheckpointSums(lags, most)}
    counts = Rollup(verdicts=verdicts, proofs=proofs, **sums, lost=Interval(most, most))
    packed = structs.replace(counts, e2e_lags=lags, checkpoints=checkpoints).pack()
    assert len(packed) > COUNTS_BYTES
    assert Rollup.unpack_beginning(packed[:COUNTS_BYTES]).pack() == counts.pack()


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_what_is_left_of_ranges_is_what_no_period_has_taken(within: set[int], taken: set[int]) -> None:
    ranges = _joined((60 * minute for minute in within), 60)
    left = _without(ranges, _joined((60 * minute for minute in within & taken), 60))
    minutes = [minute for some in left for minute in range(some.from_s // 60, some.to_s // 60)]
    assert minutes == sorted(within - taken)
    assert all(before.to_s < after.from_s for before, after in pairwise(ranges)), "neighbours are one range"
    assert sum(some.minutes for some in ranges) == len(within)
