"""Rows of rules that have begun to breach, as the alerter keeps them in a real PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from lagloss_server.model.definition import Definition
from lagloss_server.store.schema.alerting import PendingBreachRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store
from tests.support.alerting_world import START, close_window, evaluate, only_loss


@pytest.fixture
def late(store: Store) -> Store:
    """A pipeline whose only rule is the one on lag."""
    definition = only_loss().model_dump(mode="json", by_alias=True)
    definition["spec"]["alerts"] |= {"loss": False, "lag": {"breaches": 2, "of": 3}}
    store.apply(Definition.model_validate(definition))
    return store


@pytest.fixture
def evaluator(late: Store) -> Evaluator:
    return Evaluator(late, Notifier([]))


def close_windows(store: Store, letters: str, first: int = 0) -> None:
    """A window a letter: the lag of `l` is 9 s, that of `o` none to speak of."""
    for at, letter in enumerate(letters, first):
        close_window(store, at, "ok", lags_ms={"snk.out": 9_000.0 if letter == "l" else 10.0})


def pending(store: Store) -> list[dict[str, Any]]:
    with store.engine.connect() as connection:
        return [dict(row) for row in connection.execute(select(table_of(PendingBreachRow))).mappings()]


def test_a_first_breach_is_pending_until_the_second_opens_an_incident(late: Store, evaluator: Evaluator) -> None:
    close_windows(late, "ool")
    assert evaluate(late, evaluator) == []
    [row] = pending(late)
    at = START + 120
    assert row == {
        "pipeline": "chain", "rule": "lag", "kind": "lag", "severity": "critical", "breaches": 1, "needed": 2,
        "of": 3, "first_window": at, "last_window": at, "text": "end-to-end lag p95 9 s, target 5 s",
    }  # fmt: skip
    close_windows(late, "l", first=3)
    assert evaluate(late, evaluator) == ["lag opened"]
    assert pending(late) == []


def test_what_is_pending_goes_when_the_window_is_revised_or_out_of_the_count(late: Store, evaluator: Evaluator) -> None:
    close_windows(late, "ol")
    evaluate(late, evaluator)
    assert len(pending(late)) == 1
    close_window(late, 1, "ok", revision=2, lags_ms={"snk.out": 10.0})
    evaluate(late, evaluator)
    assert pending(late) == []
    close_windows(late, "l", first=2)
    evaluate(late, evaluator)
    assert len(pending(late)) == 1
    close_windows(late, "ooo", first=3)
    evaluate(late, evaluator)
    assert pending(late) == []


def test_what_does_not_change_is_not_written_again(late: Store, evaluator: Evaluator) -> None:
    close_windows(late, "ol")

    def written() -> Any:
        evaluate(late, evaluator)
        with late.engine.connect() as connection:
            return connection.exec_driver_sql("SELECT xmin FROM pending_breach").scalar_one()

    assert written() == written()


def test_a_deleted_pipelines_go_with_it(late: Store, evaluator: Evaluator) -> None:
    close_windows(late, "ol")
    evaluate(late, evaluator)
    late.delete("chain")
    evaluator.end_incidents_of_deleted()
    assert pending(late) == []
