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


@contextmanager
def sending(store: Store, bodies: Sequence[dict[str, Any]], kind: str, **config: Any) -> Iterator[None]:
    """A sender of these triggers, which are one group, to a receiver of this kind."""
    values = {"receiver": "hook", "action": "trigger", "change": "opened", "group_key": "a"}
    with store.engine.begin() as connection:
        connection.execute(insert(OutboxMessageRow), [{**values, "body": each} for each in bodies])
    transport = build(kind, KINDS[kind].model_validate({"allowPrivate": True, **config}))
    sender = Sender(Outbox(store.engine, "hook", None), transport, HeldLead(LEADER), AlertingMetrics())
    sender.start()
    try:
        yield
    finally:
        sender.stop()
        sender.join(20)


def test_slack_shows_all_incidents_of_a_group_in_as_many_messages_as_they_need(store: Store) -> None:
    with FakeSlack() as slack, sending(store, [body(pipeline=f"p{n}") for n in range(20)], "slack", url=slack.url):
        wait_for(lambda: {row.outcome for row in rows(store, OutboxMessageRow)} == {"sent"}, what="the records")
    assert [len(message["attachments"]) for message in slack.messages] == [15, 5]
    shown = "\n".join(text for message in slack.messages for text in texts(message))
    assert all(f"p{n}: loss" in shown for n in range(20))
