"""Alerts as Alertmanager's API takes them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from alerting.delivery.transports.alertmanager import alert, batches, labels
from tests.fakes.notifications import notification

NOW = datetime(2026, 11, 21, 9, 0, tzinfo=UTC)


def test_an_alert_is_named_by_its_kind_and_carries_the_definitions_labels() -> None:
    assert labels(notification(kind="dead-letters", rule="dead-letters")) == {
        "alertname": "LaglossDeadLetters",
        "pipeline": "clicks",
        "rule": "dead-letters",
        "severity": "critical",
        "team": "checkout",
    }


def test_a_definitions_label_cannot_take_the_place_of_one_of_ours() -> None:
    assert labels(notification(labels={"severity": "none", "alertname": "x", "a.b": "1"})) == {
        "alertname": "LaglossLoss",
        "pipeline": "clicks",
        "rule": "loss",
        "severity": "critical",
        "a_b": "1",
    }


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_label_names_are_valid_and_no_value_is_empty(given_labels: dict[str, str]) -> None:
    for name, value in labels(notification(labels=given_labels)).items():
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
        assert value.strip()


def test_an_open_incident_expires_and_a_resolved_one_has_ended() -> None:
    opened, resolved = alert(notification(), NOW, 180), alert(notification("resolve"), NOW, 180)

    assert opened["startsAt"] == resolved["startsAt"] == "2026-11-21T08:43:02.120+00:00"
    assert opened["endsAt"] == (NOW + timedelta(seconds=180)).isoformat(timespec="milliseconds")
    assert resolved["endsAt"] == "2026-11-21T08:50:02.120+00:00"
    assert opened["labels"] == resolved["labels"]
    assert opened["generatorURL"].startswith("http://lagloss.example/pipelines/clicks/windows/")


def test_an_alert_never_ends_before_it_starts_even_if_clocks_disagree() -> None:
    before_it_opened = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
    for action in ("trigger", "resolve"):
        found = alert(notification(action), before_it_opened, 180)
        assert found["startsAt"] <= found["endsAt"]


def test_many_alerts_go_in_several_requests_none_of_which_is_too_long() -> None:
    alerts = [alert(notification(number=number, rule=f"lag/node/{number}"), NOW, 180) for number in range(300)]
    bodies = batches(alerts, 50_000)

    assert len(bodies) > 1
    assert all(len(text) <= 50_000 for text in bodies)
    assert [found for text in bodies for found in json.loads(text)] == alerts
