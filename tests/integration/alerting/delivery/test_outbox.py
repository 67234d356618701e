"""The outbox on a real database: what a claim takes, what becomes of what is refused or given up, and for whom."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from alerting import assembly
from alerting.delivery.transports.kinds import build
from alerting.delivery.transports.webhook import WebhookConfig
from alerting.incidents import outbox, repository
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notification_plan import NotificationPolicy
from alerting.incidents.notifier import Notifier
from alerting.incidents.outbox import ClaimedMessages, Outbox
from alerting.incidents.repository import take_turn
from alerting.incidents.routing import ReceiverRoute
from alerting.leader_election import AWAY
from lagloss_server.base.settings import Settings
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.net.outcome import GIVE_UP_AFTER_S, Refused, Sent, TryLater
from lagloss_server.store.schema.alerting import IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.fakes.http_receiver import HttpReceiver
from tests.integration.alerting.test_turns import Meanwhile, TellingMeanwhile
from tests.support.alerting_world import alerting_file, close_window, close_windows, evaluate, only_loss, rows

LEADER, ANOTHER = "leader", "another"
CLAIM_S = 20.0


@pytest.fixture
def store(watched: Store) -> Store:
    with watched.engine.begin() as connection:
        connection.execute(text("INSERT INTO lease VALUES ('alerting', :owner, now(), now())"), {"owner": LEADER})
    return watched


def evaluator(store: Store, *receivers: str) -> Evaluator:
    return Evaluator(store, Notifier((ReceiverRoute((), receivers or ("hook",)),), policy=NotificationPolicy("mail")))


def claim(store: Store, receiver: str = "hook", at_most: int = 50) -> ClaimedMessages:
    claimed = Outbox(store.engine, receiver, "mail").claim(LEADER, CLAIM_S, at_most)
    assert claimed is not None
    return claimed


def record(store: Store, claimed: ClaimedMessages, outcome: Any, receiver: str = "hook") -> None:
    Outbox(store.engine, receiver, "mail").record(claimed, outcome)


def messages(store: Store, receiver: str) -> list[tuple[str, str | None]]:
    return [(row.action, row.outcome) for row in rows(store, OutboxMessageRow) if row.receiver == receiver]


def make_due(store: Store) -> None:
    with store.engine.begin() as connection:
        connection.execute(update(OutboxMessageRow).values(next_attempt_at=text("clock_timestamp()")))


def queue_tests(store: Store, groups: list[str], receiver: str = "hook") -> list[int]:
    with store.engine.begin() as connection:
        statement = text(
            "INSERT INTO outbox (receiver, action, change, group_key, body) "
            "VALUES (:receiver, 'test', 'test', :group, '{}') RETURNING id"
        )
        return [connection.execute(statement, {"receiver": receiver, "group": group}).scalar_one() for group in groups]


def test_who_does_not_lead_claims_nothing(store: Store) -> None:
    queue_tests(store, ["a"])
    assert Outbox(store.engine, "hook", None).claim(ANOTHER, CLAIM_S, 50) is None
    assert claim(store).attempts == 1


def test_a_claim_brings_the_databases_time(store: Store) -> None:
    queue_tests(store, ["a"])
    with store.engine.connect() as connection:
        before = repository.clock(connection)
        [notification] = claim(store).notifications
        assert before <= notification.claimed_at <= repository.clock(connection)


def test_a_claim_takes_what_is_due_first_of_one_group_and_nobody_takes_it_again_until_it_runs_out(store: Store) -> None:
    first, other, second = queue_tests(store, ["a", "b", "a"])
    assert claim(store).ids == [first, second]
    assert claim(store).ids == [other]
    assert Outbox(store.engine, "hook", None).claim(LEADER, CLAIM_S, 50) is None
    make_due(store)
    assert claim(store, at_most=1).ids == [first]


def test_while_one_message_is_claimed_the_claim_leaves_all_others_free(store: Store) -> None:
    first, second = queue_tests(store, ["a", "a"])
    with store.engine.begin() as connection:
        claimed = Outbox(store.engine, "hook", None).claim_in(connection, LEADER, CLAIM_S, 1)
        assert claimed is not None
        assert claimed.ids == [first]
        free = connection.execute(text("SELECT id FROM outbox WHERE id = :id"), {"id": second}).scalar_one()
        with store.engine.begin() as other:
            locked = other.execute(text("SELECT id FROM outbox FOR UPDATE SKIP LOCKED")).scalars().all()
    assert locked == [free]


def test_a_message_that_a_paused_alerter_holds_keeps_no_other_from_being_claimed(store: Store) -> None:
    first, second, third = queue_tests(store, ["a", "b", "a"])
    hook = Outbox(store.engine, "hook", None)
    with store.engine.begin() as paused:
        assert hook.claim_in(paused, LEADER, CLAIM_S, 1) is not None
        assert claim(store, at_most=1).ids == [second]
        assert claim(store).ids == [third]
        assert hook.claim(LEADER, CLAIM_S, 50) is None
        paused.rollback()
    assert claim(store).ids == [first]


def test_an_alerter_that_is_paused_within_a_transaction_loses_it_with_its_locks(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [message] = queue_tests(store, ["a"])
    monkeypatch.setattr(assembly, "TRANSACTION_IDLE", "200ms")
    with closing(assembly.build(Settings(database_url=database_url))) as setup, setup.store.engine.connect() as paused:
        hook = Outbox(setup.store.engine, "hook", None)
        assert hook.claim_in(paused, LEADER, CLAIM_S, 1) is not None
        take_turn(paused, "chain")
        with store.engine.begin() as successor:
            take_turn(successor, "chain")  # waits for the end of the other's transaction
        assert claim(store).ids == [message]
        with pytest.raises(AWAY):
            paused.commit()


def test_a_new_message_in_a_restored_database_has_no_webhook_id_that_was_sent_before(
    store: Store,
) -> None:
    ids = []
    with HttpReceiver() as receiver:
        hook = build("webhook", WebhookConfig.model_validate({"url": receiver.url, "allowPrivate": True}))
        for _ in range(2):
            ids += queue_tests(store, ["a"])
            assert hook.send(claim(store).notifications) == Sent()
            with store.engine.begin() as connection:  # as a backup of before leaves it
                connection.execute(text("TRUNCATE outbox RESTART IDENTITY"))
    assert ids == [1, 1]
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 2


def test_the_message_that_opens_an_incident_has_its_webhook_id_again_in_a_restored_database(store: Store) -> None:
    close_windows(store, "llooo", first=40)
    sent = []
    for _ in range(2):
        evaluate(store, evaluator(store))
        with store.engine.begin() as connection:
            rows = connection.execute(text("SELECT receiver, change, incident_id, key FROM outbox")).all()
            sent.append({tuple(row) for row in rows if row.change == "opened"})
            connection.execute(text("TRUNCATE outbox, incident_change, incident, pending_breach RESTART IDENTITY"))
    assert sent[0]
    assert sent[0] == sent[1]
    assert len({key for *_, key in sent[0]}) == len(sent[0])


def test_later_messages_of_an_incident_wait_for_earlier_ones_also_for_those_that_are_tried_again(store: Store) -> None:
    close_windows(store, "llooo", first=40)
    evaluate(store, evaluator(store))
    trigger = claim(store)
    assert [each.action for each in trigger.notifications] == ["trigger"]
    hook = Outbox(store.engine, "hook", None)
    record(store, trigger, TryLater("HTTP 503", 60))
    assert hook.claim(LEADER, CLAIM_S, 50) is None
    due_s = hook.next_due_s()
    assert (due_s or 0) > 30  # when the trigger is, though the resolve was due at once
    make_due(store)
    trigger = claim(store)
    assert [each.action for each in trigger.notifications] == ["trigger"]
    record(store, trigger, Sent())
    assert [each.action for each in claim(store).notifications] == ["resolve"]


def test_whose_claim_has_run_out_records_nothing(store: Store) -> None:
    close_windows(store, "ll")
    evaluate(store, evaluator(store))
    slow = claim(store)
    make_due(store)
    claim(store)
    for outcome in (Sent(), Refused("HTTP 400"), TryLater("HTTP 503")):
        record(store, slow, outcome)
    [row] = rows(store, OutboxMessageRow)
    assert (row.outcome, row.last_error, row.attempts) == (None, None, 2)


def test_an_update_that_somebody_tries_to_send_is_not_dropped_and_one_that_waits_is(store: Store) -> None:
    by = evaluator(store)
    close_windows(store, "ll")
    evaluate(store, by)
    record(store, claim(store), Sent())
    close_window(store, 2, "loss", 400)
    evaluate(store, by)
    record(store, claim(store), TryLater("HTTP 503"))
    close_window(store, 3, "loss", 900)
    evaluate(store, by)
    close_windows(store, "ooo", first=4)
    evaluate(store, by)
    assert messages(store, "hook") == [("trigger", "sent"), ("update", None), ("update", "dropped"), ("resolve", None)]


def test_of_the_refreshes_of_an_incident_the_newest_is_kept(store: Store) -> None:
    policy = NotificationPolicy(resend_s={"hook": 0.0})
    by = Evaluator(store, Notifier((ReceiverRoute((), ("hook",)),), policy=policy))
    close_windows(store, "ll")
    for _ in range(4):
        evaluate(store, by)
        record(store, claim(store), Sent())
    assert messages(store, "hook") == [("trigger", "sent"), ("refresh", "sent")]
    close_windows(store, "ooo", first=2)
    evaluate(store, by)
    assert messages(store, "hook") == [("trigger", "sent"), ("resolve", None)]


def test_a_receiver_that_expires_alerts_is_tried_again_within_seconds_however_long_it_was_away(
    store: Store, database_url: str, tmp_path: Path
) -> None:
    receivers = {"am": {"alertmanager": {"urls": ["http://127.0.0.1:1"], "allowPrivate": True}}}
    queue_tests(store, ["a"], "am")
    with store.engine.begin() as connection:
        connection.execute(update(OutboxMessageRow).values(attempts=20))
    settings = Settings(database_url=database_url, alerting_file=alerting_file(tmp_path, receivers))
    with closing(assembly.build(settings)) as setup:
        [sender] = [sender for sender in setup.alerter._senders if sender.receiver == "am"]
        claimed = sender._outbox.claim(LEADER, CLAIM_S, 50)
        assert claimed is not None
        sender._outbox.record(claimed, TryLater("HTTP 503"))
        due_s = sender._outbox.next_due_s()
        assert due_s is not None
        assert due_s < 7


def test_of_a_group_only_those_are_given_up_that_are_a_day_old(store: Store) -> None:
    old, new = queue_tests(store, ["a", "a"])
    with store.engine.begin() as connection:
        connection.execute(
            text("UPDATE outbox SET created_at = created_at - make_interval(secs => :age) WHERE id = :id"),
            {"age": GIVE_UP_AFTER_S + 1, "id": old},
        )
    record(store, claim(store), TryLater("HTTP 503"))
    found = {row.id: (row.outcome, row.last_error) for row in rows(store, OutboxMessageRow)}
    assert found[old] == ("failed", "gave up after 1 attempts in a day; last error: HTTP 503")
    assert found[new] == (None, "HTTP 503")


@pytest.mark.parametrize("is_deleted", [False, True])
def test_what_is_refused_after_the_end_is_told_to_the_fallback_with_its_end(store: Store, is_deleted: bool) -> None:
    by = evaluator(store)
    close_windows(store, "ll")
    evaluate(store, by)
    refused = claim(store)
    if is_deleted:
        store.delete("chain")
        by.end_incidents_of_deleted()
    else:
        close_windows(store, "ooo", first=2)
        evaluate(store, by)
        with store.engine.begin() as connection:  # longer ago than evaluation looks back
            connection.execute(update(IncidentRow).values(last_window=IncidentRow.last_window - 90_000))
    record(store, refused, Refused("HTTP 410"))
    evaluate(store, by)
    by.end_incidents_of_deleted()
    assert messages(store, "mail") == [("trigger", None), ("resolve", None)]
    [end] = [row for row in rows(store, OutboxMessageRow) if (row.receiver, row.action) == ("mail", "resolve")]
    assert end.body["incident"]["state"] == "resolved"


def test_what_is_refused_while_an_evaluation_ends_the_incident_waits_for_it_and_is_told_with_its_end(
    store: Store,
) -> None:
    close_windows(store, "ll")
    evaluate(store, evaluator(store))
    refused = claim(store)
    refusal = Meanwhile(store, lambda: record(store, refused, Refused("HTTP 410")))
    close_windows(store, "ooo", first=2)
    evaluate(store, Evaluator(store, TellingMeanwhile((ReceiverRoute((), ("hook",)),), meanwhile=refusal)))
    refusal.end()
    assert messages(store, "mail") == [("trigger", None), ("resolve", None)]


def test_what_is_refused_while_an_evaluation_tells_the_fallback_is_not_told_to_it_twice(store: Store) -> None:
    close_windows(store, "ll")
    evaluate(store, evaluator(store))
    refused = claim(store)
    with store.engine.begin() as connection:  # it has not been taken for 6 min
        connection.execute(text("UPDATE outbox SET created_at = created_at - interval '6 min'"))
    refusal = Meanwhile(store, lambda: record(store, refused, Refused("HTTP 410")))
    teller = TellingMeanwhile((ReceiverRoute((), ("hook",)),), policy=NotificationPolicy("mail"), meanwhile=refusal)
    evaluate(store, Evaluator(store, teller))
    refusal.end()
    assert messages(store, "hook") == [("trigger", "failed")]
    assert messages(store, "mail") == [("trigger", None)]


def test_the_fallback_hears_of_an_incident_once_however_many_receivers_refuse_it_and_when(store: Store) -> None:
    by = evaluator(store, "hook", "chat")
    close_windows(store, "ll")
    evaluate(store, by)
    late = claim(store, "chat")
    record(store, claim(store), Refused("HTTP 410"))
    close_windows(store, "ooo", first=2)
    evaluate(store, by)
    assert [action for action, _ in messages(store, "mail")] == ["trigger", "resolve"]
    record(store, late, Refused("HTTP 410"), "chat")
    evaluate(store, by)
    assert [action for action, _ in messages(store, "mail")] == ["trigger", "resolve"]


def test_what_waits_for_a_receiver_that_is_no_more_is_dropped_and_told_anew_when_it_comes_back(store: Store) -> None:
    by = evaluator(store)
    close_windows(store, "ll")
    evaluate(store, by)
    with store.engine.begin() as connection:
        outbox.drop_all_but(connection, ["mail"])
    assert messages(store, "hook") == [("trigger", "dropped")]
    evaluate(store, by)
    with store.engine.begin() as connection:
        outbox.drop_all_but(connection, ["mail", "hook"])
    assert messages(store, "hook") == [("trigger", "dropped"), ("trigger", None)]


def test_what_is_over_within_one_look_is_not_told_where_an_incident_that_was_open_before_tells_of_it(
    store: Store,
) -> None:
    store.apply(only_loss("onTime: {target: 0.99}"))
    by = evaluator(store)
    close_windows(store, "LL")
    silence, _ = incident_actions.silence(store, ["rule=on-time"], reason="known", author="ann", for_s=60)
    evaluate(store, by)
    with store.engine.begin() as connection:  # it is over, and forgotten
        connection.execute(
            text("DELETE FROM incident_change WHERE incident_id IN (SELECT id FROM incident WHERE rule = 'on-time')")
        )
        connection.execute(text("DELETE FROM incident WHERE rule = 'on-time'"))
    incident_actions.unsilence(store, silence.id, "ann")
    for minute in range(2, 5):
        close_window(store, minute, "unknown", reasons=("evidence:mid",))
    assert evaluate(store, by) == ["on-time opened", "on-time resolved"]
    assert {row.body["incident"]["rule"] for row in rows(store, OutboxMessageRow)} == {"loss"}
