"""What taps state as lost afterwards opens an incident that names the messages, until they are back or accepted."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import delete, func, select, update

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.incidents.pre_check import PreCheck, SettledPipeline
from alerting.rules.lost_afterwards import LostAfterwards
from alerting.views.view_cache import ViewCache
from lagloss.errors import LaglossError
from lagloss_server.incidents.lost_afterwards import by_node
from lagloss_server.incidents.lost_afterwards_store import (
    accept,
    read_lost_messages,
    read_lost_minutes,
    read_outstanding,
)
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.audit import audit_table
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow
from lagloss_server.store.store import Store
from tests.support.alert_views import rule_of
from tests.support.alerting_world import ONLY_LOSS, evaluate, rows
from tests.support.lost_rows import store_lost

NAME = "chain"
DEFINITION = f"""
apiVersion: lagloss/v1
kind: Pipeline
metadata: {{name: {NAME}}}
spec:
  recheck: 7d
  nodes:
    - {{name: src, to: [snk], taps: {{out: {{topic: orders, id: $.id, eventTime: $.at}}}}}}
    - name: snk
      taps: {{in: {{group: g}}, out: {{database: shop, table: public.orders, id: id, eventTime: at, cursor: n}}}}
  alerts: {ONLY_LOSS}
"""
WINDOW_S = int(time.time()) // 60 * 60 - 7_200


@pytest.fixture
def lost(store: Store) -> Store:
    """Two messages of a window, and one of another, are lost afterwards."""
    store.apply(parse_definition(DEFINITION))
    with store.engine.begin() as connection:
        store_lost(connection, NAME, WINDOW_S, "a", "b")
        store_lost(connection, NAME, WINDOW_S + 60, "c", sample=1 << 30)
    return store


def test_an_incident_names_the_messages_the_table_and_the_minutes(lost: Store) -> None:
    assert evaluate(lost, Evaluator(lost, Notifier([]))) == ["lost-afterwards opened"]
    (incident,) = rows(lost, IncidentRow)
    assert (incident.kind, incident.severity, incident.value, incident.target) == ("lost-afterwards", "warning", 3, 0)
    assert incident.detail["text"].startswith(
        "3 messages lost afterwards at snk (of a sample: 25 % of the rows): their rows in table public.orders of shop "
        "are deleted, minutes "
    )
    assert incident.detail["where"] == [
        {"kind": "node", "name": "snk", "share": 1.0, "text": "3 lost afterwards", "lost": 3}
    ]
    named = {(example["message_id"], example["kind"]) for example in incident.detail["examples"]}
    assert named == {(message_id, "lost-afterwards") for message_id in "abc"}
    assert incident.detail["examples"][0]["last_checkpoint"] == "snk.out"


def found_now(store: Store) -> bool:
    view = ViewCache(store).view(store.pipeline(NAME), time.time() + 60)  # a minute that was a breach stays one
    found = rule_of(view.definition, "lost-afterwards").assess(view)
    assert bool(found.good) != bool(found.breaches)
    return bool(found.breaches)


def test_it_ends_once_the_rows_are_back_or_no_longer_compared(lost: Store) -> None:
    assert found_now(lost)
    with lost.engine.begin() as connection:
        row, message = table_of(LostAfterwardsRow), table_of(LostAfterwardsMessageRow)
        connection.execute(delete(row).where(row.c.window_start == WINDOW_S))
        connection.execute(delete(message).where(message.c.window_start == WINDOW_S))
    assert found_now(lost)
    with lost.engine.begin() as connection:
        connection.execute(update(row).values(until=int(time.time() * 1_000) - 1))
    assert not found_now(lost)


def test_what_is_accepted_is_no_breach_and_stays_on_record(lost: Store) -> None:
    assert accept(lost, NAME, WINDOW_S, WINDOW_S + 60, by="ann", why="request 17") == 2
    assert found_now(lost)
    assert accept(lost, NAME, WINDOW_S, WINDOW_S + 120, by="ann", why="request 18") == 1
    assert accept(lost, NAME, WINDOW_S, WINDOW_S + 120, by="ann", why="again") == 0
    assert not found_now(lost)
    with lost.engine.connect() as connection:
        minutes = read_lost_minutes(connection, NAME, WINDOW_S, WINDOW_S + 120)
        assert read_outstanding(connection, NAME, time.time()) == []
        notes = connection.execute(
            select(audit_table.c.detail, audit_table.c.pipelines).where(
                audit_table.c.action == "lost-afterwards.accept"
            )
        ).all()
    assert [(minute.lost, minute.accepted, minute.accepted_why) for minute in minutes] == [
        (2, 2, "request 17"),
        (1, 1, "request 18"),
    ]
    assert [note.detail["messages"] for note in notes] == [2, 1, 0]
    assert {tuple(note.pipelines) for note in notes} == {(NAME,)}
    (node,) = by_node(minutes)
    assert (node.lost, node.accepted, node.document()["share"]) == (3, 3, 0.25)
    with pytest.raises(LaglossError, match="nowhere"):
        accept(lost, "nowhere", 0, 1, by="ann", why="x")


def test_names_are_listed_newest_missed_first(lost: Store) -> None:
    with lost.engine.connect() as connection:
        messages = read_lost_messages(connection, NAME, WINDOW_S, WINDOW_S + 60)
        assert {message.message_id for message in messages} == {"a", "b"}
        assert len(read_lost_messages(connection, NAME, WINDOW_S, WINDOW_S + 120, 1)) == 1
    assert {message.document()["cursor"] for message in messages} == {0, 1}


def test_a_settled_pipeline_is_looked_at_again_once_something_is_lost_afterwards(lost: Store) -> None:
    definition, now_s = lost.pipeline(NAME).definition, time.time()
    assert isinstance(rule_of(definition, "lost-afterwards"), LostAfterwards)
    with lost.engine.connect() as connection:
        for has_rechecks, due in ((True, [NAME]), (False, [])):
            pre_check = PreCheck()
            never = now_s + 3_600
            settled = SettledPipeline(1, {}, never, never, never, has_groups=False, has_rechecks=has_rechecks)
            pre_check.settle(NAME, settled)
            assert pre_check.find_due(connection, {NAME: 1}, {}, now_s) == due


def test_there_is_no_rule_without_recheck(store: Store) -> None:
    store.apply(parse_definition(DEFINITION.replace("recheck: 7d", "recheck: 0s")))
    with store.engine.begin() as connection:
        store_lost(connection, NAME, WINDOW_S, "a")
        assert connection.execute(select(func.count()).select_from(LostAfterwardsRow)).scalar_one() == 1
    assert evaluate(store, Evaluator(store, Notifier([]))) == []
