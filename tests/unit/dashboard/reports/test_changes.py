"""What changed against the range before: two sentences made of its figures, or what is missing for them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec import structs

from dashboard.reports.changes import what_changed
from dashboard.reports.model import Report
from dashboard.reports.ranges import day_edges
from lagloss.wire.sketch import Sketch
from lagloss_server.model.window import Interval
from lagloss_server.sums.rollup import PartSums, Rollup
from tests.support.report_figures import destination, figures, incident, report, rollup

GOOD = PartSums(500, 500, on_time=500, on_time_of=500)
BAD = PartSums(500, 450, lost=Interval(50, 50), on_time=450, on_time_of=500)


def of_days(*days: Rollup, before: Rollup) -> Report:
    """A week of these days, the last of them until its end."""
    made = report()
    each = [*days, *[days[-1]] * (7 - len(days))]
    drawn = tuple(figures(*edges, of) for edges, of in zip(pairwise(day_edges(made.span)), each, strict=True))
    whole = figures(made.span.from_s, made.span.to_s, Rollup.merged(each))
    previous = made.previous_span
    return replace(made, whole=whole, previous=figures(previous.from_s, previous.to_s, before), days=drawn)


def day(messages: int = 1_000, lost: int = 0, late: int = 0) -> Rollup:
    """A whole day without a gap."""
    found = rollup(messages, (lost, lost), windows=1_440)
    return structs.replace(found, on_time=messages - late - lost)


def week(messages: int = 7_000, lost: int = 0, late: int = 0) -> Rollup:
    return structs.replace(day(messages, lost, late), windows=7 * 1_440, verdicts={"ok": 7 * 1_440})


def test_it_says_by_how_much_since_which_day_where_and_why() -> None:
    blame = {"of": "loss", "conclusion": "97 % of the lost were last seen at mid by process h-7.", "findings": [{}]}
    one = incident()
    made = of_days(
        day(), day(), structs.replace(day(lost=50), e2e_lags=Sketch.from_bins({10_420: 1_000})), before=week(lost=7)
    )
    made = replace(
        made, incidents=replace(made.incidents, listed=(replace(one, detail={**one.detail, "blame": blame}),))
    )
    loss, lateness = what_changed(made)
    assert loss == (
        "Loss rose from 0.1 % to 3.57 % of messages, since Wed 2026-11-11, most at link src → mid (0.1 % to 3.57 %); "
        "the incident of 2026-11-21 13:00 says: 97 % of the lost were last seen at mid by process h-7."
    )
    assert lateness == (
        "The on-time share fell from 99.9 % to 96.4 % of messages (lag p95 147 ms to 4.4 s), since Wed 2026-11-11, "
        "most of the lag in queue src → mid (p95 30 ms to 60 ms); no incident names a cause."
    )


def test_what_became_better_has_no_cause() -> None:
    made = of_days(day(lost=1), before=week(lost=70, late=700))
    loss, lateness = what_changed(made)
    assert loss == (
        "Loss fell from 1 % to 0.1 % of messages, on each of 7 days, most at link src → mid (1 % to 0.1 %)."
    )
    assert lateness.startswith("The on-time share rose from 89 % to 99.9 % of messages")
    assert "incident" not in lateness


def test_the_destination_is_named_where_most_changed() -> None:
    made = of_days(day(lost=50), before=week())
    made = replace(
        made, destinations=(destination(made, "conn-ga", GOOD, GOOD), destination(made, "conn-fb", BAD, GOOD))
    )
    loss, lateness = what_changed(made)
    assert ", most at destination conn-fb (0 % to 10 %)" in loss
    assert ", most at destination conn-fb (100 % to 90 %)" in lateness


def test_days_that_come_and_go_are_counted() -> None:
    days = [day(), day(lost=50), day(), day(lost=50), day(), day(), day()]
    loss, _ = what_changed(of_days(*days, before=week()))
    assert ", on 2 days of 7, first on Tue 2026-11-10," in loss


def test_what_reads_alike_is_the_same() -> None:
    loss, lateness = what_changed(of_days(day(lost=1), before=week(lost=7)))
    assert loss == "Loss is the same as in 2026-W45: 0.1 % of messages."
    assert lateness == "The on-time share is the same as in 2026-W45: 99.9 % of messages (lag p95 147 ms, unchanged)."


def test_bounds_that_overlap_allow_no_sentence() -> None:
    unsure = structs.replace(day(), lost=Interval(0, 20))
    loss, _ = what_changed(of_days(unsure, before=week(lost=7)))
    assert loss == (
        "It is unclear whether loss changed since 2026-W45: 0.1 % to 0 % – 2 % of messages, with overlapping bounds."
    )


@pytest.mark.parametrize("windows", [0, 7 * 1_440 // 2 - 1])
def test_too_little_known_is_said(windows: int) -> None:
    before = structs.replace(week(), windows=windows, verdicts={"ok": windows})
    (said,) = what_changed(of_days(day(), before=before))
    share = "0 %" if not windows else "50 %"
    assert said == f"Not enough data to compare with 2026-W45: only {share} of the minutes of 2026-W45 have a verdict."


def test_ranges_without_messages_are_not_compared() -> None:
    idle = structs.replace(Rollup(), windows=7 * 1_440, verdicts={"idle": 7 * 1_440})
    loss, lateness = what_changed(of_days(day(), before=idle))
    assert loss.startswith("Not enough data to compare loss with 2026-W45")
    assert lateness.startswith("Not enough data to compare lateness with 2026-W45")
