"""Rules 7 and 10: which emitters are expected in a window, and when it is idle."""

from __future__ import annotations

import pytest

from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState, TallyState

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


@pytest.mark.parametrize(
    ("lane", "later_is_held_back"),
    [
        (LaneState("mid.out", DIED_MS, holder=DEAD, name=""), False),
        (LaneState("mid.out", DIED_MS, name="topic orders 64646464", reporter=DEAD), True),
    ],
)
def test_what_a_tap_sees_leave_stands_still_in_an_outage_and_work_of_the_dead_does_not(
    lane: LaneState, later_is_held_back: bool
) -> None:
    dead = EmitterState(DEAD, "mid", 0, DIED_MS, False, 960, DIED_MS, 960)
    received_ms, hour_later_ms = DIED_MS + 900_000, DIED_MS + 3_600_000
    progress = Evidence(LATER_S, hour_later_ms, emitters=[dead], lanes=[lane]).progress("mid.out")
    assert progress is not None
    by_dead = any(received_ms < mourned_ms for _, mourned_ms in progress.dead)
    assert (progress.until < received_ms or by_dead) == later_is_held_back


@pytest.mark.parametrize(("node", "beacons", "dropped", "idle"), [
    ("src", 0, 0, True), ("src", 3, 0, False), ("src", 0, 3, False), ("mid", 3, 0, True),
])  # fmt: skip
def test_a_source_that_counted_beacons_is_not_idle_though_none_is_in_the_log_any_more(
    node: str, beacons: int, dropped: int, idle: bool
) -> None:
    final = EmitterState(OTHER, "src", 0, 1_030_000, False, 1_080, 1_030_000, 960)
    tally = TallyState(OTHER, node, f"{node}.in", None, beacons, dropped)
    assert Evidence(960, 1_040_000, emitters=[final], tallies=[tally]).is_idle(frozenset({"src"})) == idle
