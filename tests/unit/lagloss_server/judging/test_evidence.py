"""Rule 7: which emitters are expected in a window."""

from __future__ import annotations

import pytest

from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState

DIED_MS = 1_000_000
LATER_S = 1_080
"""The first window that the dead takes nothing into any more."""
DEAD, OTHER = b"d" * 16, b"o" * 16


@pytest.mark.parametrize("inputs", [("orders/0",), ()])
@pytest.mark.parametrize(
    ("lanes", "expected"),
    [
        ([LaneState("mid.in", DIED_MS + 60_001, name="orders/0", reporter=OTHER)], False),
        ([LaneState("mid.in", DIED_MS + 60_000, name="orders/0", reporter=OTHER)], True),
        ([LaneState("snk.in", DIED_MS + 60_001, name="orders/0", reporter=OTHER)], True),
        ([], True),
    ],
)
def test_the_dead_are_expected_until_their_lanes_or_without_any_their_nodes_are_taken_over(
    lanes: list[LaneState], inputs: tuple[str, ...], expected: bool
) -> None:
    dead = EmitterState(DEAD, "mid", 0, DIED_MS, False, 960, DIED_MS, 960, inputs=frozenset(inputs))
    evidence = Evidence(LATER_S, DIED_MS + 200_000, emitters=[dead], lanes=lanes)
    assert evidence.expected() == ([dead] if expected else [])


def test_one_that_reported_no_lane_waits_for_all_lanes_of_its_node() -> None:
    dead = EmitterState(DEAD, "mid", 0, DIED_MS, False, 960, DIED_MS, 960)
    lanes = [LaneState("mid.in", DIED_MS + late_ms, name=str(late_ms), reporter=OTHER) for late_ms in (0, 60_001)]
    assert Evidence(LATER_S, DIED_MS + 200_000, emitters=[dead], lanes=lanes).expected() == [dead]
