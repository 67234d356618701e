"""The store that people read through: of another team's pipelines it has no row of any table, however it is asked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Select, exists, func, lateral, literal, select, text, true, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import aliased

from dashboard.access.scoped_store import OPEN, ScopedStore
from dashboard.request.current_user import LOCAL, NO_PERSON, Person
from dashboard.request.grants import Grants
from lagloss_server.base.errors import IdsHidden, UnknownPipeline
from lagloss_server.store.audit import audit_table
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import Base, table_of
from lagloss_server.store.schema.taps import TapRow, TapUnreadableRow
from lagloss_server.store.store import Store
from tests.support.tap_rows import store_tap
from tests.support.teams_world import (
    HUSHED,
    OURS,
    SECRET,
    THEIRS,
    as_text,
    asked_by,
    definition,
    fill_every_table,
    member,
)

START_S = int(time.time()) // 60 * 60 - 600
TABLES = sorted(Base.metadata.tables)
window = table_of(tables.WindowRow)


@pytest.fixture(scope="module")
def scoped(module_database_url: str) -> Iterator[ScopedStore]:
    """Every table has a row of each pipeline."""
    store = Store(module_database_url)
    for name in (OURS, THEIRS, HUSHED):
        store.apply(definition(name), 0)
    with store.engine.begin() as connection:  # all or nothing: a second try finds an empty store
        for at, name in enumerate((OURS, THEIRS, HUSHED)):
            fill_every_table(connection, name, START_S + 60 * at)
    yield ScopedStore(store)
    store.close()


def rows(store: Store, asked: Any) -> list[Any]:
    with store.engine.connect() as connection:
        return list(connection.execute(asked))


@pytest.mark.parametrize("name", TABLES)
def test_a_member_of_a_team_finds_rows_of_its_pipelines_alone(scoped: ScopedStore, name: str) -> None:
    table = Base.metadata.tables[name]
    seen = asked_by(member(acts=True, ids=True), rows, scoped, select(table))
    if name not in OPEN:
        assert SECRET not in as_text(seen)
        assert "blue" not in as_text(seen)
    if "pipeline" in table.c or name in ("pipeline", "incident_change", "outbox", "audit_trail", "cluster_group"):
        assert seen
    elif name not in OPEN:
        assert not seen
    assert asked_by(LOCAL, rows, scoped, select(table)) == rows(scoped.unscoped, select(table))


def test_a_member_of_a_team_finds_what_its_taps_could_not_read_and_no_more(scoped: ScopedStore) -> None:
    bad = {"no_id": (1, 0, 7, 0)}
    with scoped.unscoped.engine.begin() as connection:
        for name in (OURS, THEIRS):
            (tap,) = definition(name).taps
            store_tap(connection, tap, since_ms=0, through_ms=0, unreadable=bad)
    row = TapUnreadableRow
    asked = select(row.reason, TapRow.pipeline).join(TapRow, row.emitter == TapRow.emitter)
    assert rows(scoped.unscoped, asked.where(row.reason == "no_id").order_by(TapRow.pipeline)) == [
        ("no_id", THEIRS),
        ("no_id", OURS),
    ]
    assert asked_by(member(), rows, scoped, asked) == [("no_id", OURS)]
    assert asked_by(member(), rows, scoped, select(row.reason)) == [("no_id",)]


@pytest.mark.parametrize("name", TABLES)
def test_where_no_request_is_answered_nothing_is_found(scoped: ScopedStore, name: str) -> None:
    if name not in OPEN:
        assert asked_by(NO_PERSON, rows, scoped, select(Base.metadata.tables[name])) == []


def test_a_viewer_whom_ids_are_hidden_from_finds_no_name_of_a_message(scoped: ScopedStore) -> None:
    for name in TABLES:
        seen = asked_by(member(), rows, scoped, select(Base.metadata.tables[name]))
        if name in ("missing_message", "quarantine", "repair_message", "audit_trail", "lost_afterwards_message"):
            assert not seen
        assert "id-plain" not in as_text(seen)
    everything = Person("vera", "viewer", granted=Grants(acts=frozenset(), ids=frozenset()))
    assert "id-plain" not in as_text(asked_by(everything, rows, scoped, select(Base.metadata.tables["incident"])))
    shown = asked_by(member(ids=True), rows, scoped, select(Base.metadata.tables["incident"]))
    assert "id-plain" in as_text(shown)
    with pytest.raises(IdsHidden, match=f"rhea is not allowed to see message ids of {OURS}"):
        asked_by(member(), scoped.look_at_ids, "ids.window", OURS, "x")
    with pytest.raises(IdsHidden):
        asked_by(member(ids=True), scoped.look_at_ids, "ids.window", THEIRS, "x")


def other_forms() -> list[Any]:
    """Statements that read windows in each way that the code does, and some others."""
    other, row = aliased(window), tables.WindowRow
    newest = select(window.c.pipeline).order_by(window.c.window_start.desc()).limit(5)
    beside = select(row.pipeline).where(row.pipeline == table_of(tables.PipelineRow).c.name).limit(1).lateral("beside")
    named: Select[Any] = select(table_of(tables.PipelineRow).c.name, beside.c.pipeline)
    return [
        select(other.c.pipeline),
        select(row.pipeline, row.verdict),
        newest.subquery().select(),
        named.select_from(table_of(tables.PipelineRow).outerjoin(beside, true())),
        select(literal("found"), exists().where(row.pipeline == THEIRS)),
        select(func.count(), func.min(row.pipeline)).where(row.pipeline.like("%")),
        select(row.pipeline).union_all(select(table_of(tables.TallyRow).c.pipeline)).subquery().select(),
        select(lateral(select(window.c.pipeline)).c.pipeline),
        text("SELECT pipeline, '100 %' FROM \"window\" WHERE pipeline LIKE :any"),
        text("SELECT * FROM unnest(CAST(:names AS text[])) n JOIN tally ON tally.pipeline = n"),
    ]


@pytest.mark.parametrize("at", range(len(other_forms())))
def test_no_form_of_a_statement_finds_more(scoped: ScopedStore, at: int) -> None:
    asked = other_forms()[at]
    if isinstance(asked, type(text(""))):
        asked = asked.bindparams(**{"any": "%"} if ":any" in asked.text else {"names": [OURS, THEIRS]})
    said = as_text(asked_by(member(), rows, scoped, asked))
    assert "blue" not in said
    assert SECRET not in said
    assert OURS in said or "False" in said
    assert "blue" in as_text(asked_by(LOCAL, rows, scoped, asked)) or "True" in as_text(
        asked_by(LOCAL, rows, scoped, asked)
    )


@pytest.mark.parametrize(
    "asked",
    [
        update(window).values(verdict="ok"),
        text("WITH x AS (SELECT 1) SELECT * FROM x"),
        text("DELETE FROM tally"),
        text("  LOCK TABLE tally"),
    ],
)
def test_what_is_more_than_a_select_is_refused(scoped: ScopedStore, asked: Any) -> None:
    with pytest.raises(ValueError, match="expected a SELECT"):
        asked_by(member(acts=True, ids=True), rows, scoped, asked)


def test_a_function_that_writes_finds_a_transaction_that_reads_only(scoped: ScopedStore) -> None:
    with pytest.raises(DBAPIError, match="read-only transaction"):
        asked_by(member(acts=True), rows, scoped, text("SELECT setval(pg_get_serial_sequence('outbox', 'id'), 1)"))
    with scoped.unscoped.engine.begin() as connection:  # the same connections write for others
        connection.execute(update(window).where(window.c.pipeline == OURS).values(verdict="ok"))


def test_another_teams_pipeline_is_as_unknown_as_one_that_is_not_there(scoped: ScopedStore) -> None:
    person = member(acts=True, ids=True)
    said = []
    for name in (THEIRS, "no-such"):
        with pytest.raises(UnknownPipeline) as unknown:
            asked_by(person, scoped.pipeline, name)
        said.append(str(unknown.value).replace(name, "NAME"))
    assert said[0] == said[1]
    assert OURS in said[0]
    assert asked_by(person, scoped.names) == [OURS]
    assert asked_by(person, lambda: scoped.is_whole) is False
    assert set(asked_by(LOCAL, scoped.names)) == {OURS, THEIRS, HUSHED}


def test_a_look_is_noted_once_in_some_minutes_for_each_person_and_window(scoped: ScopedStore) -> None:
    def count() -> int:
        looks = select(func.count()).where(audit_table.c.action.in_(["ids.window", "ids.search"]))
        with scoped.unscoped.engine.connect() as connection:
            return connection.execute(looks).scalar_one()

    before = count()
    for _ in range(3):
        asked_by(member(ids=True), scoped.look_at_ids, "ids.window", OURS, "2026-11-21T08:40:00Z")
    assert count() == before + 1
    asked_by(member(ids=True), scoped.look_at_ids, "ids.window", OURS, "2026-11-21T08:41:00Z")
    asked_by(member(ids=True), scoped.look_at_ids, "ids.search", OURS, "2026-11-21T08:40:00Z")
    asked_by(LOCAL, scoped.look_at_ids, "ids.window", OURS, "2026-11-21T08:40:00Z")
    assert count() == before + 3  # the actor is of the request, of which there is none here
