"""The webhook's body."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

from alerting.message import IncidentFacts, incident_body, shares
from alerting.outbox import backoff_s
from lagloss.store import MissingMessage
from tests.window_documents import chain, document

START = 1_795_250_400


def facts(change: str = "opened", why: str = "") -> IncidentFacts:
    return IncidentFacts(
        id=uuid.UUID(int=5),
        pipeline="chain",
        rule="loss",
        change=change,
        why=why,
        opened_at=datetime(2026, 11, 21, 8, 42, tzinfo=UTC),
        resolved_at=datetime(2026, 11, 21, 8, 50, tzinfo=UTC) if change == "resolved" else None,
        breaches={START: 0.3, START + 60: 0.1},
        worst_ratio=0.3,
    )


def lossy() -> list[dict[str, object]]:
    return [
        document(chain(), START, verdict="loss", messages=10, lost={"src->mid": (2, 2), "mid": (1, 1)}),
        document(chain(), START + 60, verdict="loss", messages=10, lost={"src->mid": (1, 2)}),
    ]


def test_the_body_says_what_since_when_where_and_gives_examples_and_a_link() -> None:
    lost = MissingMessage(2**64 - 1, None, "lost", ["src->mid"], "src.out", START * 1000 + 250.0)
    body = incident_body(facts(), 0.01, lossy(), [lost] * 25, "http://dash:8050/")
    assert json.loads(json.dumps(body)) == body
    assert body["version"] == 1
    assert body["type"] == "incident.opened"
    assert body["breach"]["value"] == 0.1
    assert body["breach"]["worst"] == 0.3
    assert body["breach"]["target"] == 0.01
    assert body["breach"]["window_start"] == "2026-11-21T08:41:00Z"
    assert body["since"] == "2026-11-21T08:40:00Z"
    assert body["where"][0] == {"kind": "link", "name": "src->mid", "lost": 3, "share": 0.75}
    assert len(body["examples"]) == 20
    assert body["examples"][0]["id_hash"] == "ffffffffffffffff"
    assert body["links"]["dashboard"] == "http://dash:8050/?pipeline=chain&window=2026-11-21T08:41:00Z"
    assert body["summary"] == (
        "chain: 10.00% of messages lost, target 1.00%, since 2026-11-21T08:40:00Z, most of it at link src->mid (75%)"
    )


def test_a_revision_says_that_there_was_no_loss() -> None:
    body = incident_body(facts("resolved", "revised"), 0.01, [], [], "")
    assert body["incident"]["resolved_because"] == "revised"
    assert "no loss after all" in body["summary"]
    assert body["links"]["dashboard"] is None
    assert body["breach"]["messages"] is None


def test_shares_are_of_what_is_lost_for_certain() -> None:
    assert [(place["name"], place["lost"]) for place in shares(lossy())] == [("src->mid", 3), ("mid", 1)]
    assert shares([]) == []


def test_retries_wait_longer_each_time_but_five_minutes_at_most() -> None:
    assert [backoff_s(attempts, 0.5) for attempts in (1, 2, 3, 9, 10, 10_000)] == [1, 2, 4, 256, 300, 300]
    assert 225 <= backoff_s(50, 0.0) < backoff_s(50, 0.999) <= 375
