"""When reports are due, and what a reports file may say."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.reports.schedule.file import ReportsFile
from dashboard.reports.schedule.rule import Schedule
from lagloss_server.base.errors import BadDefinition
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.model.definition import parse_definition
from tests.support.window_documents import CHAIN

BERLIN = "Europe/Berlin"
HEAD = """apiVersion: lagloss/v1
kind: Reports
mail: {host: smtp.example.com, from: lagloss@example.com}
"""
WEEKLY = """reports:
  - name: weekly
    pipelines: all
    range: last-week
    zone: Europe/Berlin
    rrule: FREQ=WEEKLY;BYDAY=MO;BYHOUR=8
    to: [owners@example.com]
"""


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def told(times: list[int]) -> list[str]:
    return [datetime.fromtimestamp(time, UTC).isoformat(timespec="minutes").removesuffix("+00:00") for time in times]


def test_a_report_comes_at_eight_before_and_after_the_clocks_change() -> None:
    weekly = Schedule.parse("FREQ=WEEKLY;BYDAY=MO;BYHOUR=8", BERLIN)
    assert told(weekly.next_after(at("2026-03-20T00:00Z"), 3)) == [
        "2026-03-23T07:00", "2026-03-30T06:00", "2026-04-06T06:00",
    ]  # fmt: skip


def test_a_time_that_the_clocks_leave_out_comes_as_long_after_midnight_as_ever() -> None:
    nightly = Schedule.parse("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", BERLIN)
    assert told(nightly.next_after(at("2026-03-28T12:00Z"), 2)) == ["2026-03-29T01:30", "2026-03-30T00:30"]


def test_a_time_that_comes_twice_is_the_first_of_the_two() -> None:
    nightly = Schedule.parse("FREQ=DAILY;BYHOUR=2;BYMINUTE=30", BERLIN)
    assert told(nightly.next_after(at("2026-10-24T12:00Z"), 2)) == ["2026-10-25T00:30", "2026-10-26T01:30"]


def test_times_that_the_change_of_clocks_swaps_come_in_order() -> None:
    twice = Schedule.parse("FREQ=DAILY;BYHOUR=2,3;BYMINUTE=0", BERLIN)
    assert told(twice.next_after(at("2026-03-28T12:00Z"), 3)) == [
        "2026-03-29T01:00", "2026-03-29T01:00", "2026-03-30T00:00",
    ]  # fmt: skip


def test_a_rule_that_leaves_things_open_takes_them_from_midnight_of_the_first_monday_of_2024() -> None:
    assert told(Schedule.parse("FREQ=WEEKLY", "UTC").next_after(at("2026-11-18T00:00Z"), 1)) == ["2026-11-23T00:00"]
    assert told(Schedule.parse("FREQ=MONTHLY", "UTC").next_after(at("2026-11-18T00:00Z"), 1)) == ["2026-12-01T00:00"]
    quarterly = Schedule.parse("FREQ=MONTHLY;INTERVAL=3", "UTC")
    assert told(quarterly.next_after(at("2026-11-18T00:00Z"), 2)) == ["2027-01-01T00:00", "2027-04-01T00:00"]
    every_other = Schedule.parse("RRULE:FREQ=WEEKLY;INTERVAL=2", "UTC")
    assert told(every_other.next_after(at("2024-01-01T00:00Z"), 1)) == ["2024-01-15T00:00"]


def test_before_its_first_time_a_rule_goes_back_to_where_all_begin() -> None:
    assert Schedule.parse("FREQ=YEARLY;BYMONTH=7", "UTC").last_until(at("2024-02-01T00:00Z")) == at("2024-01-01T00:00Z")


@settings(deadline=None)  # a rule's first use walks from 2024
@given(
    zone=st.sampled_from([BERLIN, "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu", "Africa/Cairo"]),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    now_s=st.integers(1_735_700_000, 1_800_000_000),
)
def test_times_are_those_of_a_calendar_walked_day_by_day(zone: str, hour: int, minute: int, now_s: int) -> None:
    days = [date(2024, 1, 1) + timedelta(days=number) for number in range(1_300)]
    every = [
        int(datetime(day.year, day.month, day.day, hour, minute, tzinfo=ZoneInfo(zone)).timestamp()) for day in days
    ]
    schedule = Schedule.parse(f"FREQ=DAILY;BYHOUR={hour};BYMINUTE={minute}", zone)
    assert schedule.next_after(now_s, 3) == sorted(time for time in every if time > now_s)[:3]
    assert schedule.last_until(now_s) == max(time for time in every if time <= now_s)


@settings(deadline=None)  # a rule's first use walks from 2024
@given(
    now_s=st.integers(1_704_100_000, 4_000_000_000), rule=st.sampled_from(["FREQ=MONTHLY;BYMONTHDAY=-1", "FREQ=WEEKLY"])
)
def test_the_last_time_is_the_one_before_the_next(now_s: int, rule: str) -> None:
    schedule = Schedule.parse(rule, BERLIN)
    last = schedule.last_until(now_s)
    assert last <= now_s < schedule.next_after(last, 1)[0]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("", "other than COUNT, UNTIL, BYSECOND and DTSTART, found ''"),
        ("every monday", "found 'EVERY MONDAY'"),
        ("FREQ=HOURLY", "expected FREQ=DAILY, WEEKLY, MONTHLY, YEARLY, found HOURLY"),
        ("BYDAY=MO", "found none"),
        ("FREQ=DAILY;COUNT=3", "found 'COUNT'"),
        ("FREQ=DAILY;UNTIL=20270101", "found 'UNTIL'"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "found 'DTSTART"),
        ("FREQ=DAILY;INTERVAL=0", "expected INTERVAL from 1 to 9999, found 0"),
        ("FREQ=DAILY;BYHOUR=25", "expected an RFC 5545 rule such as"),
        ("FREQ=DAILY;BYHOUR=x", "expected an RFC 5545 rule such as"),
        ("FREQ=WEEKLY;BYDAY=XX", "expected an RFC 5545 rule such as"),
        ("FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30", "one that never does"),
        ("FREQ=DAILY;BYHOUR=8;BYMINUTE=0,30", "an hour apart"),
    ],
)
def test_what_is_no_rule_for_a_report_is_refused(rule: str, problem: str) -> None:
    with pytest.raises(ValueError, match="expected ") as found:
        Schedule.parse(rule, "UTC")
    assert problem in str(found.value)


def read(text: str) -> ReportsFile:
    return parse_yaml(ReportsFile, text, "reports.yaml")


def test_a_file_says_which_report_is_due_when_and_to_whom() -> None:
    (report,) = read(HEAD + WEEKLY).reports
    assert (report.pipelines, report.formats, report.to) == (None, ("pdf",), ("owners@example.com",))
    span = report.span(at("2026-11-23T07:00Z"))
    assert told([span.from_s, span.to_s]) == ["2026-11-15T23:00", "2026-11-22T23:00"]


def test_a_range_may_be_a_time_before_it_is_due() -> None:
    (report,) = read(HEAD + WEEKLY.replace("last-week", "-24h")).reports
    span = report.span(at("2026-11-23T07:00Z"))
    assert told([span.from_s, span.to_s]) == ["2026-11-22T07:00", "2026-11-23T07:00"]


@pytest.mark.parametrize(
    ("written", "instead", "line", "problem"),
    [
        ("BYDAY=MO", "BYDAY=MONDAY", 9, "reports[0].rrule: expected an RFC 5545 rule"),
        ("FREQ=WEEKLY", "FREQ=SECONDLY", 9, "expected FREQ=DAILY, WEEKLY, MONTHLY, YEARLY, found SECONDLY"),
        ("Europe/Berlin", "Berlin", 8, "expected a time zone such as Europe/Berlin, found 'Berlin'"),
        ("Europe/Berlin", "../../etc/passwd", 8, "expected a time zone such as"),
        ("last-week", "this-week", 7, "expected last-week, last-month, last-quarter, or a time such as -24h"),
        ("last-week", "-2x", 7, "expected last-week"),
        ("pipelines: all", "pipelines: clicks", 6, "expected `all` or a list of pipelines, found 'clicks'"),
        ("pipelines: all", "pipelines: []", 6, "expected `all` or a list"),
        ("pipelines: all", "pipelines: [clicks, a/b]", 6, "pipelines"),
        ("name: weekly", "name: week ly", 5, "name"),
        ("owners@example.com", "owners", 10, "expected one email address"),
        ("owners@example.com", '"a@b.example\\nBcc: c@d.example"', 10, "expected one email address"),
        ("to:", "cc:", 10, "reports[0].cc: expected one of these keys: name, "),
        ("    to: [owners@example.com]\n", "", 5, "expected `to` or `receivers`, found neither"),
        ("    pipelines: all\n", "", 5, "expected `pipelines` (`all` or a list) or `match`, found neither"),
        ("pipelines: all", "match: [severity=critical]", 6, "which is a label of incidents"),
        ("pipelines: all", "match: [team]", 6, "expected a matcher such as"),
        ("pipelines: all", "pipelines: [clicks]\n    match: [team=web]", 5, "found both"),
        ("range:", "formats: [doc]\n    range:", 7, "formats"),
        (
            "host: smtp.example.com,",
            "host: smtp.example.com, username: u,",
            3,
            "both `username` and `password` or neither",
        ),
        ("from: lagloss@example.com", 'from: "l@example.com\\r\\nBcc: x@y.example"', 3, "expected one email address"),
        ("kind: Reports", "kind: Alerting", 2, "kind"),
    ],
)
def test_an_error_in_a_file_names_its_line_and_what_was_expected(
    written: str, instead: str, line: int, problem: str
) -> None:
    text = HEAD + WEEKLY
    assert written in text
    with pytest.raises(BadDefinition) as found:
        read(text.replace(written, instead, 1))
    assert str(found.value).startswith(f"reports.yaml:{line}: ")
    assert problem in str(found.value)


def test_a_report_may_be_of_pipelines_by_label_and_go_to_receivers_without_a_mail_server() -> None:
    text = WEEKLY.replace("pipelines: all", "match: [team=web]").replace(
        "to: [owners@example.com]", "receivers: [chat]"
    )
    head = "\n".join(line for line in HEAD.splitlines() if not line.startswith("mail:")) + "\n"
    (report,) = read(head + text).reports
    web, other = (
        parse_definition(CHAIN.replace("{name: chain}", f"{{name: {name}, labels: {{team: {name}}}}}"))
        for name in ("web", "other")
    )
    assert report.chosen([other, web]) == [web]
    assert report.ways == "receiver chat"
    with pytest.raises(BadDefinition, match=r"reports\[0\].to: expected `mail`, the server"):
        read(head + WEEKLY)


def test_two_reports_of_one_name_are_refused_at_the_second() -> None:
    with pytest.raises(
        BadDefinition, match=r"reports.yaml:11: reports\[1\].name: expected each report once, found weekly"
    ):
        read(HEAD + WEEKLY + WEEKLY.removeprefix("reports:\n"))


def test_a_password_in_the_file_is_not_told_by_an_error_beside_it() -> None:
    mail = "{host: h, from: l@example.com, username: u, password: s3cret, tls: none}"
    with pytest.raises(BadDefinition) as found:
        read(HEAD.replace("{host: smtp.example.com, from: lagloss@example.com}", mail) + WEEKLY)
    assert "s3cret" not in str(found.value)


def test_the_reports_file_of_the_examples_can_be_used() -> None:
    text = (Path(__file__).parents[5] / "examples/reports.yaml").read_text("utf-8")
    assert [report.name for report in parse_yaml(ReportsFile, text, "examples/reports.yaml").reports] == [
        "weekly", "quarterly",
    ]  # fmt: skip
