"""`lagloss lost-afterwards` and the list of messages name what is lost afterwards, with its minute and its row."""

from __future__ import annotations

import json
import time

import pytest
from typer.testing import CliRunner, Result

from dashboard.queries.lost_afterwards import read_lost_afterwards
from dashboard.queries.problem_messages import LOST_AFTERWARDS, MessageFilters, read_problem_messages
from lagloss.errors import EXIT_OK
from lagloss.wire.format import hash_id
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.cli.main import app
from lagloss_server.incidents.lost_afterwards_store import read_lost_of_ids
from lagloss_server.model.message_ids import escape_id
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.store import Store
from tests.support.lost_rows import store_lost
from tests.support.window_documents import chain

START_S = int(time.time()) // 60 * 60 - 3_600
MARKUP = "[red]b"


@pytest.fixture
def orders(store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    store.apply(chain())
    with store.engine.begin() as connection:
        store_lost(connection, "chain", START_S, "a", MARKUP)
        store_lost(connection, "chain", START_S + 60, escape_id("c\n"), cause="recreated", sample=1 << 31)
    return store


def run(*words: str, code: int = EXIT_OK) -> Result:
    done = CliRunner().invoke(app, ["lost-afterwards", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return done


def test_messages_are_named_with_their_times_and_what_became_of_their_rows(orders: Store) -> None:
    document = json.loads(run("chain", "--json").stdout)
    assert (document["lost"], document["accepted"]) == (3, 0)
    assert {message["message_id"] for message in document["messages"]} == {"a", MARKUP, "c\n"}
    assert [(minute["lost"], minute["share"], minute["cause"]) for minute in document["minutes"]] == [
        (2, 1.0, "deleted"),
        (1, 0.5, "recreated"),
    ]
    shown = run("chain").stdout
    for part in (MARKUP, "c\\x0a", "gone since the table was created again", "3 messages of chain lost afterwards"):
        assert part in shown, part
    assert json.loads(run("chain", "--from", "-59m", "--json").stdout)["lost"] in (0, 1)
    assert len(json.loads(run("chain", "--limit", "1", "--json").stdout)["messages"]) == 1


def test_accepting_needs_a_reason_and_is_shown(orders: Store) -> None:
    assert isinstance(run("nothing", code=1).exception, UnknownPipeline)
    assert "expected the reason" in str(run("chain", "--accept", " ", code=1).exception)
    run("chain", "--accept", "request 17")
    document = json.loads(run("chain", "--json").stdout)
    assert (document["lost"], document["accepted"]) == (3, 3)
    assert {minute["accepted_why"] for minute in document["minutes"]} == {"request 17"}
    assert "3 of them accepted" in run("chain").stdout


def test_the_list_of_messages_has_them_by_minute_and_by_kind(orders: Store) -> None:
    listed = read_problem_messages(orders, "chain", MessageFilters())
    assert [row.message.window_start_s for row in listed.rows] == [START_S + 60, START_S, START_S]
    assert (listed.from_s, listed.to_s) == (START_S, START_S + 60)
    assert {(row.message.kind, row.message.places) for row in listed.rows} == {(LOST_AFTERWARDS, ("node snk",))}
    assert len(read_problem_messages(orders, None, MessageFilters(kind=LOST_AFTERWARDS)).rows) == 3
    assert len(read_problem_messages(orders, None, MessageFilters(kind="lost")).rows) == 0
    assert len(read_problem_messages(orders, None, MessageFilters(), START_S + 60).rows) == 2


def test_statements_of_a_message_are_known_by_the_hash_of_its_id(orders: Store) -> None:
    with orders.engine.connect() as connection:
        (lost,) = read_lost_of_ids(connection, "chain", [hash_id("a"), 7])
        assert read_lost_of_ids(connection, "other", [hash_id("a")]) == []
    assert (lost.message_id, lost.source) == ("a", "table public.orders of shop")


def test_a_range_has_its_own_messages_alone(orders: Store) -> None:
    document = read_lost_afterwards(orders, "chain", TimeRange(START_S, START_S + 60), 1_000)
    assert (document["lost"], len(document["minutes"])) == (2, 1)
    assert document["messages"] is not None
    assert {message["message_id"] for message in document["messages"]} == {"a", MARKUP}
