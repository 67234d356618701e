"""What people read of incidents and do about them, on a real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import select, update

from lagloss.errors import LaglossError
from lagloss_server.base.errors import (
    AlreadyAcknowledged,
    AmbiguousIncident,
    BadSilence,
    IncidentIsResolved,
    NoAlerter,
    UnknownIncident,
    UnknownReceiver,
    UnknownSilence,
)
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.incidents import changes as incident_changes
from lagloss_server.incidents import deliveries
from lagloss_server.incidents import incident as incidents
from lagloss_server.incidents import receiver_check as rehearsal
from lagloss_server.incidents import response_times as incident_times
from lagloss_server.incidents.actions import silence_table
from lagloss_server.incidents.deliveries import outbox_table
from lagloss_server.incidents.response_times import Times
from lagloss_server.store.engine import ALERTS_CHANNEL
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.store import Store
from tests.support.incident_rows import NOON, store_change, store_delivery, store_incident, store_leader, store_receiver
from tests.support.window_documents import chain

MINUTE = timedelta(minutes=1)
ONE = UUID("0a000000-0000-4000-8000-000000000001")
OTHER = UUID("0a000000-0000-4000-8000-000000000002")


@contextmanager
def heard(store: Store) -> Iterator[list[str]]:
    """The payloads that a listening alerter got by the end of the block."""
    payloads: list[str] = []
    url = store.engine.url.render_as_string(hide_password=False).replace("+psycopg", "")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"LISTEN {ALERTS_CHANNEL}")
        yield payloads
        payloads += [notice.payload for notice in connection.notifies(timeout=5, stop_after=1)]


def test_open_incidents_come_critical_first_and_the_longest_open_first(store: Store) -> None:
    with store.engine.begin() as connection:
        young = store_incident(connection, pipeline="b", opened_at=NOON + MINUTE)
        old = store_incident(connection, pipeline="a")
        ticket = store_incident(connection, rule="lag", severity="warning", opened_at=NOON - 5 * MINUTE)
        ended = store_incident(connection, resolved_at=NOON + MINUTE)
        store_incident(connection, resolved_at=NOON - 30 * MINUTE, opened_at=NOON - 40 * MINUTE)
    assert [found.id for found in incidents.incidents(store)] == [old, young, ticket]
    assert [found.id for found in incidents.incidents(store, pipeline="b")] == [young]
    recent = incidents.incidents(store, only_open=False, since=NOON)
    assert [found.id for found in recent] == [old, young, ticket, ended]
    assert len(incidents.incidents(store, only_open=False)) == 5


def test_an_incident_is_found_by_how_its_id_begins_and_only_if_that_says_which(store: Store) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE)
        store_incident(connection, id_=OTHER, pipeline="b")
    assert incidents.incident(store, str(ONE)).id == ONE
    assert incidents.incident(store, "0A000000-0000-4000-8000-000000000002").id == OTHER
    with pytest.raises(AmbiguousIncident, match="2 incidents"):
        incidents.incident(store, "0a")
    for unknown in ("0b", "", "%", "0a_", "loss"):
        with pytest.raises(UnknownIncident):
            incidents.incident(store, unknown)


def test_links_lead_to_the_last_window_and_the_runbook_of_the_kind_or_of_the_pipeline(store: Store) -> None:
    store.apply(chain())
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE, pipeline="b")
        store_incident(connection, id_=OTHER)
        own = '{"spec": {"alerts": {"runbook": "https://wiki.example/"}}}'
        connection.exec_driver_sql(f"UPDATE pipeline SET definition = definition || '{own}'::jsonb")
    assert incidents.incident(store, str(ONE)).links("http://lagloss/") == {
        "dashboard": "http://lagloss/pipelines/b/windows/2026-11-21T11:58:00Z",
        "incident": f"http://lagloss/incidents/{ONE}",
        "runbook": "http://lagloss/runbooks/loss",
    }
    assert incidents.incident(store, str(OTHER)).links("") == {
        "dashboard": None,
        "incident": None,
        "runbook": "https://wiki.example/loss",
    }


def test_an_acknowledgement_is_a_row_a_change_and_a_word_to_the_alerter(store: Store) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE)
    with heard(store) as payloads:
        assert incident_actions.acknowledge(store, "0a", "ann", "looking at mid") == ONE
    assert payloads == [f"acknowledged/{ONE}"]
    found = incidents.incident(store, str(ONE))
    opened, acknowledged = incident_changes.changes(store, ONE)
    assert (found.acknowledged_by, found.acknowledged_at) == ("ann", acknowledged.at)
    assert (opened.change, opened.by) == ("opened", None)
    assert (acknowledged.change, acknowledged.by, acknowledged.note) == ("acknowledged", "ann", "looking at mid")
    assert (acknowledged.value, acknowledged.worst) == (0.032, 0.05)


def test_an_incident_that_is_over_or_taken_is_not_acknowledged_again(store: Store) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE)
        store_incident(connection, id_=OTHER, resolved_at=NOON + MINUTE)
    incident_actions.acknowledge(store, str(ONE), "ann")
    with pytest.raises(AlreadyAcknowledged, match=r"^Incident .* was already acknowledged by ann at"):
        incident_actions.acknowledge(store, str(ONE), "bob")
    with pytest.raises(IncidentIsResolved, match=r"2026-11-21T12:01:00.000Z"):
        incident_actions.acknowledge(store, str(OTHER), "bob")
    with pytest.raises(UnknownIncident):
        incident_actions.acknowledge(store, "ffff", "bob")
    assert incidents.incident(store, str(ONE)).acknowledged_by == "ann"


def test_of_two_who_acknowledge_at_once_one_is_told_of_the_other(store: Store) -> None:
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE)
    ready, refused = threading.Barrier(2), []

    def take(who: str) -> None:
        ready.wait(10)
        try:
            incident_actions.acknowledge(store, str(ONE), who)
        except AlreadyAcknowledged as error:
            refused.append((who, error.facts["by"]))

    threads = [threading.Thread(target=take, args=[who]) for who in ("ann", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(refused[0]) == ["ann", "bob"]
    assert [change.change for change in incident_changes.changes(store, ONE)] == ["opened", "acknowledged"]


def test_a_silence_is_kept_told_to_the_alerter_and_says_what_it_is_about(store: Store) -> None:
    store.apply(chain())
    with store.engine.begin() as connection:
        store_incident(connection, id_=ONE)
        store_incident(connection, pipeline="b")
        labels = '{"metadata": {"name": "chain", "labels": {"team": "checkout"}}}'
        connection.exec_driver_sql(f"UPDATE pipeline SET definition = definition || '{labels}'::jsonb")
    with heard(store) as payloads:
        made, about = incident_actions.silence(
            store, ["team=checkout", 'rule=~"lo.*"'], reason=" known ", author="ann", for_s=7_200
        )
    assert payloads == [f"silence/{made.id}"]
    assert about == [ONE]
    assert made.ends_at - made.starts_at == timedelta(hours=2)
    assert incident_actions.silences(store) == [made]
    assert (made.matchers, made.reason, made.author) == (["team=checkout", "rule=~lo.*"], "known", "ann")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"matchers": []}, "at least one matcher"),
        ({"matchers": ["pipeline"]}, "matchers such as pipeline=clicks .* found 'pipeline'"),
        ({"matchers": ["rule=~("]}, "matchers such as"),
        ({"reason": "  "}, "a reason"),
        ({"author": ""}, "an author"),
        ({"for_s": 86_401}, "up to 24 h, found 86401 s"),
        ({"for_s": 0}, "up to 24 h, found 0 s"),
    ],
)
def test_a_silence_without_matchers_reason_author_or_an_end_within_a_day_is_refused(
    store: Store, wrong: dict[str, object], told: str
) -> None:
    asked = {"matchers": ["pipeline=chain"], "reason": "known", "author": "ann", "for_s": 60, **wrong}
    with pytest.raises(BadSilence, match=told):
        incident_actions.silence(store, **asked)
    assert incident_actions.silences(store) == []


def test_a_silence_ends_once_and_says_who_ended_it(store: Store) -> None:
    made, about = incident_actions.silence(store, ["pipeline=chain"], reason="known", author="ann", for_s=86_400)
    assert about == []
    with heard(store) as payloads:
        incident_actions.unsilence(store, made.id, "bob")
    assert payloads == [f"silence/{made.id}"]
    assert incident_actions.silences(store) == []
    with pytest.raises(UnknownSilence):
        incident_actions.unsilence(store, made.id, "bob")
    with store.engine.connect() as connection:
        row = connection.execute(select(silence_table)).one()
    assert (row.ended_by, row.ends_at < made.ends_at) == ("bob", True)


def test_failed_deliveries_are_told_for_a_week_with_when_their_receiver_worked_again(store: Store) -> None:
    with store.engine.begin() as connection:
        id_ = store_incident(connection)
        store_delivery(connection, id_, "hook", "sent", at=NOON - MINUTE)
        store_delivery(connection, id_, "hook", "failed", error="HTTP 410")
        store_delivery(connection, id_, "hook", "sent", at=NOON + MINUTE)
        store_delivery(connection, id_, "hook", "sent", at=NOON + 2 * MINUTE)
        store_delivery(connection, None, "sms", "failed", at=NOON + MINUTE, error="HTTP 401", change="test")
        store_delivery(connection, id_, "sms", "dropped", at=NOON + 2 * MINUTE)
        store_delivery(connection, id_, "sms", None, at=NOON + 2 * MINUTE)
        store_delivery(connection, id_, "mail", "failed", at=NOON - timedelta(days=8), error="refused")
    sms, hook = deliveries.failed_deliveries(store, NOON + timedelta(hours=1))
    assert (sms.receiver, sms.pipeline, sms.last_error, sms.works_since) == ("sms", None, "HTTP 401", None)
    assert (hook.receiver, hook.pipeline, hook.rule, hook.last_error) == ("hook", "chain", "loss", "HTTP 410")
    assert hook.works_since == NOON + MINUTE + timedelta(seconds=1)
    outcomes = [delivery.outcome for delivery in deliveries.deliveries(store, id_)]
    assert outcomes == ["sent", "failed", "sent", "sent", "dropped", "waiting", "failed"]


def test_times_to_acknowledge_and_resolve_are_from_the_first_opening_to_the_last_end(store: Store) -> None:
    with store.engine.begin() as connection:
        # acknowledged after 2 min, resolved after 5, reopened, acknowledged again, resolved after 30 in all
        flapped = store_incident(
            connection, resolved_at=NOON + 30 * MINUTE, because="recovered", acknowledged_at=NOON + 20 * MINUTE
        )
        for minute, change in ((2, "acknowledged"), (5, "resolved"), (10, "reopened"), (20, "acknowledged")):
            store_change(connection, flapped, change, NOON + minute * MINUTE, "ann")
        # no changes but in its row
        store_incident(
            connection,
            rule="lag",
            severity="warning",
            resolved_at=NOON + 10 * MINUTE,
            acknowledged_at=NOON + 4 * MINUTE,
        )
        store_incident(connection, resolved_at=NOON + 3 * MINUTE, because="revised")
        store_incident(connection, rule="blind/closing", pipeline="b")
        store_incident(connection, opened_at=NOON - timedelta(days=40), resolved_at=NOON)
    noon_s = NOON.timestamp()
    found = incident_times.courses(store, noon_s, noon_s + 60)
    assert Times.of(found) == Times(
        incidents=4,
        acknowledged=2,
        repaired=2,
        revised=1,
        mean_to_acknowledge_s=180,
        median_to_acknowledge_s=180,
        mean_to_resolve_s=1_200,
        median_to_resolve_s=1_200,
    )
    by_rule = incident_times.by(lambda course: course.rule, found)
    assert {rule: times.incidents for rule, times in by_rule.items()} == {"blind/closing": 1, "lag": 1, "loss": 2}
    assert by_rule["lag"].mean_to_resolve_s == 600
    assert by_rule["blind/closing"].mean_to_resolve_s is None
    assert incident_times.courses(store, noon_s + 60, noon_s + 120) == []


def answer(store: Store, outcome: str | None, error: str | None = None, done: bool = True) -> None:
    """What an alerter would record of the only message."""
    at = datetime.now(UTC) if done else None
    with store.engine.begin() as connection:
        connection.execute(
            update(OutboxMessageRow).values(attempts=1, outcome=outcome, done_at=at, last_error=error, claim=ONE)
        )


def test_a_test_goes_into_the_outbox_and_its_answer_is_told(store: Store) -> None:
    with store.engine.begin() as connection:
        store_receiver(connection, "hook")
    with heard(store) as payloads:
        number = rehearsal.request_test(store, "hook", "ann")
    assert payloads == [f"test/{number}"]
    with store.engine.connect() as connection:
        row = connection.execute(select(outbox_table)).one()
    assert (row.receiver, row.action, row.change, row.group_key, row.incident_id) == (
        "hook", "test", "test", "test", None,
    )  # fmt: skip
    assert (row.body["type"], row.body["version"]) == ("test", 1)
    answer(store, "sent")
    assert rehearsal.await_test(store, number) == rehearsal.CheckOutcome("sent", 1, None)
    answer(store, "failed", "HTTP 410")
    assert rehearsal.await_test(store, number) == rehearsal.CheckOutcome("refused", 1, "HTTP 410")
    answer(store, None, "HTTP 503", done=False)
    assert rehearsal.await_test(store, number, wait_s=0) == rehearsal.CheckOutcome("retried", 1, "HTTP 503")


def test_a_test_that_no_alerter_takes_is_taken_back(store: Store) -> None:
    with store.engine.begin() as connection:
        store_receiver(connection, "hook")
        store_leader(connection, "host-7", NOON)
    number = rehearsal.request_test(store, "hook", "ann")
    with pytest.raises(NoAlerter, match=r"on host-7, sent its last heartbeat at 2026-11-21T12:00:00.000Z"):
        rehearsal.await_test(store, number, wait_s=0.1)
    with store.engine.connect() as connection:
        row = connection.execute(select(outbox_table)).one()
    assert (row.outcome, row.done_at is not None) == ("dropped", True)


def test_a_receiver_that_nobody_knows_is_told_with_those_there_are(store: Store) -> None:
    with pytest.raises(UnknownReceiver, match="no alerter has become leader yet"):
        rehearsal.request_test(store, "hook", "ann")
    with store.engine.begin() as connection:
        store_receiver(connection, "sms", "apprise")
        store_receiver(connection, "mail", "mail")
    with pytest.raises(UnknownReceiver, match="existing receivers: mail, sms"):
        rehearsal.request_test(store, "hook", "ann")


def test_errors_of_people_are_usage_errors_and_a_missing_alerter_is_none() -> None:
    exits: dict[type[LaglossError], int] = {UnknownIncident: 2, AlreadyAcknowledged: 2, BadSilence: 2, NoAlerter: 3}
    assert {kind: kind.exit_code for kind in exits} == exits
