"""The check before scores are published."""

from __future__ import annotations

import math

import pytest

from pipeline_under_test.batch.hourly.publication import BadScores, HourScores

ROWS = [("autumn", 3, 30.0, 0.75), ("winter", 1, 10.0, 0.25)]


def test_scores_of_all_events_that_add_up_to_one_pass() -> None:
    HourScores(0, ROWS).check(counted=4)
    HourScores(0, []).check(counted=0)
    HourScores(0, [("autumn", 2, 0.0, 0.0)]).check(counted=2)


@pytest.mark.parametrize(
    ("rows", "counted", "expected"),
    [
        (ROWS, 5, "expected scores of 5 events, found 4"),
        ([("autumn", 3, 30.0, 0.5), ROWS[1]], 4, "with the sum 1, found 0.75"),
        ([("autumn", 3, math.nan, 0.75), ROWS[1]], 4, "finite"),
    ],
)
def test_others_are_not_published(rows: list[tuple[str, int, float, float]], counted: int, expected: str) -> None:
    with pytest.raises(BadScores, match=expected):
        HourScores(0, rows).check(counted)


def test_equal_scores_have_the_same_digest_and_others_another() -> None:
    assert HourScores(0, ROWS).digest == HourScores(0, list(ROWS)).digest
    assert HourScores(0, ROWS).digest != HourScores(0, ROWS[:1]).digest
