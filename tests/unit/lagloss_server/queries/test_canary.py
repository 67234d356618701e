"""When the canary is ok."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lagloss_server.model.canary import LATE, NOT_TAKEN, QUIET_S, RIGHT, WRONG
from lagloss_server.queries.canary import (
    AHEAD_S,
    MANY,
    NEWEST,
    NO_CANARY,
    CanaryHealth,
    CanaryStanding,
    CanaryTotals,
    problem_of,
    standing_lines,
)

GOOD = [(RIGHT, ())] * 3


def test_it_is_ok_while_the_last_three_minutes_are_right_and_the_newest_of_them_is_fresh() -> None:
    assert problem_of(GOOD, 0.0) == ""
    assert problem_of([*GOOD, (WRONG, ("no result",))], QUIET_S) == ""


@pytest.mark.parametrize(
    ("verdicts", "quiet_s", "waiting", "problem"),
    [
        ([(WRONG, ("no result", "x")), *GOOD], 0.0, "", "a minute was wrong: no result; x"),
        ([*GOOD[:2], (WRONG, ("x",)), *GOOD], 0.0, "", "a minute was wrong: x"),
        ([(LATE, ()), *GOOD], 0.0, "", "a minute was late: right only after it was due"),
        (GOOD, QUIET_S + 1, "", "no minute was found right for 4 min"),
        (GOOD, QUIET_S + 1, "the clock was set", "no minute was found right for 4 min: the clock was set"),
        (GOOD, None, "", "no minute was found right"),
        (GOOD, -AHEAD_S - 1, "", "PostgreSQL's clock was set back, to minutes that were judged before"),
        (GOOD[:2], 0.0, "", "2 of 3 minutes were due so far"),
        ([], None, "topic x", "0 of 3 minutes were due so far: topic x"),
    ],
)
def test_it_is_not_ok_and_says_why(
    verdicts: list[tuple[str, tuple[str, ...]]], quiet_s: float | None, waiting: str, problem: str
) -> None:
    assert problem_of(verdicts, quiet_s, waiting) == problem


def test_it_is_not_ok_if_half_of_the_newest_minutes_were_not_taken() -> None:
    why = f"{NOT_TAKEN}beacons of relay are not acknowledged: x"
    assert problem_of(GOOD, 0.0, "", [why] * (MANY - 1)) == ""
    assert (
        problem_of(GOOD, 0.0, "", [why] * MANY)
        == f"{MANY} of the last {NEWEST} minutes were not taken: beacons of relay are not acknowledged: x"
    )


def test_a_canary_is_starting_only_for_so_long_as_it_is_young() -> None:
    young = CanaryStanding(False, "0 of 3 minutes were due so far: x", CanaryTotals(0, 0, 0, 0, 0), None, is_young=True)

    assert CanaryHealth(young, young.totals).text.startswith("The canary of lagloss is starting: ")
    old = replace(young, is_young=False)
    assert CanaryHealth(old, old.totals).text.startswith(
        "The canary of lagloss is not right (0 of 3 minutes were due so far: x): "
    )


def test_a_standing_is_printed_for_programs_and_for_people() -> None:
    totals = CanaryTotals(minutes=30, right=30, shown=180, named=180, invented=0)
    standing = CanaryStanding(ok=True, why="", totals=totals, last_ok_s=1_764_000_000, not_due=((1_763_999_940, "y"),))

    document = standing.document()
    assert document.pop("why") == ""
    assert document == {
        "minutes": 30,
        "shown": 180,
        "named": 180,
        "invented": 0,
        "ok": True,
        "last_ok": "2025-11-24T16:00:00Z",
    }
    assert list(standing_lines(standing)) == [
        "The canary is right.",
        "Shown 180 losses in 30 minutes, named 180, invented 0.",
        "Last right: 2025-11-24T16:00:00Z",
        "Not due: 2025-11-24T15:59:00Z, y",
    ]
    assert NO_CANARY.document()["last_ok"] is None
    assert next(iter(standing_lines(NO_CANARY))).startswith("The canary is not right: there is no canary")
