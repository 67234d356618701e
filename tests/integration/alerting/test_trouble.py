"""One bad pipeline, rule or receiver, and the others: they are evaluated and told all the same."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, text

from alerting import service as worker
from alerting.delivery.sender import HeldLead, Sender
from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notification import Notification
from alerting.incidents.notifier import Notifier
from alerting.incidents.outbox import Outbox
from alerting.metrics import AlertingMetrics
from alerting.rules import Rule, Unit, rules_of
from alerting.rules.assessment import Assessment, BreachPlace
from alerting.rules.measures import Measure
from alerting.rules.view import PipelineView
from alerting.service import Alerter
from alerting.views import view_cache
from lagloss_server.model.alert_rules import Severity
from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.model.window import Window
from lagloss_server.net.outcome import Outcome, Sent
from lagloss_server.store.schema.alerting import IncidentRow, OutboxMessageRow, SilenceRow
from lagloss_server.store.store import Store
from tests.integration.alerting.test_alerting import EVERYTHING, evaluate, evaluator
from tests.support.alerting_world import close_windows, only_loss, rows
from tests.support.kafka_log import wait_for


@dataclass(frozen=True)
class Trouble:
    """A rule that does something bad instead of judging."""

    does: Callable[[], object]
    name: ClassVar[str] = "trouble"
    kind: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = "critical"
    what: ClassVar[str] = "trouble"
    unit: ClassVar[Unit] = "ratio"
    target: ClassVar[float] = 0.0
    higher_is_worse: ClassVar[bool] = True
    inhibited_by: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[Measure, ...]] = ()
    watches: ClassVar[tuple[str, ...]] = ()

    def assess(self, view: PipelineView) -> Assessment:
        self.does()
        return Assessment((), {}, ())

    def where(self, breached: Sequence[Window]) -> list[BreachPlace]:
        return []

    def text(self, value: float) -> str:
        return ""


class FailingTransport:
    """Raises, which a transport never should."""

    at_most: int = 1
    resend_s: float | None = None
    timeout_s: float = 1.0

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        raise KeyError("secret-token")

    def close(self) -> None:
        pass


class HangingTransport:
    """Does not answer until it may."""

    at_most: int = 1
    resend_s: float | None = None
    timeout_s: float = 60.0

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answers = threading.Event()

    def send(self, notifications: Sequence[Notification]) -> Outcome:
        self.asked.set()
        self.answers.wait(60)
        return Sent()

    def close(self) -> None:
        pass


@pytest.fixture
def in_trouble(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Two pipelines that lose, of which the first, `bad`, has a rule that does what is given."""
    for name in ("bad", "chain"):
        store.apply(only_loss(name=name))
        close_windows(store, "ll", name=name)

    def make(does: Callable[[], object]) -> None:
        def found(definition: Definition) -> list[Rule]:
            return [*([Trouble(does)] if definition.name == "bad" else []), *rules_of(definition)]

        monkeypatch.setattr(view_cache, "rules_of", found)

    return make


@contextmanager
def running(
    store: Store, database_url: str, senders: Sequence[Sender] = (), lead: HeldLead | None = None
) -> Iterator[None]:
    """An alerter in this process, with one receiver."""
    metrics, receivers = AlertingMetrics(), [{"name": "hook", "kind": "webhook", "is_fallback": False}]
    made = Alerter(
        database_url, Evaluator(store, Notifier((EVERYTHING,))), senders, lead or HeldLead(), receivers, metrics
    )
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        yield
    finally:
        made.stop()
        thread.join(20)
        assert not thread.is_alive()


def fail() -> None:
    raise ZeroDivisionError


def test_a_rule_that_raises_keeps_no_other_rule_from_being_judged(
    store: Store, in_trouble: Callable[[Callable[[], object]], None]
) -> None:
    in_trouble(fail)
    failed: list[str] = []
    by = Evaluator(store, Notifier((EVERYTHING,)), rule_failed=failed.append)
    assert evaluate(store, by) == ["loss opened", "loss opened"]
    assert failed == ["bad"]


def test_a_connection_that_is_ended_in_one_evaluation_keeps_no_other_pipeline_from_its_turn(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "chain"):
        store.apply(only_loss(name=name))
        close_windows(store, "ll", name=name)
    whole = Notifier.notify

    def end_transaction(self: Notifier, connection: Connection, pipeline: StoredPipeline, *rest: Any) -> Any:
        if pipeline.name == "bad":
            own = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            with store.engine.connect() as other:
                other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": own})
        return whole(self, connection, pipeline, *rest)

    monkeypatch.setattr(Notifier, "notify", end_transaction)
    with running(store, database_url):
        wait_for(lambda: [row.pipeline for row in rows(store, IncidentRow)] == ["chain"], what="the other's incident")


def test_a_definition_that_cannot_be_read_keeps_no_other_pipeline_from_being_told(
    store: Store, database_url: str, in_trouble: Callable[[Callable[[], object]], None]
) -> None:
    with store.engine.begin() as connection:
        bad = {"definition": json.dumps({"apiVersion": "lagloss/v9"})}
        connection.execute(text("UPDATE pipeline SET definition = :definition WHERE name = 'bad'"), bad)
    with running(store, database_url):
        wait_for(lambda: [row.pipeline for row in rows(store, IncidentRow)] == ["chain"], what="the other's incident")


def test_the_incident_of_the_last_pipeline_ends_when_that_is_deleted(store: Store, database_url: str) -> None:
    store.apply(only_loss())
    close_windows(store, "ll")
    evaluate(store, evaluator(store))
    store.delete("chain")
    with running(store, database_url):
        wait_for(lambda: rows(store, IncidentRow)[0].state == "resolved", what="the end")


def test_a_deleted_pipeline_whose_incidents_cannot_be_ended_keeps_no_other_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    by = Evaluator(store, Notifier((EVERYTHING,)), rule_failed=failed.append)
    for name in ("bad", "chain"):
        store.apply(only_loss(name=name))
        close_windows(store, "ll", name=name)
    assert evaluate(store, by) == ["loss opened", "loss opened"]
    for name in ("bad", "chain"):
        store.delete(name)
    whole = Notifier.notify_deleted

    def fail(self: Notifier, connection: Any, known: Any, *rest: Any) -> None:
        if any(incident.pipeline == "bad" for incident in known):
            raise ZeroDivisionError
        whole(self, connection, known, *rest)

    monkeypatch.setattr(Notifier, "notify_deleted", fail)
    assert by.end_incidents_of_deleted() == ["loss resolved"]
    assert failed == ["bad"]
    assert {row.pipeline: row.state for row in rows(store, IncidentRow)} == {"bad": "open", "chain": "resolved"}


def test_a_silence_that_cannot_be_understood_silences_nobody(store: Store) -> None:
    store.apply(only_loss())
    with store.engine.begin() as connection:
        values = {"id": "s", "matchers": ["no matcher"], "reason": "r", "author": "a"}
        moments = {"starts_at": text("now() - interval '1 h'"), "ends_at": text("now() + interval '1 h'")}
        connection.execute(SilenceRow.__table__.insert().values(**values, **moments))  # type: ignore[attr-defined]
    close_windows(store, "ll")
    evaluate(store, evaluator(store))
    assert [row.action for row in rows(store, OutboxMessageRow)] == ["trigger"]


def test_a_transport_that_raises_is_tried_again_with_backoff_and_its_error_tells_no_secret(
    store: Store, database_url: str
) -> None:
    store.apply(only_loss())
    close_windows(store, "ll")
    lead = HeldLead()
    sender = Sender(Outbox(store.engine, "hook", None), FailingTransport(), lead, AlertingMetrics())
    with running(store, database_url, [sender], lead):
        wait_for(lambda: any(row.attempts == 2 for row in rows(store, OutboxMessageRow)), what="the second attempt")
    assert rows(store, OutboxMessageRow)[0].last_error == "the transport failed (KeyError)"


def test_told_to_end_while_a_receiver_hangs_it_waits_no_longer_than_it_may_and_the_message_is_due_again(
    store: Store, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "STOP_S", 0.5)
    store.apply(only_loss())
    close_windows(store, "ll")
    lead, hangs = HeldLead(), HangingTransport()
    sender = Sender(Outbox(store.engine, "hook", None), hangs, lead, AlertingMetrics())
    with running(store, database_url, [sender], lead):
        assert hangs.asked.wait(20)
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5
    assert [row.outcome for row in rows(store, OutboxMessageRow)] == [None]
    hangs.answers.set()
    wait_for(lambda: rows(store, OutboxMessageRow)[0].outcome == "sent", what="the record")
