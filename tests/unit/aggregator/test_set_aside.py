"""What fails is found alone, and everything else is done once more at most."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.set_aside import isolate


@given(st.integers(1, 300), st.data())
def test_the_ones_that_fail_are_set_aside_and_all_others_done(n: int, data: st.DataObject) -> None:
    bad = set(data.draw(st.lists(st.integers(0, n - 1), max_size=4)))
    done, put_aside, calls = set[int](), list[int](), 0

    def work(items: Sequence[int]) -> int:
        nonlocal calls
        calls += 1
        if bad & set(items):
            raise ValueError
        done.update(items)
        return len(items)

    assert isolate(range(n), work, lambda item, _: put_aside.append(item)) == n - len(bad)
    assert sorted(put_aside) == sorted(bad)
    assert done == set(range(n)) - bad
    assert calls <= 1 + len(bad) * 2 * math.ceil(math.log2(max(n, 2)))


def test_an_outage_sets_nothing_aside() -> None:
    def work(_: Sequence[int]) -> int:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        isolate([1, 2, 3], work, lambda *_: pytest.fail("an outage is nobody's fault"))


@pytest.mark.parametrize("minutes", [0, 1_000])
def test_when_the_time_is_over_the_rest_is_left_but_something_was_done(minutes: float) -> None:
    """However little time there is: what is called again and again comes to its end."""
    left, calls = set(range(64)), 0

    def work(items: Sequence[int]) -> int:
        raise ValueError

    while left:
        before = len(left)
        isolate(sorted(left), work, lambda item, _: left.discard(item), time.monotonic() + 60 * minutes)
        assert len(left) < before
        calls += 1
    assert calls == (64 if minutes == 0 else 1)
