"""The range at which pages open, without a server."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from dashboard.pages import opening
from dashboard.pages.report.page import elsewhere
from dashboard.pages.report.page import requested_range as month_of
from dashboard.reports.ranges import named_range
from dashboard.reports.wording import range_sentence
from dashboard.request.links import Address
from dashboard.request.shown_range import RANGES_S, requested_range

NOW_S = 1_795_780_800.0  # 2026-11-27 12:00 UTC
HERE = Address("/pipelines/chain", {"zone": "UTC"})


@pytest.mark.parametrize(
    ("age_s", "range_"),
    [(None, None), (60, None), (3_000, None), (7_000, "3h"), (5 * 3_600, "6h"), (80_000, "24h"), (8 * 86_400, "30d")],
)
def test_a_page_opens_at_the_shortest_range_that_holds_the_newest_data(age_s: int | None, range_: str | None) -> None:
    newest_s = None if age_s is None else NOW_S - age_s
    opened = opening.at_range(HERE, newest_s, NOW_S)
    assert opened.query.get("range") == range_
    if newest_s is not None:
        span = requested_range(opened.query, NOW_S)
        assert span.from_s <= newest_s < span.to_s


def test_data_older_than_all_ranges_is_shown_by_its_last_hour() -> None:
    newest_s = NOW_S - RANGES_S["90d"] - 86_400
    span = requested_range(opening.at_range(HERE, newest_s, NOW_S).query, NOW_S)
    assert (span.range, span.length_s) == (None, 3_600)
    assert span.from_s <= newest_s < span.to_s


@pytest.mark.parametrize(
    ("newest_s", "range_"),
    [(None, "this-month"), (NOW_S - 600, "this-month"), (NOW_S - 40 * 86_400, "2026-10")],
)
def test_a_report_opens_at_this_month_or_the_newest_one_with_data(
    monkeypatch: pytest.MonkeyPatch, newest_s: float | None, range_: str
) -> None:
    monkeypatch.setattr(opening, "newest_data_s", lambda *_: newest_s)
    services: Any = Mock()
    opened = opening.at_month(services, {"pipeline": "chain"}, HERE, NOW_S)
    assert opened.query["range"] == range_
    assert month_of(opened, NOW_S).unit == "month"


def test_a_page_without_a_range_leads_to_others_without_one() -> None:
    assert elsewhere(Address("/pipelines/chain/report", {"zone": "UTC"})).query == {"zone": "UTC"}


def test_the_range_is_told_in_words_with_the_first_data() -> None:
    month = named_range("this-month", "UTC", NOW_S)
    assert range_sentence(month, 25 * 1_440 + 821, NOW_S) == (
        "November 2026 so far, since Thu 2026-11-26 13:41 (first data), UTC"
    )
    assert range_sentence(month, 0, NOW_S) == "November 2026 so far, UTC"
    assert range_sentence(named_range("2026-10", "UTC", NOW_S), 0, NOW_S) == "October 2026, UTC"
    week = named_range("2026-W47", "UTC", NOW_S)
    assert range_sentence(week, week.length_s // 60, NOW_S).startswith("2026-W47")
