"""Rows of rules that have begun to breach, as the alerter keeps them in a real PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from lagloss_server.store.schema.alerting import PendingBreachRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store
from tests.support.alerting_world import START, close_window, close_windows, evaluate


@pytest.fixture
def evaluator(watched: Store) -> Evaluator:
    return Evaluator(watched, Notifier([]))


def pending(store: Store) -> list[dict[str, Any]]:
    with store.engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table_of(PendingBreachRow))).mappings()]


def test_a_first_breach_is_pending_until_the_second_opens_an_incident(watched: Store, evaluator: Evaluator) -> None:
    close_windows(watched, "ool")
    assert evaluate(watched, evaluator) == []
    [row] = pending(watched)
    at = START + 120
    assert row == {
        "pipeline": "chain", "rule": "loss", "kind": "loss", "severity": "critical", "breaches": 1, "needed": 2,
        "of": 3, "first_window": at, "last_window": at, "text": "4 % of messages lost, target 1 %",
    }  # fmt: skip
    close_windows(watched, "l", first=3)
    assert evaluate(watched, evaluator) == ["loss opened"]
    assert pending(watched) == []


def test_what_is_pending_goes_when_the_window_is_revised_or_out_of_the_count(
    watched: Store, evaluator: Evaluator
) -> None:
    close_windows(watched, "ol")
    evaluate(watched, evaluator)
    assert len(pending(watched)) == 1
    close_window(watched, 1, "ok", revision=2)
    evaluate(watched, evaluator)
    assert pending(watched) == []
    close_windows(watched, "l", first=2)
    evaluate(watched, evaluator)
    assert len(pending(watched)) == 1
    close_windows(watched, "ooo", first=3)
    evaluate(watched, evaluator)
    assert pending(watched) == []


def test_what_does_not_change_is_not_written_again(watched: Store, evaluator: Evaluator) -> None:
    close_windows(watched, "ol")

    def written() -> Any:
        evaluate(watched, evaluator)
        with watched.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT xmin FROM pending_breach").scalar_one()

    assert written() == written()


def test_a_deleted_pipelines_go_with_it(watched: Store, evaluator: Evaluator) -> None:
    close_windows(watched, "ol")
    evaluate(watched, evaluator)
    watched.delete("chain")
    evaluator.end_incidents_of_deleted()
    assert pending(watched) == []
