from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr

from alerting.incidents.suppression import ActiveSilence, Maintenance, SuppressionContext, suppression_reason
from lagloss_server.model.matchers import Matcher

LABELS = {"pipeline": "clicks", "rule": "on-time", "severity": "warning"}
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CLICKS = (Matcher.parse("pipeline=clicks"),)


def nightly(zone: str = "Europe/Berlin") -> Maintenance:
    starts = rrulestr("FREQ=DAILY;BYHOUR=2;BYMINUTE=0;BYSECOND=0", dtstart=datetime.fromisoformat("2026-01-01"))
    return Maintenance("nightly", CLICKS, starts, ZoneInfo(zone), timedelta(hours=1), "compaction")


def test_without_a_reason_nobody_is_kept_from_being_told() -> None:
    assert suppression_reason(LABELS, ("loss",), SuppressionContext(), NOW) is None


def test_a_silence_withholds_what_it_matches_and_says_whose_it_is_and_why() -> None:
    silence = ActiveSilence("s1", CLICKS, "ann", "known")
    around = SuppressionContext(silences=[silence])
    assert str(suppression_reason(LABELS, (), around, NOW)) == "silence s1 by ann: known"
    assert suppression_reason({**LABELS, "pipeline": "orders"}, (), around, NOW) is None


def test_an_open_incident_that_tells_of_it_inhibits_and_only_that() -> None:
    around = SuppressionContext(open_rules={"loss": "warning", "lag": "critical"})
    assert str(suppression_reason(LABELS, ("loss", "lag"), around, NOW)) == "inhibited: loss is open and covers it"
    assert suppression_reason(LABELS, ("blind/evidence",), around, NOW) is None


def test_a_ticket_withholds_no_page_and_a_page_withholds_both() -> None:
    page = {**LABELS, "severity": "critical"}
    for severity, withheld in (("warning", (True, False)), ("critical", (True, True))):
        around = SuppressionContext(open_rules={"loss": severity})
        found = tuple(suppression_reason(labels, ("loss",), around, NOW) is not None for labels in (LABELS, page))
        assert found == withheld


def test_a_blind_pipeline_upstream_inhibits() -> None:
    assert suppression_reason(LABELS, (), SuppressionContext(blind_upstream={"orders"}), NOW) is not None


@pytest.mark.parametrize(
    ("moment", "is_on"),
    [
        ("2026-07-01T00:00:00Z", True),  # 2:00 in Berlin's summer
        ("2026-07-01T00:59:59Z", True),
        ("2026-07-01T01:00:00Z", False),
        ("2026-06-30T23:59:59Z", False),
        ("2026-12-01T01:00:00Z", True),  # 2:00 in its winter
        ("2026-12-01T00:30:00Z", False),
        ("2025-12-01T01:00:00Z", False),  # before the first
    ],
)
def test_maintenance_hangs_on_the_clock_of_its_time_zone(moment: str, is_on: bool) -> None:
    now = datetime.fromisoformat(moment)
    assert nightly().is_on(now) is is_on
    assert (suppression_reason(LABELS, (), SuppressionContext(maintenance=[nightly()]), now) is not None) is is_on


def test_maintenance_of_one_pipeline_leaves_the_others() -> None:
    during = datetime(2026, 12, 1, 1, 30, tzinfo=UTC)
    labels = {**LABELS, "pipeline": "orders"}
    assert suppression_reason(labels, (), SuppressionContext(maintenance=[nightly()]), during) is None
