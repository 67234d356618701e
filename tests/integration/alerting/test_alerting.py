"""Incidents on a real PostgreSQL: what opens one, what it says, how it ends, and who is kept from being told."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notification_plan import NotificationPolicy
from alerting.incidents.notifier import Notifier
from alerting.incidents.routing import Escalation, ReceiverRoute
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.model.definition import parse_definition
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow, OutboxMessageRow
from lagloss_server.store.schema.core import PickedMessagesRow, table_of
from lagloss_server.store.store import Store
from tests.support.alerting_world import (
    START,
    TRACE,
    Somebody,
    alerter,
    alerting_file,
    close_window,
    close_windows,
    evaluate,
    minutes_ago,
    only_loss,
    rows,
    somebody,
    webhook,
)
from tests.support.faulty_worlds import faulty_world
from tests.support.kafka_log import wait_for
from tests.support.window_documents import CHAIN, document, store_window

EVERYTHING = ReceiverRoute((), ("hook",))


def evaluator(store: Store, *routes: ReceiverRoute, **more: Any) -> Evaluator:
    return Evaluator(store, Notifier(routes or (EVERYTHING,), dashboard_url="http://127.0.0.1:8050", **more))


def queued(store: Store) -> list[tuple[str, str, str]]:
    return [(row.receiver, row.action, row.change) for row in rows(store, OutboxMessageRow)]


def happened(store: Store) -> list[str]:
    return [row.change for row in rows(store, IncidentChangeRow)]


def test_an_incident_is_opened_updated_and_resolved_and_each_is_posted_once_and_in_order(
    database_url: str, watched: Store, receiver: Somebody
) -> None:
    with alerter(database_url, receiver.url, LAGLOSS_TRACE_URL="https://traces.example/{trace_id}") as process:
        close_windows(watched, "oll")
        wait_for(lambda: receiver.types == ["opened"], what="the opening")
        close_window(watched, 3, "loss", 400)
        wait_for(lambda: len(receiver.came) == 2, what="the update")
        close_windows(watched, "uooo", first=4)
        wait_for(lambda: len(receiver.came) == 3, what="the resolve")
        assert receiver.types == ["opened", "updated", "resolved"]
        assert len({webhook_id for webhook_id, _ in receiver.came}) == 3
        assert len({body["incident"]["id"] for body in receiver.bodies}) == 1
        opened, updated, resolved = receiver.bodies
        assert opened["breach"]["value"] == pytest.approx(0.04)
        assert opened["breach"]["target"] == 0.01
        assert opened["since"] == opened["windows"]["first"]
        assert opened["windows"]["count"] == 2
        assert len(opened["examples"]) == 20
        assert {each["trace_url"] for each in opened["examples"]} == {f"https://traces.example/{TRACE.trace_id}"}
        assert [(place["kind"], place["name"], place["share"]) for place in opened["where"]] == [
            ("link", "src->mid", 1.0)
        ]
        assert opened["incident"]["labels"] == {"team": "checkout"}
        assert opened["links"]["dashboard"].startswith("http://127.0.0.1:8050/pipelines/chain/windows/")
        assert opened["links"]["runbook"] == "http://127.0.0.1:8050/runbooks/loss"
        assert opened["commands"]["acknowledge"] == f"lagloss alerts ack {opened['incident']['id']}"
        assert updated["breach"]["worst"] == pytest.approx(0.4)
        assert resolved["incident"]["resolved_because"] == "recovered"
        assert resolved["breach"]["worst"] == pytest.approx(0.4)
        [incident] = rows(watched, IncidentRow)
        assert (incident.state, incident.first_window, incident.last_window) == ("resolved", START + 60, START + 180)
        wait_for(lambda: all(row.outcome == "sent" for row in rows(watched, OutboxMessageRow)), what="the records")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0, output
        assert "alerting_stopped" in output
        assert "secret-token" not in output


def test_one_lossy_window_is_a_ticket_with_names_and_a_page_takes_it_over(
    database_url: str, watched: Store, tmp_path: Path
) -> None:
    with somebody() as tracker, somebody() as pager:
        file = alerting_file(
            tmp_path,
            {"tickets": webhook(tracker.url), "pages": webhook(pager.url)},
            routes=[
                {"match": ["severity=critical"], "to": ["pages"], "escalate": [{"after": "1h", "to": ["tickets"]}]},
                {"to": ["tickets"]},
            ],
        )
        with alerter(database_url, LAGLOSS_ALERTING_FILE=file):
            close_windows(watched, "ol")
            wait_for(lambda: tracker.types == ["opened"], what="the ticket")
            assert tracker.bodies[0]["incident"]["severity"] == "warning"
            assert {each["message_id"] for each in tracker.bodies[0]["examples"]} <= {f"m-1-{n}" for n in range(1_000)}
            assert len(tracker.bodies[0]["examples"]) == 20
            incident_actions.acknowledge(watched, tracker.bodies[0]["incident"]["id"], "ann")
            wait_for(lambda: tracker.types[1:] == ["acknowledged"], what="the acknowledgement")
            close_windows(watched, "L", first=2)
            wait_for(lambda: pager.types == ["opened"] and tracker.types[2:] == ["raised"], what="the page")
            close_windows(watched, "ooo", first=3)
            wait_for(lambda: pager.types[1:] == tracker.types[3:] == ["resolved"], what="the end")
    ids = {body["incident"]["id"] for body in (*tracker.bodies, *pager.bodies)}
    assert len(ids) == 1, "it is one incident"
    page = pager.bodies[0]["incident"]
    assert (page["severity"], page["acknowledged_at"]) == ("critical", None)
    assert happened(watched) == ["opened", "acknowledged", "raised", "resolved"]


def test_incidents_of_lag_and_dead_letters_name_the_latest_and_the_dead(watched: Store) -> None:
    definition = parse_definition(CHAIN)
    watched.apply(definition)
    slow = {"src.in": 5.0, "mid.in": 10.0, "snk.in": 9_000.0, "snk.out": 9_500.0}
    counts = {"mid.dead": 500, **dict.fromkeys(slow, 1_000)}
    with watched.engine.begin() as connection:
        for minute in range(5):
            window = document(definition, START + 60 * minute, lags_ms=slow, counts=counts) | {"dead": 500}
            store_window(connection, window, START + 60 * minute)
        for harm, minute in (("late", 3), ("dead", 4)):
            packed = faulty_world("process", harm, 1).facts.picked.pack()  # type: ignore[arg-type]
            values = {"pipeline": "chain", "window_start": START + 60 * minute, "packed": packed}
            connection.execute(insert(table_of(PickedMessagesRow)).values(values))
    evaluate(watched, evaluator(watched))
    examples = {row.kind: row.detail["examples"] for row in rows(watched, IncidentRow)}
    lags = [each["lag_ms"] for each in examples["lag"]]
    assert (len(lags), lags) == (20, sorted(lags, reverse=True))
    assert {each["kind"] for each in examples["lag"]} == {"late"}
    assert all(each["hop"] for each in examples["lag"])
    assert {(each["kind"], each["reason"]) for each in examples["dead-letters"]} == {("dead", "unreadable")}


def test_a_ticket_withholds_no_page_of_the_budget(watched: Store) -> None:
    watched.apply(only_loss("budget: {minMessages: 0}, loss: {page: off}"))
    close_windows(watched, "L" * 8)
    assert evaluate(watched, evaluator(watched)) == ["loss opened", "budget/loss/1h opened"]
    withheld = {row.rule: row.withheld_kind for row in rows(watched, IncidentRow)}
    assert withheld == {"loss": None, "budget/loss/1h": None}


def test_what_is_over_before_anybody_looked_is_told_with_its_end(watched: Store) -> None:
    close_windows(watched, "llooo", first=minutes_ago(20))
    assert evaluate(watched, evaluator(watched)) == ["loss opened", "loss resolved"]
    assert [action for _, action, _ in queued(watched)] == ["trigger", "resolve"]


def test_what_was_over_before_its_rule_was_there_or_long_ago_is_recorded_and_told_to_nobody(watched: Store) -> None:
    close_windows(watched, "llooo", first=-60)
    assert evaluate(watched, evaluator(watched)) == ["loss opened", "loss resolved"]
    watched.apply(only_loss("onTime: {target: 0.99}"))
    close_windows(watched, "LLooo", first=minutes_ago(20))
    changes = evaluate(watched, evaluator(watched))
    assert {"on-time opened", "on-time resolved"} <= set(changes)
    assert queued(watched) == []


def test_an_incident_revised_away_says_so_and_a_window_that_is_lossy_again_is_news(watched: Store) -> None:
    by = evaluator(watched)
    close_windows(watched, "ll")
    assert evaluate(watched, by) == ["loss opened"]
    close_windows(watched, "oo", revision=2)
    assert evaluate(watched, by) == ["loss resolved"]
    [incident] = rows(watched, IncidentRow)
    assert incident.detail["resolved_because"] == "revised"
    assert len(incident.detail["notes"]) == 2
    close_windows(watched, "ll", revision=3)
    assert evaluate(watched, by) == ["loss reopened"]
    assert queued(watched) == [
        ("hook", "trigger", "opened"),
        ("hook", "resolve", "resolved"),
        ("hook", "trigger", "reopened"),
    ]
    assert len(rows(watched, IncidentRow)) == 1


def test_a_window_revised_in_an_open_incident_is_told(watched: Store) -> None:
    by = evaluator(watched)
    close_windows(watched, "lll")
    evaluate(watched, by)
    close_window(watched, 1, "ok", revision=2)
    assert evaluate(watched, by) == ["loss updated"]
    assert queued(watched)[-1] == ("hook", "update", "updated")
    assert "revised" in rows(watched, OutboxMessageRow)[-1].body["notes"][0]


def test_loss_within_15_minutes_is_the_same_incident_and_later_a_new_one(watched: Store) -> None:
    by = evaluator(watched)
    close_windows(watched, "llooo")
    evaluate(watched, by)
    close_windows(watched, "ll", first=5)
    assert evaluate(watched, by) == ["loss reopened"]
    close_windows(watched, "ooo", first=7)
    assert evaluate(watched, by) == ["loss resolved"]
    with watched.engine.begin() as connection:
        connection.execute(
            IncidentRow.__table__.update().values(resolved_at=datetime.now(UTC) - timedelta(seconds=901))
        )
    close_windows(watched, "ll", first=10)
    assert evaluate(watched, by) == ["loss opened"]
    assert len(rows(watched, IncidentRow)) == 2


def test_an_alerter_made_anew_changes_nothing(watched: Store) -> None:
    close_windows(watched, "oll")
    assert evaluate(watched, evaluator(watched)) == ["loss opened"]
    assert evaluate(watched, evaluator(watched)) == []
    assert len(queued(watched)) == 1


def test_a_page_that_a_failover_has_forgotten_is_of_the_same_incident_when_it_is_found_again(watched: Store) -> None:
    close_windows(watched, "oll")
    evaluate(watched, evaluator(watched))
    [before] = rows(watched, IncidentRow)
    with watched.engine.begin() as connection:
        connection.execute(text("TRUNCATE incident, incident_change, outbox"))
    close_windows(watched, "l", first=3)
    evaluate(watched, evaluator(watched))
    [after] = rows(watched, IncidentRow)
    assert (before.id, before.last_window + 60) == (after.id, after.last_window)


def test_history_windows_page_nobody(watched: Store) -> None:
    close_windows(watched, "LL", history=True)
    assert evaluate(watched, evaluator(watched)) == []


def test_a_rule_that_is_taken_away_ends_its_incident(watched: Store) -> None:
    by = evaluator(watched)
    close_windows(watched, "ll")
    evaluate(watched, by)
    watched.apply(only_loss("loss: off"))
    assert evaluate(watched, by) == ["loss resolved"]
    assert rows(watched, IncidentRow)[0].detail["resolved_because"] == "rule removed"
    assert queued(watched)[-1][1] == "resolve"


def test_a_pipeline_that_is_deleted_takes_its_incidents_with_it(watched: Store) -> None:
    by = evaluator(watched)
    close_windows(watched, "ll")
    evaluate(watched, by)
    watched.delete("chain")
    assert by.end_incidents_of_deleted() == ["loss resolved"]
    assert by.end_incidents_of_deleted() == []
    assert rows(watched, IncidentRow)[0].detail["resolved_because"] == "deleted"
    assert queued(watched)[-1] == ("hook", "resolve", "resolved")


def test_a_silence_keeps_an_incident_to_itself_until_it_ends(watched: Store) -> None:
    by = evaluator(watched)
    silence, _ = incident_actions.silence(watched, ["team=checkout"], reason="known", author="ann", for_s=3_600)
    close_windows(watched, "ll")
    evaluate(watched, by)
    assert queued(watched) == []
    row = rows(watched, IncidentRow)[0]
    assert (row.withheld_kind, row.withheld_ref, row.withheld_reason) == ("silence", silence.id, "known")
    incident_actions.unsilence(watched, silence.id, "ann")
    evaluate(watched, by)
    assert queued(watched) == [("hook", "trigger", "opened")]
    assert happened(watched) == ["opened", "withheld", "released"]


def test_a_page_that_waits_for_its_group_is_taken_back_by_a_silence_and_queued_again_when_that_ends(
    watched: Store,
) -> None:
    by = evaluator(watched, ReceiverRoute((), ("hook",), group_wait_s=300))
    close_windows(watched, "ll")
    evaluate(watched, by)
    silence, _ = incident_actions.silence(watched, ["team=checkout"], reason="known", author="ann", for_s=3_600)
    evaluate(watched, by)
    incident_actions.unsilence(watched, silence.id, "ann")
    evaluate(watched, by)
    assert [row.outcome for row in rows(watched, OutboxMessageRow)] == ["dropped", None]
    incident_actions.acknowledge(watched, str(rows(watched, IncidentRow)[0].id), "ann")
    [findings] = by.assess_news(watched.pipelines(), {"chain": ()}).findings
    by.apply(findings)
    assert [row.outcome for row in rows(watched, OutboxMessageRow)] == ["dropped", "dropped"]


def test_an_incident_that_comes_back_and_is_over_within_one_look_is_withheld_no_more(watched: Store) -> None:
    by, first = evaluator(watched), minutes_ago(20)
    close_windows(watched, "llooo", first=first)
    evaluate(watched, by)
    incident_actions.silence(watched, ["team=checkout"], reason="known", author="ann", for_s=3_600)
    close_windows(watched, "llooo", first=first + 5)
    assert evaluate(watched, by) == ["loss reopened", "loss resolved"]
    [row] = rows(watched, IncidentRow)
    assert (row.state, row.withheld_kind) == ("resolved", None)


def test_an_acknowledged_incident_is_neither_repeated_nor_escalated(watched: Store) -> None:
    route = ReceiverRoute((), ("hook",), repeat_s=0, escalations=(Escalation(0, ("boss",)),))
    by = evaluator(watched, route)
    close_windows(watched, "ll")
    evaluate(watched, by)
    assert ("boss", "trigger", "escalated") in queued(watched)
    with watched.engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET attempts = 1"))
    incident = rows(watched, IncidentRow)[0]
    incident_actions.acknowledge(watched, str(incident.id), "ann", "on it")
    evaluate(watched, by)
    assert {(receiver, action) for receiver, action, _ in queued(watched)[-2:]} == {
        ("hook", "acknowledge"),
        ("boss", "acknowledge"),
    }
    before = queued(watched)
    evaluate(watched, by)
    assert queued(watched) == before
    assert rows(watched, OutboxMessageRow)[-1].body["incident"]["acknowledged_by"] == "ann"


def test_of_two_faults_with_one_cause_one_is_told_and_the_other_when_it_outlasts_the_first(watched: Store) -> None:
    watched.apply(only_loss("onTime: {target: 0.99}"))
    by = evaluator(watched)
    close_windows(watched, "LL")
    assert evaluate(watched, by) == ["loss opened", "on-time opened"]
    assert [row.body["incident"]["rule"] for row in rows(watched, OutboxMessageRow)] == ["loss"]
    close_windows(watched, "ooo", first=2, pending=100)
    evaluate(watched, by)
    told = [(row.body["incident"]["rule"], row.action) for row in rows(watched, OutboxMessageRow)]
    assert sorted(told[1:]) == [("loss", "resolve"), ("on-time", "trigger")]


def test_a_blind_pipeline_silences_those_that_follow_it(watched: Store) -> None:
    blind = "blind: {breaches: 2, of: 2}"
    watched.apply(only_loss(blind, name="orders"))
    watched.apply(only_loss("upstream: [orders]"))
    by = evaluator(watched)
    close_windows(watched, "uu", name="orders", reasons=("evidence:mid",))
    close_windows(watched, "LL")
    for _ in range(2):
        evaluate(watched, by)
    found = [row for row in rows(watched, IncidentRow) if row.rule in ("loss", "blind/evidence")]
    withheld = {row.pipeline: (row.withheld_kind, row.withheld_ref) for row in found}
    assert withheld["orders"] == (None, None)
    assert withheld["chain"] == ("upstream", "orders")


@pytest.mark.parametrize("names", [("chain", "orders"), ("chain", "mails", "orders")])
def test_of_blind_pipelines_that_follow_each_other_one_is_told(watched: Store, names: tuple[str, ...]) -> None:
    for name, other in zip(names, (*names[1:], names[0]), strict=True):
        watched.apply(only_loss(f"blind: {{breaches: 2, of: 2}}, upstream: [{other}]", name=name))
        close_windows(watched, "uu", name=name, reasons=("evidence:mid",))
    by = evaluator(watched)
    for _ in range(3):
        evaluate(watched, by)
    sent = [row for row in rows(watched, OutboxMessageRow) if row.outcome != "dropped"]
    assert len({row.body["incident"]["pipeline"] for row in sent}) == 1
    withheld = [bool(row.withheld_kind) for row in rows(watched, IncidentRow) if row.rule == "blind/evidence"]
    assert sorted(withheld) == [False, *[True] * (len(names) - 1)]


def test_a_fallback_hears_of_an_incident_that_its_receiver_does_not_take(watched: Store) -> None:
    by = evaluator(watched, EVERYTHING, policy=NotificationPolicy("mail"))
    close_windows(watched, "ll")
    evaluate(watched, by)
    with watched.engine.begin() as connection:
        long_ago = datetime.now(UTC) - timedelta(minutes=6)
        connection.execute(OutboxMessageRow.__table__.update().values(created_at=long_ago, attempts=9))
    evaluate(watched, by)
    assert queued(watched)[-1] == ("mail", "trigger", "fallback")
    assert "hook has not accepted" in rows(watched, OutboxMessageRow)[-1].body["notes"][-1]


def test_a_fallback_hears_of_an_incident_that_waits_behind_a_hanging_receiver_while_an_alerter_leads(
    watched: Store,
) -> None:
    by = evaluator(watched, EVERYTHING, policy=NotificationPolicy("mail"))
    close_windows(watched, "ll")
    evaluate(watched, by)
    with watched.engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET next_attempt_at = now() - interval '6 min'"))
        connection.execute(text("INSERT INTO lease VALUES ('alerting', 'me', now(), now())"))
    evaluate(watched, by)
    assert queued(watched) == [("hook", "trigger", "opened")]
    with watched.engine.begin() as connection:
        connection.execute(text("UPDATE lease SET since = now() - interval '6 min'"))
    evaluate(watched, by)
    assert queued(watched)[-1] == ("mail", "trigger", "fallback")
