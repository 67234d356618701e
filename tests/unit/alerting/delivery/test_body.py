"""The body of a notification, made from an incident's row."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from datetime import UTC, datetime

from alerting.cli.incident_text import details
from alerting.incidents.body import incident_body
from alerting.incidents.evidence import MAX_EXAMPLES, IncidentEvidence
from alerting.rules.assessment import BreachPlace
from lagloss.wire.traces import TraceContext
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.incidents.changes import IncidentRecord
from lagloss_server.incidents.incident import Incident, example_words
from lagloss_server.net.outcome import backoff_s
from lagloss_server.queries.named_messages import NamedMessage
from lagloss_server.store.store import MissingMessage

START = 1_795_250_400
LOST = MissingMessage(START, 2**64 - 1, None, "lost", ["src->mid"], "src.out", START * 1000 + 250.0)
EVIDENCE = IncidentEvidence(
    where=[BreachPlace("link", "src->mid", 0.75, "3 lost, 75% of the loss", 3)],
    examples=[LOST] * 25,
    messages=10,
    lost={"min": 1, "max": 2},
)
OPEN = Incident(
    id=uuid.UUID(int=5),
    pipeline="chain",
    rule="loss",
    kind="loss",
    severity="critical",
    state="open",
    opened_at=datetime(2026, 11, 21, 8, 42, tzinfo=UTC),
    resolved_at=None,
    acknowledged_at=None,
    acknowledged_by=None,
    first_window_s=START,
    last_window_s=START + 60,
    value=0.1,
    worst=0.3,
    target=0.01,
    detail={
        **EVIDENCE.document(),
        "what": "loss_ratio",
        "unit": "ratio",
        "text": "10.00% of messages lost, target 1.00%",
        "worst_window": START,
        "windows": 2,
        "notes": [],
        "resolved_because": None,
    },
)
DASHBOARD = "http://dash:8050/"


def ended(because: str) -> Incident:
    return replace(
        OPEN, state="resolved", resolved_at=OPEN.opened_at, detail={**OPEN.detail, "resolved_because": because}
    )


def test_the_body_says_what_since_when_where_and_gives_examples_links_and_commands() -> None:
    body = incident_body(OPEN, "opened", {"team": "checkout"}, DASHBOARD)
    assert json.loads(json.dumps(body)) == body
    assert (body["version"], body["type"]) == (1, "incident.opened")
    breach = body["breach"]
    assert (breach["value"], breach["worst"], breach["target"], breach["messages"]) == (0.1, 0.3, 0.01, 10)
    assert (breach["window_start"], breach["window_end"]) == ("2026-11-21T08:41:00Z", "2026-11-21T08:42:00Z")
    assert breach["worst_window_start"] == body["since"] == "2026-11-21T08:40:00Z"
    assert body["where"] == [
        {"kind": "link", "name": "src->mid", "share": 0.75, "text": "3 lost, 75% of the loss", "lost": 3}
    ]
    assert len(body["examples"]) == MAX_EXAMPLES
    assert body["examples"][0]["id_hash"] == "ffffffffffffffff"
    assert body["links"] == {
        "dashboard": "http://dash:8050/pipelines/chain/windows/2026-11-21T08:41:00Z",
        "incident": f"http://dash:8050/incidents/{OPEN.id}",
        "runbook": "http://dash:8050/runbooks/loss",
    }
    assert body["commands"]["silence"].startswith("lagloss alerts silence pipeline=chain rule=loss")
    assert body["summary"] == (
        "chain: 10.00% of messages lost, target 1.00%, since 2026-11-21T08:40:00Z, most of it at link src->mid (75 %)"
    )


def test_an_example_names_its_trace_and_where_that_is_shown() -> None:
    trace = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    evidence = IncidentEvidence(examples=[LOST, replace(LOST, trace=trace)])
    plain, traced = evidence.document(TraceLinks("https://traces.example/{trace_id}"))["examples"]
    ids = {"trace_id": trace.trace_id, "span_id": trace.span_id}
    assert traced == {**plain, **ids, "trace_url": f"https://traces.example/{trace.trace_id}"}
    assert evidence.document()["examples"][1] == {**plain, **ids}
    shown = replace(OPEN, detail={**OPEN.detail, "examples": [plain, traced]})
    lines = [line for line in details(IncidentRecord(shown, [], []).document("")) if "src.out" in line]
    assert [line.partition(", trace ")[2] for line in lines] == ["", traced["trace_url"]]


def test_examples_of_lag_say_how_late_and_what_held_them_and_dead_ones_why() -> None:
    late = NamedMessage(
        START, 7, "m-1", "late", ("link src->mid",), START * 1000.0, "snk.out", START * 1000 + 9_500.0, 9_500.0,
        hop="link src->mid", hop_ms=8_990.0,
    )  # fmt: skip
    dead = replace(late, kind="dead", places=("node mid",), hop=None, hop_ms=None, reason="no\nschema")
    slow, buried = IncidentEvidence(examples=[late, dead]).document()["examples"]
    assert (slow["lag_ms"], slow["hop"], slow["hop_ms"]) == (9_500.0, "link src->mid", 8_990.0)
    assert example_words(slow) == "late: 9.5 s, 9 s of it at link src->mid"
    assert (buried["reason"], "lag_ms" in buried) == ("no\nschema", False)
    assert example_words(buried) == "dead at node mid (no schema), last seen at snk.out"


def test_a_pipelines_own_runbooks_go_before_the_dashboards() -> None:
    own = incident_body(replace(OPEN, runbooks="https://wiki/lagloss"), "opened", {}, "http://dash")
    assert own["links"]["runbook"] == "https://wiki/lagloss/loss"
    nowhere = incident_body(OPEN, "opened", {}, "")["links"]
    assert nowhere == {"dashboard": None, "incident": None, "runbook": None}


def test_the_end_says_why_it_is_over() -> None:
    summaries = {
        why: incident_body(ended(why), "resolved", {}, DASHBOARD)["summary"]
        for why in ("recovered", "revised", "deleted")
    }
    assert summaries["recovered"] == (
        "chain: loss recovered after 2 min; at worst 10.00% of messages lost, target 1.00%"
    )
    assert "loss revised: no breach after its windows were closed again" in summaries["revised"]
    assert "no longer evaluated (deleted)" in summaries["deleted"]


def test_retries_wait_longer_each_time_but_five_minutes_at_most() -> None:
    assert [backoff_s(attempts, 0.5) for attempts in (1, 2, 3, 9, 10, 10_000)] == [1, 2, 4, 256, 300, 300]
    assert 225 <= backoff_s(50, 0.0) < backoff_s(50, 0.999) <= 375
