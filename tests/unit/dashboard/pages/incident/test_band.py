"""The dashboard's band of incidents, without a server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any
from uuid import UUID

import pytest
from plotly.utils import PlotlyJSONEncoder

from dashboard.pages.incident.cards import band, broken, failures
from dashboard.queries.alerts import OpenIncident
from dashboard.request.current_user import Person
from dashboard.request.links import Address
from dashboard.web.runbook_page import runbook_html
from lagloss_server.incidents.actions import Silence
from lagloss_server.incidents.deliveries import Delivery
from lagloss_server.incidents.incident import Incident, Withheld, place_words
from lagloss_server.incidents.runbooks import KINDS, runbook
from tests.support.incident_rows import detail_of

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HERE = Address("/pipelines/clicks", {"zone": "Europe/Berlin", "range": "6h", "path": "ga"})
VIEWER, OPERATOR = Person("vera", "viewer"), Person("olga", "operator")
ID = UUID("0a000000-0000-4000-8000-000000000001")


def incident(**more: Any) -> Incident:
    given: dict[str, Any] = {
        "id": ID, "pipeline": "clicks", "rule": "loss", "kind": "loss", "severity": "critical", "state": "open",
        "opened_at": NOW - timedelta(minutes=9), "resolved_at": None, "acknowledged_at": None, "acknowledged_by": None,
        "first_window_s": int(NOW.timestamp()) - 720, "last_window_s": int(NOW.timestamp()) - 660,
        "value": 0.03, "worst": 0.05, "target": 0.01,
        "detail": detail_of(text="3.00% of messages lost, target 1.00%"),
    }  # fmt: skip
    return Incident(**{**given, **more})


def drawn(standing: OpenIncident, person: Person = OPERATOR) -> str:
    """The band as Dash sends it, as text."""
    return json.dumps(band([standing], HERE, person, NOW.timestamp()), cls=PlotlyJSONEncoder)


def failed(receiver: str, hours_ago: float, works_hours_ago: float | None = None) -> Delivery:
    at = NOW - timedelta(hours=hours_ago)
    works = None if works_hours_ago is None else NOW - timedelta(hours=works_hours_ago)
    return Delivery(
        id=1, receiver=receiver, action="trigger", change="opened", outcome="failed", attempts=1, last_error="HTTP 410",
        created_at=at, next_attempt_at=None, done_at=at, pipeline="clicks", rule="loss", works_since=works,
    )  # fmt: skip


def test_nothing_is_shown_where_all_is_well() -> None:
    assert band([], HERE, VIEWER, NOW.timestamp()) is None
    assert failures([], HERE, NOW.timestamp()) is None


def test_an_incident_leads_to_its_page_its_window_and_its_runbook_in_the_viewers_zone() -> None:
    text = drawn(OpenIncident(incident()))
    carried = "?zone=Europe/Berlin&range=6h"
    for part in (
        f"/incidents/{ID}{carried}",
        f"/incidents/{ID}{carried}&do=acknowledge",
        f"/pipelines/clicks/windows/2026-11-21T11:49:00Z{carried}",
        "/runbooks/loss",
        "2026-11-21 12:48 CET",
        "2026-11-21 11:48 UTC",
        "not acknowledged",
    ):
        assert part in text, part


def test_an_operator_can_take_it_and_a_viewer_sees_a_button_that_says_why_not() -> None:
    assert "do=acknowledge" in drawn(OpenIncident(incident()), OPERATOR)
    assert "do=" not in drawn(OpenIncident(incident()), VIEWER)
    assert "operators only" in drawn(OpenIncident(incident()), VIEWER)
    taken = OpenIncident(incident(acknowledged_at=NOW, acknowledged_by="ann"))
    assert "do=acknowledge" not in drawn(taken)
    assert "acknowledged by ann at " in drawn(taken)


def test_a_silence_says_until_when_and_one_that_has_ended_withholds_nothing() -> None:
    silence = Silence("0f", ["rule=loss"], "known", "bob", NOW, NOW + timedelta(hours=2))
    text = drawn(OpenIncident(incident(), silence), OPERATOR)
    assert "&tab=silences&do=end-silence&of=0f" in text
    assert "do=silence&" not in text
    assert "notifications withheld: silence 0f by bob: known" in text
    assert "2026-11-21 15:00:00 CET" in text
    assert OpenIncident(incident(withheld=silence.withholds())).withheld is None
    nightly = Withheld("maintenance", "nightly", reason="compaction")
    assert str(OpenIncident(incident(withheld=nightly)).withheld) == "maintenance nightly: compaction"


def test_a_silence_is_known_by_its_kind_whatever_its_words() -> None:
    odd = Silence("by hand: 1", ["rule=loss"], "a\nb: c by d", "silence: by", NOW, NOW + timedelta(hours=2))
    stored = incident(withheld=odd.withholds())
    assert OpenIncident(stored, odd).document()["withheld"] == "silence by hand: 1 by silence: by: a\nb: c by d"
    assert OpenIncident(stored).withheld is None
    like = Withheld("maintenance", "silence", reason="silence 0f by bob: known")
    assert OpenIncident(incident(withheld=like)).withheld == like


def test_only_the_first_ten_are_shown_and_the_rest_is_counted() -> None:
    shown = band([OpenIncident(incident())] * 12, HERE, OPERATOR, NOW.timestamp())
    text = json.dumps(shown, cls=PlotlyJSONEncoder)
    assert "12 open incidents" in text
    assert "and 2 more" in text
    assert "/alerts?zone=Europe/Berlin&range=6h&pipeline=clicks" in text


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
