"""What fails is found alone, and everything else is done once more at most."""

from __future__ import annotations

import math
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
