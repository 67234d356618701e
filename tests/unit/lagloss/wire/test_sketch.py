"""The lag sketch: keys, accuracy, merging."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.sketch import Sketch, bin_keys, bin_value_ms

LAGS = st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=60)


def slow_key(lag_ms: float) -> int:
    if abs(lag_ms) <= 0.001:
        return 0
    k = 10_000 + math.ceil(math.log(abs(lag_ms)) / math.log(1.01 / 0.99))
    return k if lag_ms > 0 else -k


@given(LAGS)
def test_keys_follow_the_formula(lags: list[float]) -> None:
    found = bin_keys(np.array(lags, np.float32))
    assert found.tolist() == [slow_key(float(np.float32(lag))) for lag in lags]


@given(LAGS, st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_item_of_its_rank(lags: list[float], q: float) -> None:
    values = np.array(lags, np.float32)
    item = float(np.sort(values)[math.floor(q * (len(lags) - 1))])
    found = Sketch.of(values).quantile_ms(q)
    assert found == pytest.approx(item, rel=0.0100001, abs=0.001)


@given(LAGS, LAGS)
def test_merging_is_sketching_all_at_once(some: list[float], others: list[float]) -> None:
    merged = Sketch.merged([Sketch.of(np.array(some, np.float32)), Sketch.of(np.array(others, np.float32))])
    assert merged.bins() == Sketch.of(np.array(some + others, np.float32)).bins()


@given(st.lists(LAGS, max_size=4))
def test_lags_counted_batch_by_batch_are_counted_as_all_at_once(batches: list[list[float]]) -> None:
    counted = Sketch()
    for batch in batches:
        counted = counted.plus(bin_keys(np.array(batch, np.float32)))
    assert counted.bins() == Sketch.of(np.array([lag for batch in batches for lag in batch], np.float32)).bins()
    assert counted.keys.tolist() == sorted(counted.keys.tolist())


def test_percentile_of_no_lags_is_none() -> None:
    assert Sketch().quantile_ms(0.95) is None


def test_negative_lags_keep_their_sign() -> None:
    assert Sketch.of(np.array([-250.0, 10.0])).quantile_ms(0) == pytest.approx(-250, rel=0.01)
    assert bin_value_ms(-10_100) == -bin_value_ms(10_100)
