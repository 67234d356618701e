"""The overview that readers share: what is read again of it, and who sees what."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from sqlalchemy import text

from dashboard.access.scoped_store import ScopedStore
from dashboard.queries import overview
from dashboard.queries.overview import Overview, OverviewCache
from dashboard.queries.window_changes import WindowChanges
from dashboard.request.current_user import LOCAL, NO_PERSON
from lagloss_server.store.store import Store
from tests.support.dashboards import until
from tests.support.teams_world import OURS, THEIRS, asked_by, definition, member
from tests.support.window_documents import document, store_window

NEWEST_S = int(time.time()) // 60 * 60 - 180
NOW_S = NEWEST_S + 130


@pytest.fixture
def listening(store: Store) -> Iterator[WindowChanges]:
    for name in (OURS, THEIRS):
        store.apply(definition(name), 0)
        close(store, name, NEWEST_S, "ok", notify=False)
    changes = WindowChanges()
    changes.start(store)
    until(lambda: changes.stamp(OURS) == changes.stamp(OURS), "PostgreSQL to be listened to")
    yield changes
    changes.stop()


def close(store: Store, name: str, start_s: int, verdict: str, *, notify: bool, **more: Any) -> None:
    with store.engine.begin() as connection:
        store_window(connection, document(definition(name), start_s, verdict=verdict, **more), start_s, notify=notify)


def verdicts(found: Overview) -> dict[str, str | None]:
    return {one.pipeline: None if one.newest is None else one.newest.verdict for one in found.standings}


def test_a_stamp_holds_until_a_window_of_the_pipeline_changes(listening: WindowChanges, store: Store) -> None:
    ours, theirs = listening.stamp(OURS), listening.stamp(THEIRS)
    close(store, OURS, NEWEST_S + 60, "ok", notify=True)
    until(lambda: listening.stamp(OURS) != ours, "the notice")
    assert listening.stamp(THEIRS) == theirs


def test_no_stamp_holds_while_postgresql_is_not_listened_to(listening: WindowChanges, store: Store) -> None:
    before = listening.stamp(OURS)
    with store.engine.begin() as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = "
                 "current_database()")
        )  # fmt: skip
    until(lambda: listening.stamp(OURS) != before, "the end of the connection")
    until(lambda: listening.stamp(OURS) == listening.stamp(OURS), "another one")
    assert listening.stamp(OURS) != before  # what was notified between them is not known


def lost(found: Overview) -> dict[str, int]:
    budgets = {one.pipeline: one.budgets["loss"] for one in found.standings}
    return {name: 0 if budget is None else budget.used.min for name, budget in budgets.items()}


def test_a_window_that_is_restated_is_read_anew_by_its_notice_and_without_one_within_a_minute(
    listening: WindowChanges, store: Store
) -> None:
    cache = OverviewCache()
    assert lost(cache.read_anew(store, listening, NOW_S)) == {OURS: 0, THEIRS: 0}
    before = listening.stamp(OURS)
    for name in (OURS, THEIRS):
        close(store, name, NEWEST_S - 60, "loss", notify=name == OURS, lost={"snk": (7, 7)})
    until(lambda: listening.stamp(OURS) != before, "the notice")
    assert lost(cache.read_anew(store, listening, NOW_S)) == {OURS: 7, THEIRS: 0}
    later_s = NOW_S + overview.KEPT_S + 1
    assert lost(cache.read_anew(store, listening, later_s)) == {OURS: 7, THEIRS: 7}


def test_a_newer_window_is_shown_although_its_notice_has_not_come(listening: WindowChanges, store: Store) -> None:
    cache = OverviewCache()
    store.apply(definition("new"), 0)
    assert verdicts(cache.read_anew(store, listening, NOW_S)) == {OURS: "ok", THEIRS: "ok", "new": None}
    for name in (OURS, "new"):
        close(store, name, NEWEST_S + 60, "loss", notify=False)
    assert verdicts(cache.read_anew(store, listening, NOW_S)) == {OURS: "loss", THEIRS: "ok", "new": "loss"}


def test_definitions_that_come_change_and_go_are_seen_without_a_notice(listening: WindowChanges, store: Store) -> None:
    cache = OverviewCache()
    cache.read_anew(store, listening, NOW_S)
    store.delete(THEIRS)
    store.apply(definition("new"), 0)
    other = definition(OURS)
    store.apply(other.model_copy(update={"metadata": other.metadata.model_copy(update={"description": "changed"})}), 1)
    found = cache.read_anew(store, listening, NOW_S)
    assert {one.pipeline: one.description == "changed" for one in found.standings} == {OURS: True, "new": False}


def test_what_one_person_had_read_shows_another_only_what_they_may_see(listening: WindowChanges, store: Store) -> None:
    cache, scoped = OverviewCache(), ScopedStore(store)
    whole = asked_by(LOCAL, cache.read, scoped, listening)
    assert set(verdicts(whole)) == {OURS, THEIRS}
    assert asked_by(LOCAL, cache.read, scoped, listening) is whole  # within a second
    seen = asked_by(member(), cache.read, scoped, listening)
    assert set(verdicts(seen)) == {OURS}
    assert sum(seen.counts.values()) == 1
    assert not asked_by(NO_PERSON, cache.read, scoped, listening).standings


def test_who_asks_while_another_reads_is_shown_what_was_read_before(
    listening: WindowChanges, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("_MIN_SHARED_S", "_MAX_SHARED_S"):
        monkeypatch.setattr(overview, bound, 0.0)
    cache, reading, may_end = OverviewCache(), threading.Event(), threading.Event()
    before, read_anew = cache.read(store, listening), cache.read_anew

    def slowly(*asked: Any) -> Overview:
        reading.set()
        assert may_end.wait(20)
        return read_anew(*asked)

    monkeypatch.setattr(cache, "read_anew", slowly)
    assert cache.read(store, listening) is before
    assert reading.is_set()
    monkeypatch.setattr(overview, "_MAX_AGE_S", 0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(cache.read, store, listening)
        assert not wait([waiting], timeout=2 * overview._PATIENCE_S).done  # what was read before is too old
        may_end.set()
        assert waiting.result(20) is not before
