"""The progress of a recompute as its row has it, whatever that is: another begins again, and ends nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.maintenance.tasks import Recomputed

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers())
FIELDS = st.sampled_from([*asdict(Recomputed(0)), "futureField"])


@given(ANYTHING | st.dictionaries(FIELDS, ANYTHING))
def test_any_progress_is_read_or_passed_over(progress: Any) -> None:
    found = Recomputed.read(progress)
    assert found is None or isinstance(found.next_s, int)


@pytest.mark.parametrize("progress", [None, {}, {"next_s": "1"}, {"next_s": 60, "futureField": 1}, [60]])
def test_what_this_version_does_not_know_begins_again(progress: Any) -> None:
    assert Recomputed.read(progress) is None


def test_what_was_written_is_read() -> None:
    done = Recomputed(next_s=120, done=2, of=5, sealed=1, beacons=30, seconds=0.25)
    assert Recomputed.read(asdict(done)) == done
