"""Who does something to a pipeline's incidents while somebody else is at it waits, and sees what the other did."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import text

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.incidents.repository import NotLeading
from alerting.leader_election import LOST_AFTER_S
from lagloss_server.incidents import actions as incident_actions
from lagloss_server.store.ownership import ALERTING, Lease, OwnerSession
from lagloss_server.store.schema.alerting import IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.integration.alerting.test_alerting import EVERYTHING, evaluate, evaluator, happened
from tests.support.alerting_world import close_window, close_windows, only_loss, rows
from tests.support.kafka_log import wait_for


@pytest.fixture
def store(store: Store) -> Store:
    store.apply(only_loss())
    close_windows(store, "ll")
    return store


class Meanwhile:
    """Something that another thread does, begun in the middle of something else. `begin` returns when it waits for a
    lock, or has ended."""

    def __init__(self, store: Store, does: Callable[[], Any]) -> None:
        self.result: Any = None
        self._store = store
        self._does = does
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.result = self._does()

    def begin(self) -> None:
        self._thread.start()
        waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        with self._store.engine.connect() as connection:
            wait_for(
                lambda: not self._thread.is_alive() or connection.execute(waiting).scalar_one() > 0,
                what="the other to wait, or to end",
            )

    def end(self) -> Any:
        self._thread.join()
        return self.result


@dataclass(frozen=True, slots=True)
class TellingMeanwhile(Notifier):
    """Something is done at the end of an evaluation, before its commit."""

    meanwhile: Meanwhile = field(kw_only=True)

    def notify(self, *given: Any) -> Any:
        withheld = Notifier.notify(self, *given)
        self.meanwhile.begin()
        return withheld


class ReadMeanwhile(Store):
    """Something is done while an evaluation reads evidence, after it has read the incidents and before it locks
    them."""

    meanwhile: Meanwhile | None = None

    def closed_windows(self, *given: Any, **more: Any) -> Any:
        if self.meanwhile is not None:
            begun, self.meanwhile = self.meanwhile, None
            begun.begin()
        return super().closed_windows(*given, **more)


def test_of_two_evaluations_at_once_one_opens_the_incident_and_the_other_finds_it(store: Store) -> None:
    other = Meanwhile(store, lambda: evaluate(store, evaluator(store)))
    teller = TellingMeanwhile((EVERYTHING,), meanwhile=other)
    assert evaluate(store, Evaluator(store, teller)) == ["loss opened"]
    assert other.end() == []
    assert [row.action for row in rows(store, OutboxMessageRow)] == ["trigger"]


def test_an_alerter_writes_nothing_once_another_leads(store: Store, database_url: str) -> None:
    with (
        closing(OwnerSession(database_url, LOST_AFTER_S)) as first,
        closing(OwnerSession(database_url, LOST_AFTER_S)) as second,
    ):
        by = evaluator(store)
        by.lead = Lease(ALERTING, first)
        assert by.lead.acquire()
        first.close()
        wait_for(Lease(ALERTING, second).acquire)  # PostgreSQL notices a moment later that the session has ended
        with pytest.raises(NotLeading):
            evaluate(store, by)
        assert rows(store, IncidentRow) == []
        by.lead = Lease(ALERTING, second)
        assert evaluate(store, by) == ["loss opened"]


def test_who_acknowledges_while_an_evaluation_writes_waits_for_it_and_has_acknowledged(store: Store) -> None:
    evaluate(store, evaluator(store))
    [incident] = rows(store, IncidentRow)
    close_window(store, 2, "loss", 400)
    acknowledging = Meanwhile(store, lambda: incident_actions.acknowledge(store, str(incident.id), "ann"))
    teller = TellingMeanwhile((EVERYTHING,), meanwhile=acknowledging)
    assert evaluate(store, Evaluator(store, teller)) == ["loss updated"]
    assert acknowledging.end() == incident.id
    assert rows(store, IncidentRow)[0].acknowledged_by == "ann"
    assert happened(store) == ["opened", "updated", "acknowledged"]


def test_who_acknowledges_while_an_evaluation_reads_evidence_does_not_wait_and_has_acknowledged(
    store: Store, database_url: str
) -> None:
    evaluate(store, evaluator(store))
    [incident] = rows(store, IncidentRow)
    close_window(store, 2, "loss", 400)
    slow = ReadMeanwhile(database_url)
    slow.meanwhile = acknowledging = Meanwhile(
        store, lambda: incident_actions.acknowledge(store, str(incident.id), "ann")
    )
    assert evaluate(store, evaluator(slow)) == ["loss updated"]
    assert acknowledging.end() == incident.id
    assert rows(store, IncidentRow)[0].acknowledged_by == "ann"
    assert happened(store) == ["opened", "acknowledged", "updated"]
    slow.close()
