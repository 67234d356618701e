"""Lag sketch: a DDSketch of signed lags with relative accuracy 0.01, whose bins add up and merge exactly.

Source: Masson, Rim, Lee, "DDSketch" (VLDB 2019); bin keys as fixed by the wire format (docs/wire-format.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.wire.avro import decode_longs, encode_longs

RELATIVE_ACCURACY = 0.01
GAMMA = (1 + RELATIVE_ACCURACY) / (1 - RELATIVE_ACCURACY)
LN_GAMMA = math.log(GAMMA)
ZERO_MS = 0.001
MAX_LAG_MS = float(1 << 48)
"""Of either sign: 8,900 years. More is no clock fault but a broken number."""
"""Lags of at most this many milliseconds, either way, share the bin with key 0."""
KEY_OFFSET = 10_000
MIN_KEY = KEY_OFFSET + math.ceil(math.log(ZERO_MS) / LN_GAMMA)
"""Of the smallest lag that is not zero."""
MAX_KEY = KEY_OFFSET + math.ceil(math.log(MAX_LAG_MS) / LN_GAMMA)
"""Of the largest lag."""


def rank(q: float, n: int) -> int:
    """Return the rank, counted from 1, of the q-percentile (0 < q <= 1) of n lags: the smallest that at least a share q
    of them do not exceed.

    It is ceil(q * n), exactly: q is the number that is written (0.07 of 100 is 7, though in binary it is more).
    """
    numerator, denominator = _as_written(q)
    return -(-numerator * n // denominator)


@lru_cache(maxsize=64)
def _as_written(q: float) -> tuple[int, int]:
    return Decimal(str(q)).as_integer_ratio()


def bin_keys(lag_ms: npt.NDArray[np.floating]) -> npt.NDArray[np.int32]:
    """Return the bin key of each lag (finite, in ms): positive above 0.001 ms, 0 around zero, negative below."""
    lag = lag_ms.astype(np.float64)
    size = np.abs(lag)
    np.maximum(size, ZERO_MS, out=size)
    keys = (np.ceil(np.log(size) / LN_GAMMA) + KEY_OFFSET).astype(np.int32)
    keys[np.abs(lag) <= ZERO_MS] = 0
    return np.where(lag < 0, -keys, keys)


@lru_cache(maxsize=4_096)
def bin_value_ms(key: int) -> float:
    """Return the lag, in ms, that a bin stands for."""
    if key == 0:
        return 0.0
    value = 2 * GAMMA ** (abs(key) - KEY_OFFSET) / (GAMMA + 1)
    return value if key > 0 else -value


class Sketch:
    """Bin keys in ascending order (which is ascending lag) and the number of lags in each. Never changed.

    No dataclass: JSON of roll-ups has a number in place of a sketch, and msgspec writes dataclasses field by field.
    """

    __slots__ = ("counts", "keys")

    def __init__(self, keys: npt.NDArray[np.int32] | None = None, counts: npt.NDArray[np.int64] | None = None) -> None:
        self.keys: Final = np.empty(0, np.int32) if keys is None else keys
        self.counts: Final = np.empty(0, np.int64) if counts is None else counts

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sketch)
            and np.array_equal(self.keys, other.keys)
            and np.array_equal(self.counts, other.counts)
        )

    def __repr__(self) -> str:
        return f"Sketch.from_bins({self.bins()})"

    @classmethod
    def of(cls, lag_ms: npt.NDArray[np.floating]) -> Sketch:
        """Return the sketch of these lags, in ms."""
        return cls.of_keys(bin_keys(lag_ms))

    @classmethod
    def of_keys(cls, keys: npt.NDArray[np.int32]) -> Sketch:
        """Return the sketch of the lags in these bins (see `bin_keys`), one key per lag."""
        return cls().plus(keys)

    def plus(self, keys: npt.NDArray[np.int32]) -> Sketch:
        """Return the sketch of these lags and of those in these bins, as for `of_keys`."""
        if keys.size == 0:
            return self
        low, high = int(keys.min()), int(keys.max())
        if self.keys.size:
            low, high = min(low, int(self.keys[0])), max(high, int(self.keys[-1]))
        dense = np.bincount(keys - low, minlength=high - low + 1)
        dense[self.keys - low] += self.counts
        filled = np.flatnonzero(dense)
        return Sketch((filled + low).astype(np.int32), dense[filled])

    @classmethod
    def from_bins(cls, bins: Mapping[int, int]) -> Sketch:
        ordered = sorted(bins.items())
        return cls(
            np.array([key for key, _ in ordered], np.int32),
            np.array([count for _, count in ordered], np.int64),
        )

    @classmethod
    def merged(cls, sketches: Iterable[Sketch]) -> Sketch:
        """Return the sketch of all lags in `sketches`."""
        parts = [sketch for sketch in sketches if sketch.keys.size]
        if len(parts) <= 1:
            return parts[0] if parts else cls()
        keys, place = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.zeros(keys.size, np.int64)
        np.add.at(counts, place, np.concatenate([part.counts for part in parts]))
        return cls(keys, counts)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def is_sound(self, max_count: int) -> bool:
        """Return whether keys ascend and each bin is one that a lag can fall into, with a count of 1 to `max_count`."""
        size = np.abs(self.keys.astype(np.int64))
        in_range = (size >= MIN_KEY) & (size <= MAX_KEY) | (size == 0)
        ascend = (self.keys[1:] > self.keys[:-1]).all()
        return bool(ascend and in_range.all() and (self.counts >= 1).all() and (self.counts <= max_count).all())

    def quantile_ms(self, q: float) -> float | None:
        """Return the q-percentile of the lags, in ms (see `rank`); None if there are no lags."""
        return self.quantiles_ms((q,))[0]

    def quantiles_ms(self, qs: Sequence[float]) -> list[float | None]:
        """Return `quantile_ms` for several percentiles, adding the counts up once."""
        up_to = self.counts.cumsum()
        n = int(up_to[-1]) if up_to.size else 0
        if n == 0:
            return [None] * len(qs)
        ranks = [rank(q, n) for q in qs]
        return [bin_value_ms(key) for key in self.keys[up_to.searchsorted(ranks)].tolist()]

    def count_up_to(self, lag_ms: float) -> int:
        """Return the number of lags up to `lag_ms`, to the resolution of bins: a bin counts by the lag it stands for
        (`bin_value_ms`).
        """
        return sum(count for key, count in self.bins().items() if bin_value_ms(key) <= lag_ms)

    def to_bytes(self) -> bytes:
        """Return the bins as a tally has them: the key less the key before, and the count, of one after another."""
        bins = np.empty((self.keys.size, 2), np.int64)
        bins[:, 0], bins[:, 1] = self.keys, self.counts
        bins[1:, 0] -= self.keys[:-1]
        return encode_longs(bins)

    @classmethod
    def from_bytes(cls, packed: bytes) -> Sketch:
        """Rebuild a sketch from the result of `to_bytes`.

        Raises:
            ValueError: the bytes are not whole bins, or a key has more than 32 bits.
        """
        numbers = decode_longs(packed)
        if numbers.size % 2:
            raise ValueError("expected a key and a count per bin")
        bins = numbers.reshape(-1, 2)
        sums = bins[:, 0].cumsum()
        keys = sums.astype(np.int32)
        if (keys != sums).any():
            raise ValueError("expected 32-bit keys")
        return cls(keys, bins[:, 1].copy())

    def bins(self) -> dict[int, int]:
        return dict(zip(self.keys.tolist(), self.counts.tolist(), strict=True))
