"""The canary is in no list, count or report of pipelines and incidents, and can be looked at by its name."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import func, insert, select, update

from alerting.catalogue import Catalogue
from alerting.incidents import outbox
from dashboard.queries.alerts import read_board
from dashboard.queries.health import read_health
from dashboard.queries.incident_filters import IncidentFilters
from dashboard.queries.overview import read_overview
from dashboard.queries.reports_topic import Ends
from lagloss_server.base.errors import ReservedName, UnknownPipeline
from lagloss_server.groups.coverage import read_coverage
from lagloss_server.incidents.incident import incidents
from lagloss_server.incidents.response_times import courses
from lagloss_server.model.canary import CANARY, START_S, alerting_rule, is_listed
from lagloss_server.model.canary_definition import canary_definition
from lagloss_server.model.time_range import TimeRange
from lagloss_server.queries.canary import NOT_RUN, read_standing
from lagloss_server.store.canary import prepare_canary, remove_canary
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow
from lagloss_server.store.schema.canary import CanarySecretRow
from lagloss_server.store.schema.core import PipelineRow, TokenRow, table_of
from lagloss_server.store.store import Store

NOW = datetime.now(UTC)
NO_ENDS = Ends(None, "not asked")


@pytest.fixture
def prepared(store: Store) -> Store:
    prepare_canary(store)
    return store


def add_incident(store: Store, *, state: str, ended_days_ago: float = 0.0) -> None:
    opened_at = NOW - timedelta(days=ended_days_ago, hours=1)
    start_s = int(opened_at.timestamp()) // 60 * 60
    incident = {
        "id": uuid4(),
        "pipeline": CANARY,
        "rule": alerting_rule("node store"),
        "kind": "loss",
        "severity": "warning",
        "state": state,
        "opened_at": opened_at,
        "resolved_at": None if state == "open" else NOW - timedelta(days=ended_days_ago),
        "first_window": start_s,
        "last_window": start_s,
        "value": 0.1,
        "worst": 0.1,
        "target": 0.04,
        "detail": {"breaches": [[start_s, start_s]]},
    }
    change = {"incident_id": incident["id"], "at": opened_at, "change": "opened", "value": 0.1, "worst": 0.1}
    with store.engine.begin() as connection:
        connection.execute(insert(IncidentRow).values(**incident))
        connection.execute(insert(IncidentChangeRow).values(**change, first_window=start_s, last_window=start_s))


def test_it_is_in_no_listing_and_known_by_its_name(prepared: Store) -> None:
    assert prepared.names() == []
    assert list(prepared.pipelines()) == []
    assert prepared.newest_versions() == prepared.newest_stamps() == {}
    assert read_overview(prepared, time.time()).standings == ()
    assert read_coverage(prepared).labels == {}
    health = read_health(prepared, NO_ENDS, time.time())
    assert (health.closings, health.nodes, health.taps) == ([], [], [])

    assert prepared.names(unlisted=True) == [CANARY]
    assert Catalogue(prepared).versions() == {CANARY: 1}
    assert prepared.pipeline(CANARY).definition.name == CANARY
    prepared.demand(CANARY)
    assert [closing.pipeline for closing in read_health(prepared, NO_ENDS, time.time(), CANARY).closings] == [CANARY]
    with pytest.raises(UnknownPipeline, match="no pipelines exist yet"):
        prepared.demand("orders")
    assert not is_listed(CANARY)
    assert is_listed("orders")


def test_a_canary_that_never_sent_anything_is_starting_and_then_a_problem(prepared: Store) -> None:
    def problems() -> list[str]:
        return [
            problem.what for problem in read_health(prepared, NO_ENDS, time.time()).problems if "canary" in problem.what
        ]

    health = read_health(prepared, NO_ENDS, time.time())
    assert health.canary is not None
    assert health.canary.text.startswith("The canary of lagloss is starting")
    assert problems() == []
    row = table_of(PipelineRow)
    with prepared.engine.begin() as connection:
        connection.execute(update(row).values(applied_at=row.c.applied_at - (START_S + 1) * 1_000))
    assert problems() == [f"The canary is not right: {NOT_RUN.why}."]


def test_its_incidents_are_in_no_listing_and_are_deleted_when_they_are_over(prepared: Store) -> None:
    add_incident(prepared, state="open")
    add_incident(prepared, state="resolved", ended_days_ago=1)
    add_incident(prepared, state="resolved", ended_days_ago=3)
    span = TimeRange(int(NOW.timestamp()) - 30 * 86_400, int(NOW.timestamp()) + 86_400)
    board = read_board(prepared, IncidentFilters(), span)
    assert (board.open, board.counts.firing, board.counts.history) == ([], 0, 0)
    assert incidents(prepared, only_open=False) == []
    assert courses(prepared, span.from_s, span.to_s) == []
    assert len(incidents(prepared, pipeline=CANARY, only_open=False)) == 3
    assert len(read_board(prepared, IncidentFilters(pipeline=CANARY), span).open) == 1

    outbox.tidy(prepared.engine)

    assert len(incidents(prepared, pipeline=CANARY, only_open=False)) == 2
    with prepared.engine.connect() as connection:
        assert connection.execute(select(func.count()).select_from(IncidentChangeRow)).scalar_one() == 2


def test_preparing_again_keeps_the_secret_and_the_version(prepared: Store) -> None:
    secret, token = table_of(CanarySecretRow), table_of(TokenRow)

    def stored() -> object:
        with prepared.engine.connect() as connection:
            return (
                connection.execute(select(secret.c.secret, secret.c.token)).one(),
                connection.execute(select(token.c.pipeline)).scalars().all(),
                prepared.newest_versions([CANARY]),
            )

    before = stored()
    prepare_canary(prepared)
    assert stored() == before

    remove_canary(prepared)
    remove_canary(prepared)
    assert prepared.names(unlisted=True) == []
    with prepared.engine.connect() as connection:
        assert read_standing(connection) is None
    prepare_canary(prepared)
    assert prepared.newest_versions([CANARY]) == {CANARY: 2}


def test_nobody_else_applies_or_deletes_it(prepared: Store) -> None:
    with pytest.raises(ReservedName, match="LAGLOSS_CANARY=off"):
        prepared.apply(canary_definition())
    with pytest.raises(ReservedName):
        prepared.delete(CANARY)
    assert prepared.newest_versions([CANARY]) == {CANARY: 1}
