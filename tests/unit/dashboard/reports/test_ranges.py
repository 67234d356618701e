"""Ranges on the calendar of a zone, across changes of its clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.reports.ranges import CalendarRange, between, choose, day_edges, named_range, previous
from lagloss.errors import UsageError
from lagloss_server.base.errors import BadSpan, BadTime, BadZone

NOW_S = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Sao_Paulo", "Australia/Lord_Howe", "Asia/Beirut"]
)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


@pytest.mark.parametrize(
    ("text", "zone", "name", "from_", "to"),
    [
        ("this-month", "UTC", "2026-11", "2026-11-01T00:00Z", "2026-12-01T00:00Z"),
        ("last-month", "Europe/Berlin", "2026-10", "2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
        ("this-week", "UTC", "2026-W47", "2026-11-16T00:00Z", "2026-11-23T00:00Z"),
        ("last-week", "Asia/Kathmandu", "2026-W46", "2026-11-09T00:00+05:45", "2026-11-16T00:00+05:45"),
        ("last-quarter", "UTC", "2026-Q3", "2026-07-01T00:00Z", "2026-10-01T00:00Z"),
        ("2026-W01", "UTC", "2026-W01", "2025-12-29T00:00Z", "2026-01-05T00:00Z"),
        ("2026-02", "UTC", "2026-02", "2026-02-01T00:00Z", "2026-03-01T00:00Z"),
        ("2025-Q4", "America/New_York", "2025-Q4", "2025-10-01T00:00-04:00", "2026-01-01T00:00-05:00"),
        ("7d", "UTC", "", "2026-11-14T12:01Z", "2026-11-21T12:01Z"),
    ],
)
def test_a_name_is_a_range_of_the_zones_calendar(text: str, zone: str, name: str, from_: str, to: str) -> None:
    span = named_range(text, zone, NOW_S)
    assert (span.name, span.from_s, span.to_s) == (name, at(from_), at(to))


@pytest.mark.parametrize(
    ("text", "before"),
    [("2026-01", "2025-12"), ("2026-Q1", "2025-Q4"), ("2026-W01", "2025-W52"), ("2027-W01", "2026-W53")],
)
def test_before_a_week_month_or_quarter_comes_the_one_before_it(text: str, before: str) -> None:
    assert previous(named_range(text, "Europe/Berlin", NOW_S)) == named_range(before, "Europe/Berlin", NOW_S)


def test_before_whole_days_come_as_many_and_before_anything_else_as_much_time() -> None:
    days = between("2026-10-25", "2026-10-26", "Europe/Berlin", NOW_S)
    assert days.to_s - days.from_s == 25 * 3_600
    assert previous(days) == CalendarRange(days.from_s - 24 * 3_600, days.from_s, "Europe/Berlin")
    hour = between("2026-11-21T09:30:00Z", "2026-11-21T10:30:00Z", "UTC", NOW_S)
    assert previous(hour) == CalendarRange(hour.from_s - 3_600, hour.from_s, "UTC")


@given(ZONES, st.integers(at("2012-01-01T00:00Z"), at("2027-12-31T00:00Z")), st.integers(1, 60 * 24 * 40))
def test_days_of_a_range_are_the_days_of_its_minutes(zone: str, from_min: int, length: int) -> None:
    from_s = from_min // 60 * 60
    span = CalendarRange(from_s, from_s + 60 * length, zone)
    edges = day_edges(span)
    assert (edges[0], edges[-1]) == (span.from_s, span.to_s)
    info = ZoneInfo(zone)
    for early, late in pairwise(edges):
        assert early < late
        first = datetime.fromtimestamp(early, info).date()
        assert datetime.fromtimestamp(late - 60, info).date() == first
        if late != span.to_s:
            assert datetime.fromtimestamp(late, info).date() == first + timedelta(days=1)


def test_a_moment_without_offset_is_of_the_zone() -> None:
    span = between("2026-11-01T08:00", "2026-11-01T09:00:30", "Asia/Kathmandu", NOW_S)
    assert (span.from_s, span.to_s) == (at("2026-11-01T08:00+05:45"), at("2026-11-01T09:01+05:45"))
    assert between("-2h", "now", "Asia/Kathmandu", NOW_S).from_s == NOW_S - 7_200


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13", "2026-W54", "2026-Q5", "1026-01", "../etc", "2026-W00"])
def test_a_name_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadSpan, match="last-month"):
        named_range(text, "UTC", NOW_S)


@pytest.mark.parametrize(
    ("from_", "to"),
    [("now", "-1h"), ("-1h", "-1h"), ("-900d", "now"), ("1969-01-01", "1969-02-01"), ("9999-12-30", "9999-12-31")],
)
def test_a_range_that_is_empty_too_long_or_of_another_age_is_refused(from_: str, to: str) -> None:
    with pytest.raises(BadSpan):
        between(from_, to, "UTC", NOW_S)


def test_a_range_is_asked_for_in_one_way() -> None:
    assert choose(None, None, None, "UTC", NOW_S).name == "2026-10"
    assert choose(None, "-1d", None, "UTC", NOW_S).to_s == NOW_S
    bad: list[tuple[tuple[str | None, str | None, str | None, str], type[UsageError]]] = [
        (("7d", "-1d", None, "UTC"), BadSpan),
        ((None, None, "now", "UTC"), BadSpan),
        ((None, "soon", None, "UTC"), BadTime),
        ((None, None, None, "Mars/Olympus"), BadZone),
        ((None, None, None, "../../etc/passwd"), BadZone),
    ]
    for given_, error in bad:
        with pytest.raises(error):
            choose(*given_, NOW_S)
