"""Hours that come twice, days of 25 hours: date pickers, charts and words when the clocks go back."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures.burn_down import burn_down_figure
from dashboard.pages.report.page import applied, elsewhere
from dashboard.reports.model import BurnPoint
from dashboard.reports.ranges import CalendarRange
from dashboard.reports.wording import hours
from dashboard.request.links import Address
from dashboard.request.shown_range import requested_range
from dashboard.request.zones import Zone
from lagloss_server.sums.error_budget import BudgetShare
from tests.support.report_figures import report

NOW_S = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut"])


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


BACK = at("2026-10-25T00:00Z")
"""Half past two comes twice in Berlin: half an hour later, and an hour after that."""


def test_dates_that_are_picked_reach_over_an_hour_that_comes_twice() -> None:
    here = Address("/", {"zone": "Europe/Berlin"})
    twice = requested_range(here.between("2026-10-25 02:30:00", "2026-10-25 02:30:00").query, NOW_S)
    assert (twice.from_s, twice.to_s) == (BACK + 1_800, BACK + 5_400)
    day = requested_range(here.between("2026-10-26 00:00:00", "2026-10-25 00:00:00").query, NOW_S)
    assert day.length_s == 25 * 3_600
    skipped = requested_range(here.between("2026-03-29 02:30:00", "2026-03-29 02:45:00").query, NOW_S)
    assert (skipped.from_s, skipped.to_s) == (at("2026-03-29T01:30Z"), at("2026-03-29T01:45Z"))


@given(ZONES, st.integers(at("2012-01-01T00:00Z"), at("2027-12-31T00:00Z")))
def test_a_time_comes_twice_if_two_moments_look_alike(zone: str, moment_s: int) -> None:
    there = Zone.named(zone)
    typed = there.clock(moment_s, date=True)
    around = range(moment_s - 10_800, moment_s + 10_860, 60)
    alike = [moment for moment in around if there.clock(moment, date=True) == typed]
    assert there.is_twice(moment_s) == (len(alike) == 2)
    assert [there.parse(typed) // 60, there.parse(typed, later=True) // 60] == [alike[0] // 60, alike[-1] // 60]


def test_what_the_pickers_were_filled_with_is_what_is_shown_already() -> None:
    span = {"from": "2026-10-25T01:10:00Z", "to": "2026-10-25T01:40:00Z"}
    here = Address("/pipelines/chain/report", {"zone": "Europe/Berlin", **span})
    filled = ("2026-10-25 02:10:00", "2026-10-25 02:40:00")
    assert applied(here, 1, *filled) == here
    picked = applied(here, 1, filled[0], "2026-10-25 02:50:00")
    assert picked.query["to"] == "2026-10-25T01:50:00Z"


def test_other_pages_are_asked_for_the_time_of_a_calendar_range_as_two_moments() -> None:
    here = Address("/pipelines/chain/report", {"zone": "Europe/Berlin", "range": "2026-10"})
    there = elsewhere(here).to("/pipelines/chain")
    assert there.query == {"zone": "Europe/Berlin", "from": "2026-09-30T22:00:00Z", "to": "2026-10-31T23:00:00Z"}
    week = here.asking(range="7d")
    assert elsewhere(week) == week
    assert elsewhere(here.asking(range="someday")).query == {"zone": "Europe/Berlin"}


def test_two_hours_of_one_name_are_told_apart() -> None:
    assert hours(BACK, BACK + 3_600, "Europe/Berlin") == "2026-10-25 02:00 CEST to 02:00 CET"
    assert hours(BACK + 7_200, BACK + 10_800, "Europe/Berlin") == "2026-10-25 03:00 to 04:00"


def test_the_burn_down_goes_only_forward_when_the_clocks_go_back() -> None:
    steps = [BurnPoint(BACK - 7_200 + 1_800 * at, (BudgetShare(0.5, 1.0), None)) for at in range(12)]
    span = CalendarRange(steps[0].at_s, steps[-1].at_s, "Europe/Berlin")
    figure = burn_down_figure(replace(report(), span=span, burn_down=tuple(steps)))
    for line in figure.data:
        assert list(line.x) == sorted(set(line.x))
    assert figure.layout.xaxis.title.text == "time, UTC+01:00"
    assert figure.data[1].customdata[4] == "2026-10-25 02:00 CEST<br>2026-10-25 00:00 UTC"
