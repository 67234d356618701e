"""The table of a benchmark's figures."""

from benchmarks.figures import Figure, table


def test_a_figure_is_shown_beside_its_goal_and_its_reference() -> None:
    figures = [
        Figure("a look", 1.1, "ms", 1.5, 0.4, "bare SELECT"),
        Figure("closing", 12.3, "M beacons/s", 11.5, 15.3, "bare read", more_is_better=True),
        Figure("age", 1_234.0, "s"),
    ]
    assert table(figures).splitlines()[2:] == [
        "| a look | at most 1.50 ms | 0.40 ms (bare SELECT) | 1.10 ms |",
        "| closing | at least 11.5 M beacons/s | 15.3 M beacons/s (bare read) | 12.3 M beacons/s |",
        "| age |  |  | 1,234 s |",
    ]


def test_a_goal_that_is_not_met_is_marked() -> None:
    assert "6.00 s, **missed**" in table([Figure("page", 6.0, "s", 1.0)])
    assert "6.00 %, **missed**" in table([Figure("rate", 6.0, "%", 75.0, more_is_better=True)])
