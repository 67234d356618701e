"""Which windows that their tallies prove are read all the same."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.kernel.plan import WindowPlan
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from tests.support.window_documents import chain

PLAN = WindowPlan(chain().graph, 1_795_250_400)
"""Its target: 95 % within 5 s."""


@pytest.mark.parametrize(
    ("late", "dead", "are_named"),
    [(0, 0, False), (20, 0, False), (30, 0, False), (31, 0, True), (60, 0, True), (0, 2, False), (0, 3, True)],
)
def test_a_proven_window_is_read_if_many_of_its_messages_are_late_or_dead(
    late: int, dead: int, are_named: bool
) -> None:
    lags = Sketch.of(np.array([100.0] * (1_000 - late) + [9_000.0] * late))
    counts = {"src.in": 1_000, "mid.dead": dead}
    checkpoints = {name: CheckpointFacts(count, 0, count, None) for name, count in counts.items() if count}
    assert PLAN.has_names_to_keep(WindowFacts(checkpoints=checkpoints, arrivals=(lags,), proven=True)) == are_named


def test_an_empty_window_has_nothing_to_name() -> None:
    assert not PLAN.has_names_to_keep(WindowFacts(arrivals=(Sketch(),), proven=True))
