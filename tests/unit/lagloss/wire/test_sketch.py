"""The lag sketch: keys, accuracy, merging."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.sketch import Sketch, bin_keys, bin_value_ms, rank

LAGS = st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=60)
SHARES = st.sampled_from(["0.5", "0.95", "0.99", "1"]) | st.decimals(0, 1, places=5).filter(bool).map(str)
"""As they are written."""


def enough(share: str, count: int, n: int) -> bool:
    return Fraction(count, n) >= Fraction(share)


def slow_key(lag_ms: float) -> int:
    if abs(lag_ms) <= 0.001:
        return 0
    k = 10_000 + math.ceil(math.log(abs(lag_ms)) / math.log(1.01 / 0.99))
    return k if lag_ms > 0 else -k


@given(LAGS)
def test_keys_follow_the_formula(lags: list[float]) -> None:
    found = bin_keys(np.array(lags, np.float32))
    assert found.tolist() == [slow_key(float(np.float32(lag))) for lag in lags]


@given(SHARES, st.integers(1, 10**12))
def test_a_rank_is_the_least_that_is_a_share(share: str, n: int) -> None:
    found = rank(float(share), n)
    assert 1 <= found <= n
    assert enough(share, found, n)
    assert not enough(share, found - 1, n)


@pytest.mark.parametrize(
    ("q", "n", "expected"),
    [
        (0.95, 20, 19),
        (0.95, 21, 20),
        (0.95, 2, 2),
        (0.07, 100, 7),
        (0.999, 1_000, 999),
        (0.5, 4, 2),
        (1.0, 3, 3),
    ],
)
def test_a_rank_is_of_the_number_that_is_written(q: float, n: int, expected: int) -> None:
    assert rank(q, n) == rank(np.float64(q), n) == expected


@given(LAGS, SHARES)
def test_a_quantile_is_within_one_percent_of_the_item_of_its_rank(lags: list[float], share: str) -> None:
    values = sorted(float(np.float32(lag)) for lag in lags)
    item = next(value for number, value in enumerate(values, 1) if enough(share, number, len(lags)))
    found = Sketch.of(np.array(lags, np.float32)).quantile_ms(float(share))
    assert found == pytest.approx(item, rel=0.0100001, abs=0.001)


@given(LAGS, SHARES, st.data())
def test_a_percentile_within_a_target_is_a_share_within_it(lags: list[float], share: str, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(lags) | st.floats(-1e9, 1e9))
    of_rank = sorted(lags)[rank(float(share), len(lags)) - 1]
    assert (of_rank <= target) == enough(share, sum(lag <= target for lag in lags), len(lags))


@given(st.lists(LAGS, min_size=1, max_size=4), SHARES, st.data())
def test_a_percentile_of_merged_sketches_within_a_target_is_a_share_of_all_lags_within_it(
    parts: list[list[float]], share: str, data: st.DataObject
) -> None:
    merged = Sketch.merged(Sketch.of(np.array(part, np.float32)) for part in parts)
    target = data.draw(st.sampled_from([bin_value_ms(key) for key in merged.bins()]) | st.floats(-1e9, 1e9))
    quantile = merged.quantile_ms(float(share))
    assert quantile == Sketch.of(np.concatenate(parts).astype(np.float32)).quantile_ms(float(share))
    assert quantile is not None
    assert (quantile <= target) == enough(share, merged.count_up_to(target), merged.count)


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
