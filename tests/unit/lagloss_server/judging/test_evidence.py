"""Rules 4, 7 and 10: what the dead hold back, which emitters are expected in a window, and when it is idle."""

from __future__ import annotations

import pytest

from lagloss_server.judging.clock_skew import Skew
from lagloss_server.judging.evidence import EmitterState, Evidence, LaneState, TallyState
from lagloss_server.model.definition import parse_definition

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


ENDED_MS = DIED_MS - 5_000
"""The last flush in the spool of one whose account is settled at `DIED_MS`."""


@pytest.mark.parametrize("skew_ms", [0, -600_000, 600_000])
@pytest.mark.parametrize(
    ("resumes", "unfinished", "until_ms", "holds"),
    [
        (True, True, ENDED_MS + 60_000, True),
        (True, True, ENDED_MS + 60_001, False),  # taken over
        (False, True, ENDED_MS + 60_001, True),  # nothing is read again
        (True, False, ENDED_MS, False),
    ],
)
def test_what_was_in_flight_when_an_account_was_closed_is_so_until_others_have_read_beyond_its_end(
    resumes: bool, unfinished: bool, until_ms: int, holds: bool, skew_ms: int
) -> None:
    skew = Skew.of(ENDED_MS, ENDED_MS - skew_ms)
    dead = EmitterState(
        DEAD, "mid", 0, ENDED_MS - skew_ms, True, 960, DIED_MS, 960, skew, resumes, unfinished=unfinished
    )
    lanes = [
        LaneState("mid.out", DIED_MS - 90_000, holder=DEAD),
        LaneState("mid.in", until_ms, name="orders/0", reporter=OTHER),
    ]
    progress = Evidence(LATER_S, DIED_MS + 3_600_000, emitters=[dead], lanes=lanes).progress("mid.out")
    assert progress is not None
    assert progress.dead == (((DIED_MS - 90_000, ENDED_MS),) if holds else ())
    assert progress.until == DIED_MS + 3_600_000


def test_the_clock_of_an_emitter_that_another_process_closed_is_not_measured() -> None:
    assert Skew.of(DIED_MS, DIED_MS - 30_000, closed=True, unfinished=True) == Skew()


GRAPH = parse_definition(
    "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: p}\nspec:\n"
    "  maxWait: 20m\n  nodes: [{name: src, to: [mid]}, {name: mid}]\n"
).graph
CUT_OFF_S = DIED_MS // 1_000 + 60 + 20 * 60
"""Until then an emitter that died then may be cut off."""
SHARED = LaneState("mid.in", 2 * CUT_OFF_S * 1_000, name="orders/0", reporter=OTHER)


@pytest.mark.parametrize(
    ("node", "lanes", "resumes", "may_be_cut_off"),
    [
        ("mid", [], False, True),  # one of two that take requests
        ("src", [], False, False),
        ("mid", [SHARED], True, False),  # taken over
        ("mid", [SHARED], False, False),
        ("mid", [SHARED, LaneState("mid.in", DIED_MS, holder=DEAD)], False, True),  # it observes
        ("mid", [SHARED, LaneState("mid.in", DIED_MS, holder=DEAD)], True, False),
    ],
)
def test_one_that_fell_silent_may_be_cut_off_until_max_wait_unless_others_have_what_it_received(
    node: str, lanes: list[LaneState], resumes: bool, may_be_cut_off: bool
) -> None:
    now_ms = DIED_MS + 3_600_000
    dead = EmitterState(
        DEAD, node, 0, DIED_MS, False, 960, DIED_MS, 960, resumes=resumes, inputs=frozenset({"orders/0"})
    )
    alive = EmitterState(OTHER, node, 0, now_ms, False, now_ms // 1_000, now_ms, now_ms // 1_000)

    def is_incomplete(window_start_s: int) -> bool:
        evidence = Evidence(window_start_s, now_ms, emitters=[dead, alive], lanes=lanes)
        return node in evidence.incomplete(GRAPH, {}, ())

    assert is_incomplete(CUT_OFF_S - 60) == may_be_cut_off
    assert not is_incomplete(CUT_OFF_S - 59)
    assert not is_incomplete(960 - 60), "what it reported stays"
