"""`kill -9` of `lagloss up`: a short version of `python -m benchmarks.kills`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.kills import BOUND_S, Up, kill_again_and_again


@pytest.mark.slow
def test_the_start_after_a_kill_9_succeeds_by_itself(jars: None, own_dir: Path) -> None:
    """One with a broker that is stopped, and a start that is killed half-way, too; one with a broker that runs."""
    up = Up(own_dir)
    up.ready()
    bound_s = max(BOUND_S, 2 * up.ready_s)  # a busy machine starts slowly without a kill, too
    rounds = list(kill_again_and_again(up, 2, random.Random(16)))
    assert [each.broker for each in rounds] == ["stopped", "running"]
    assert max(each.ready_s for each in rounds) < bound_s
