"""The dashboard's band of incidents, and incidents as lines for a terminal, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest

from dashboard.incident_band import band, broken, failures
from dashboard.runbook_page import runbook_html
from lagloss.incidents import Delivery, place_words
from lagloss.runbooks import KINDS, runbook

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def failed(receiver: str, hours_ago: float, works_hours_ago: float | None = None) -> Delivery:
    at = NOW - timedelta(hours=hours_ago)
    works = None if works_hours_ago is None else NOW - timedelta(hours=works_hours_ago)
    return Delivery(
        id=1, receiver=receiver, action="trigger", change="opened", outcome="failed", attempts=1, last_error="HTTP 410",
        created_at=at, next_attempt_at=None, done_at=at, pipeline="clicks", rule="loss", works_since=works,
    )  # fmt: skip


def test_nothing_is_shown_where_all_is_well() -> None:
    assert band([], NOW.timestamp()) is None
    assert failures([], NOW.timestamp()) is None


def test_receivers_that_do_not_work_come_first_and_count_their_failures() -> None:
    found = broken([failed("chat", 1, 0.5), failed("sms", 2), failed("sms", 100)], NOW)
    assert [(each.newest.receiver, each.count, each.works_since is None) for each in found] == [
        ("sms", 2, True),
        ("chat", 1, False),
    ]


def test_a_failure_is_forgotten_a_day_later_only_if_its_receiver_works_again() -> None:
    assert broken([failed("chat", 23, 1)], NOW)
    assert not broken([failed("chat", 25, 1)], NOW)
    assert broken([failed("chat", 25)], NOW)


def test_a_place_is_told_with_what_is_known_of_it() -> None:
    place = {"kind": "link", "name": "a->b", "share": None, "text": "94 lost"}
    assert place_words(place) == "link a->b: 94 lost"
    assert place_words({**place, "text": ""}) == "link a->b"


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hrefs += [value or "" for name, value in attrs if name == "href" and tag == "a"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_runbook_page_loads_nothing_and_leads_only_to_runbooks_and_the_dashboard(kind: str) -> None:
    text, links = runbook_html(kind), Links()
    links.feed(text)
    assert set(links.hrefs) <= {"/", *(f"/runbooks/{each}" for each in KINDS), *KINDS}
    assert "<script" not in text
    assert "src=" not in text
    assert "<table>" in text


def test_there_is_no_runbook_of_an_unknown_kind() -> None:
    for unknown in ("nothing", "../errors", "loss.md"):
        with pytest.raises(KeyError):
            runbook(unknown)
