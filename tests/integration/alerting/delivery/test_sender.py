"""A sender between a real outbox and a real receiver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import insert, text

from alerting.delivery.sender import HeldLead, Sender
from alerting.delivery.transports.kinds import KINDS, build
from alerting.incidents.outbox import Outbox
from alerting.metrics import AlertingMetrics
from lagloss_server.store.schema.alerting import OutboxMessageRow
from lagloss_server.store.store import Store
from tests.fakes.http_receiver import HttpReceiver, Reply
from tests.fakes.notifications import body
from tests.fakes.slack import FakeSlack, texts
from tests.support.alerting_world import rows
from tests.support.kafka_log import wait_for

LEADER = "leader"


@pytest.fixture
def store(store: Store) -> Store:
    with store.engine.begin() as connection:
        connection.execute(text("INSERT INTO lease VALUES ('alerting', :owner, now(), now())"), {"owner": LEADER})
    return store


class WatchedOutbox(Outbox):
    """Counts how often its sender found no more to send."""

    rests = 0

    def next_due_s(self) -> float | None:
        due_s = super().next_due_s()
        self.rests += 1
        return due_s


@contextmanager
def sending(store: Store, bodies: Sequence[dict[str, Any]], kind: str, **config: Any) -> Iterator[WatchedOutbox]:
    """A sender of these triggers, which are one group, to a receiver of this kind; its outbox."""
    values = {"receiver": "hook", "action": "trigger", "change": "opened", "group_key": "a"}
    with store.engine.begin() as connection:
        connection.execute(insert(OutboxMessageRow), [{**values, "body": each} for each in bodies])
    transport = build(kind, KINDS[kind].model_validate({"allowPrivate": True, **config}))
    outbox = WatchedOutbox(store.engine, "hook", None)
    sender = Sender(outbox, transport, HeldLead(LEADER), AlertingMetrics())
    sender.start()
    try:
        yield outbox
    finally:
        sender.stop()
        sender.join(20)


def test_slack_shows_all_incidents_of_a_group_in_as_many_messages_as_they_need(store: Store) -> None:
    with FakeSlack() as slack, sending(store, [body(pipeline=f"p{n}") for n in range(20)], "slack", url=slack.url):
        wait_for(lambda: {row.outcome for row in rows(store, OutboxMessageRow)} == {"sent"}, what="the records")
    assert [len(message["attachments"]) for message in slack.messages] == [15, 5]
    shown = "\n".join(text for message in slack.messages for text in texts(message))
    assert all(f"p{n}: loss" in shown for n in range(20))


def test_a_receiver_that_names_a_pause_gets_none_of_its_messages_before_that_is_over(store: Store) -> None:
    with HttpReceiver() as receiver:
        receiver.replies = [Reply(429, b"", {"retry-after": "3600"})]
        with sending(store, [body(), body()], "webhook", url=receiver.url) as outbox:
            wait_for(lambda: outbox.rests > 2, what="further looks")
        assert [row.attempts for row in rows(store, OutboxMessageRow)] == [1, 0]


def test_a_receiver_gets_the_rest_after_its_pause(store: Store) -> None:
    with HttpReceiver() as receiver:
        receiver.replies = [Reply(429, b"", {"retry-after": "1"})]
        with sending(store, [body(), body()], "webhook", url=receiver.url):
            wait_for(lambda: {row.outcome for row in rows(store, OutboxMessageRow)} == {"sent"}, what="the records")
    assert sorted(row.attempts for row in rows(store, OutboxMessageRow)) == [1, 2]
