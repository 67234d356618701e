"""`lagloss alerts` as people type it, on a real PostgreSQL."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import update
from typer.testing import CliRunner

from alerting.cli.incidents import app
from lagloss.errors import LaglossError
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.store import Store
from tests.support.incident_rows import EXAMPLE, NOON, WHERE, store_delivery, store_incident, store_receiver
from tests.support.window_documents import chain

ID = UUID("0a000000-0000-4000-8000-000000000001")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    monkeypatch.setenv("LAGLOSS_DASHBOARD_URL", "http://lagloss")
    monkeypatch.setenv("LOGNAME", "carol")


@pytest.fixture
def incident(store: Store) -> UUID:
    """An open one of pipeline `chain`, told to one receiver and refused by another."""
    store.apply(chain())
    with store.engine.begin() as connection:
        store_incident(connection, id_=ID)
        store_delivery(connection, ID, "on-call")
        store_delivery(connection, ID, "hook", "failed", error="HTTP 410")
    return ID


def run(*arguments: str) -> Done:
    """A command's exit code, as `main` makes it of an error."""
    done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, LaglossError):
        return Done(done.exception.exit_code, done.stdout, str(done.exception))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return Done(done.exit_code, done.stdout, done.stderr)


def test_list_shows_open_incidents_a_line_each_and_all_of_them_on_demand(store: Store, incident: UUID) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, pipeline="other", rule="lag", resolved_at=datetime.now(UTC), because="recovered")
    [heads, line] = run("list").out.splitlines()
    assert heads.split()[:3] == ["id", "severity", "pipeline"]
    for part in ("0a000000 ", "critical", "3.20% of messages lost, target 1.00%", "2026-11-21 11:57", "link src->mid"):
        assert part in line
    assert [found["pipeline"] for found in run("list", "--json").document] == ["chain"]
    assert [found["state"] for found in run("list", "--all", "--json").document] == ["open", "resolved"]
    assert "resolved, recovered" in run("list", "--all").out
    assert run("list", "--pipeline", "chain", "--json").document[0]["since"] == "2026-11-21T11:57:00Z"
    assert run("list", "--pipeline", "nobody").code == 2
    assert run("list", "--since", "yesterday").code == 2


def test_list_says_so_when_nothing_is_open() -> None:
    assert run("list") == Done(0, "no open incidents\n", "")
    assert run("list", "--json").document == []


def test_show_says_all_there_is_of_an_incident(incident: UUID) -> None:
    run("ack", "0a", "--note", "looking at mid", "--author", "ann")
    shown = run("show", "0a", "--json").document
    assert shown["breach"] == {
        "value": 0.032, "worst": 0.05, "target": 0.01, "text": "3.20% of messages lost, target 1.00%",
    }  # fmt: skip
    assert (shown["where"], shown["examples"], shown["windows"]["count"]) == ([WHERE], [EXAMPLE], 2)
    assert shown["links"]["runbook"] == "http://lagloss/runbooks/loss"
    assert [change["change"] for change in shown["changes"]] == ["opened", "acknowledged"]
    assert [(sent["receiver"], sent["outcome"]) for sent in shown["deliveries"]] == [
        ("on-call", "sent"),
        ("hook", "failed"),
    ]
    text = run("show", "0a").out
    for part in (
        "0a000000-0000-4000-8000-000000000001 · chain · loss · critical",
        "since        2026-11-21T11:57:00Z, last window 2026-11-21T11:58:00Z, 2 windows",
        "acknowledged by ann at ",
        "link src->mid: 94 lost, 98% of the loss",
        "m-1  lost at link src->mid, last seen at src.out",
        "acknowledged by ann: looking at mid",
        "hook  opened  failed, attempts: 1: HTTP 410",
        "http://lagloss/incidents/0a000000-0000-4000-8000-000000000001",
        "http://lagloss/pipelines/chain/windows/2026-11-21T11:58:00Z",
    ):
        assert part in text
    assert run("show", "ff").code == 2


def test_ack_is_by_who_runs_it_and_a_second_one_is_told_who_was_first(incident: UUID) -> None:
    assert run("ack", "0a") == Done(0, f"{incident}: acknowledged by carol\n", "")
    again = run("ack", "0a", "--author", "bob")
    assert again.code == 2
    assert re.match("Incident .* was already acknowledged by carol at ", again.err)
    assert run("ack").code == 2


def test_a_silence_is_made_shown_and_ended(incident: UUID) -> None:
    made = run("silence", "pipeline=chain", "rule=loss", "--for", "2h", "--reason", "known", "--author", "ann")
    assert (made.code, made.err.endswith("; it matches 1 open incident.\n")) == (0, True)
    silence_id = made.out.strip()
    [shown] = run("silences", "--json").document
    assert (shown["id"], shown["matchers"]) == (silence_id, ["pipeline=chain", "rule=loss"])
    assert "pipeline=chain rule=loss" in run("silences").out
    assert run("unsilence", silence_id) == Done(0, f"{silence_id}: ended\n", "")
    assert run("silences", "--json").document == []
    assert run("unsilence", silence_id).code == 2


def test_a_silence_that_matches_nothing_now_says_so() -> None:
    made = run("silence", "pipline=chain", "--for", "1h", "--reason", "typo", "--author", "ann", "--json")
    assert made.document["open_incidents"] == []
    made = run("silence", "pipline=chain", "--for", "1h", "--reason", "typo", "--author", "ann")
    assert "no open incident" in made.err


@pytest.mark.parametrize(
    "wrong",
    [
        ["silence", "--for", "2h", "--reason", "known", "--author", "ann"],
        ["silence", "pipeline=chain", "--for", "2h", "--author", "ann"],
        ["silence", "pipeline=chain", "--for", "2h", "--reason", "known"],
        ["silence", "pipeline=chain", "--for", "2h", "--reason", "", "--author", "ann"],
        ["silence", "pipeline=chain", "--for", "25h", "--reason", "known", "--author", "ann"],
        ["silence", "pipeline=chain", "--for", "soon", "--reason", "known", "--author", "ann"],
        ["silence", "chain", "--for", "2h", "--reason", "known", "--author", "ann"],
    ],
)
def test_a_wrong_silence_is_a_usage_error(wrong: list[str]) -> None:
    assert run(*wrong).code == 2


def test_a_test_tells_what_the_receiver_said(store: Store) -> None:
    with store.engine.begin() as connection:
        store_receiver(connection, "hook")
    for outcome, error, code, told in (
        ("sent", None, 0, "hook: sent"),
        ("failed", "HTTP 410", 1, "hook: refused: HTTP 410"),
    ):
        alerter = threading.Thread(target=record, args=[store, outcome, error])
        alerter.start()
        done = run("test", "hook")
        alerter.join()
        assert (done.code, (done.out + done.err).strip()) == (code, told)
    unknown = run("test", "sms")
    assert (unknown.code, "existing receivers: hook" in unknown.err) == (2, True)


def record(store: Store, outcome: str, error: str | None) -> None:
    """What an alerter does with the message that waits."""
    waits = OutboxMessageRow.done_at.is_(None)
    answer = (
        update(OutboxMessageRow)
        .where(waits)
        .values(outcome=outcome, attempts=1, last_error=error, done_at=datetime.now(UTC))
    )
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with store.engine.begin() as connection:
            if connection.execute(answer).rowcount:
                return
        time.sleep(0.02)


def test_a_test_without_an_alerter_exits_with_3(store: Store) -> None:
    with store.engine.begin() as connection:
        store_receiver(connection, "hook")
    done = run("test", "hook", "--wait", "0.3")
    assert (done.code, "no alerter has become leader yet" in done.err) == (3, True)


def test_stats_tell_times_by_severity_and_rule(store: Store) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, resolved_at=NOON.replace(minute=30), acknowledged_at=NOON.replace(minute=2))
        store_incident(connection, rule="lag", severity="warning", pipeline="b")
    span = ("--from", "2026-11-21T00:00:00Z", "--to", "2026-11-22T00:00:00Z")
    told = run("stats", *span, "--json").document
    assert (told["from"], told["all"]["incidents"]) == ("2026-11-21T00:00:00Z", 2)
    assert told["by_severity"]["critical"]["mean_to_resolve_s"] == 1_800
    assert told["by_rule"]["lag"]["mean_to_acknowledge_s"] is None
    lines = {line.split()[0]: line.split()[1:] for line in run("stats", *span).out.splitlines()[1:]}
    assert lines["loss"] == ["1", "1", "2", "min", "2", "min", "1", "30", "min", "30", "min", "0"]
    assert run("stats", "--from", "then").code == 2
