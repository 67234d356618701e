"""How far ahead or behind a consumer group moves, in words."""

from __future__ import annotations

import pytest

from dashboard.pages.pipeline import groups
from lagloss_server.groups.velocity import Velocity, catches_up_s


@pytest.mark.parametrize(
    ("lag", "commits", "appends", "expected"),
    [
        (0, 5.0, 9.0, "no lag"),
        (600, 20.0, 10.0, "in 1 min"),
        (600, 10.0, 10.0, "never at this rate"),
        (600, 10.0, 10.04, "never at this rate"),
        (600, 10.0, 10.06, "falling behind by 0.1/s"),
        (600, 0.0, 250.0, "falling behind by 250/s"),
        (600, None, 10.0, "–"),
    ],
)
def test_a_group_that_stands_still_does_not_fall_behind(
    lag: int, commits: float | None, appends: float, expected: str
) -> None:
    moving = Velocity(commits, appends)
    assert groups._ahead(lag, moving, catches_up_s(lag, moving)) == expected
