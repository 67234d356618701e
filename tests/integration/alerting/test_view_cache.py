"""Views of pipelines out of a real PostgreSQL: what is kept is what a fresh reading finds, whatever was revised."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from sqlalchemy import Connection, insert, update

from alerting.rules import rules_of
from alerting.rules.view import PipelineView, WaitingMessages
from alerting.views.view_cache import ViewCache
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema.core import EmitterRow, WindowRow
from lagloss_server.store.store import Store
from tests.support.alert_views import defined
from tests.support.stored_windows import Stored
from tests.support.window_documents import document, store_missing, store_window

NOW_S = int(time.time()) // 60 * 60
RULES = """lag: [{}, {checkpoint: mid.in, target: 1s}]
duplicates: on
deadLetters: on
pendingAge: on
negativeLag: on"""
COLUMNS = ("verdict", "evidence", "messages", "lost_min", "on_time", "on_time_of", "pending", "dead", "delivered")
VERDICTS = ("ok", "ok", "ok", "loss", "unknown", "idle")


def applied(store: Store, alerts: str = RULES) -> StoredPipeline:
    store.apply(defined(alerts), 0)
    return store.pipeline("chain")


def store_some(
    connection: Connection, chance: random.Random, pipeline: StoredPipeline, start_s: int, number: int
) -> None:
    """A window with whatever comes, as revision `number`."""
    verdict = chance.choice(VERDICTS)
    messages = 0 if verdict == "idle" else chance.choice([10, 700])
    lags = {"mid.in": chance.uniform(-2_000, 3_000), "snk.out": chance.uniform(0, 9_000)} if messages else {}
    found = document(
        pipeline.definition,
        start_s,
        verdict=verdict,
        messages=messages,
        lags_ms=lags,
        lost={"mid": (messages // 5, messages // 2)} if verdict == "loss" else None,
        reasons=("evidence:mid",) if chance.random() < 0.3 else (),
        history=chance.random() < 0.1,
        revision=number,
    )
    store_window(connection, found, start_s, notify=False)


def assert_same(kept: PipelineView, fresh: PipelineView) -> None:
    ours, theirs = kept.windows, fresh.windows
    assert ours.starts.tolist() == theirs.starts.tolist()
    first = ours.first_at(kept.seen_from_s)
    for name in COLUMNS:
        assert ours.column(name)[first:].tolist() == theirs.column(name)[first:].tolist()
    np.testing.assert_array_equal(ours.column("measures")[first:], theirs.column("measures")[first:])
    assert (kept.newest_end_s, kept.newest_s, kept.waiting) == (fresh.newest_end_s, fresh.newest_s, fresh.waiting)
    for rule in rules_of(kept.definition):
        assert rule.assess(kept) == rule.assess(fresh), rule.name


@pytest.mark.parametrize("seed", range(3))
def test_what_is_kept_is_what_a_fresh_reading_finds_after_any_closings_and_revisions(store: Store, seed: int) -> None:
    chance, pipeline, readings = random.Random(seed), applied(store), ViewCache(store)
    revisions: dict[int, int] = {}
    for now_s in range(NOW_S, NOW_S + 4 * 1_800, 1_800):  # time goes on, and hours leave the span
        with store.engine.begin() as connection:
            for _ in range(60):
                start = now_s - 60 * int(chance.paretovariate(0.35)) % (5 * DAY_S)
                revisions[start] = revisions.get(start, 0) + 1
                store_some(connection, chance, pipeline, start, revisions[start])
        assert_same(readings.view(pipeline, now_s + 5), ViewCache(store).view(pipeline, now_s + 5))


def test_a_window_that_becomes_history_is_seen_no_more_though_its_result_stays(store: Store) -> None:
    pipeline, readings = applied(store), ViewCache(store)
    with store.engine.begin() as connection:
        store_window(connection, document(pipeline.definition, NOW_S, verdict="loss", lost={"mid": (9, 9)}), NOW_S)
    assert len(readings.view(pipeline, NOW_S).windows) == 1
    with store.engine.begin() as connection:
        connection.execute(update(WindowRow).values(history=True))
    view = readings.view(pipeline, NOW_S)
    assert (len(view.windows), view.newest_end_s) == (0, NOW_S + 60)


def test_a_new_version_of_the_definition_has_its_own_measures(store: Store) -> None:
    pipeline, readings = applied(store), ViewCache(store)
    with store.engine.begin() as connection:
        store_window(connection, document(pipeline.definition, NOW_S, lags_ms={"src.out": 7.0, "mid.in": 9.0}), NOW_S)
    assert readings.view(pipeline, NOW_S).windows.measured == ("lag", "lag/checkpoint/mid.in")
    changed = applied(store, "lag: [{link: {from: src, to: mid}, target: 1s}]")
    assert readings.view(changed, NOW_S).windows.measure("lag/link/src->mid").tolist() == [2.0]


def test_a_pipeline_without_windows_or_reports_has_a_view_with_nothing_in_it(store: Store) -> None:
    view = ViewCache(store).view(applied(store), NOW_S)
    assert (len(view.windows), view.newest_end_s, view.newest_s, view.reported_s) == (0, None, {}, {})


def test_tallies_tell_what_came_and_went_before_a_window_closes(store: Store) -> None:
    stored = Stored(store=store)
    readings, pipeline = ViewCache(store), store.pipeline("chain")
    stored.report("sink", NOW_S * 1_000, [NOW_S - 240], node="snk")
    stored.report("source", NOW_S * 1_000, [NOW_S - 240, NOW_S - 60], node="src")
    stored.close(NOW_S - 240)
    view = readings.view(pipeline, NOW_S)
    assert (view.newest_s, view.arrived_s) == ({}, [NOW_S - 60])  # snk.in is no delivery
    stored.report("source", NOW_S * 1_000 + 1, [NOW_S], node="src")
    stored.report("elsewhere", NOW_S * 1_000 + 2, [NOW_S + 60], node="src", pipeline="other")
    assert readings.view(pipeline, NOW_S).arrived_s == [NOW_S - 60, NOW_S]
    assert ViewCache(store).view(pipeline, NOW_S).arrived_s == [NOW_S - 60, NOW_S]


def emitter(node: str, started_s: float, appended_s: float, closed: bool = False) -> dict[str, object]:
    times = {"started_at": int(started_s * 1_000), "sent_at": 0, "appended_at": int(appended_s * 1_000)}
    name = f"{node}{started_s}".encode()
    return (
        {"pipeline": "chain", "emitter": name, "node": node, "host": "h", "seq": 1, "final_through": 0}
        | times
        | {"closed": closed}
    )


def test_a_node_is_expected_to_report_if_it_did_yesterday_at_this_time_and_three_minutes_before(store: Store) -> None:
    pipeline, then = applied(store), NOW_S - DAY_S
    rows = [
        emitter("src", then - 9_000, then + 5),
        emitter("src", then + 60, NOW_S - 4, closed=True),
        emitter("mid", then - 60, NOW_S - 500),  # it had just been started
        emitter("snk", then - 9_000, then - 5),  # it had ended by then
        emitter("gone", then - 9_000, then + 5),  # no node of this version
    ]
    with store.engine.begin() as connection:
        connection.execute(insert(EmitterRow), rows)
    view = ViewCache(store).view(pipeline, NOW_S)
    assert view.expected == {"src"}
    assert view.reported_s == {"src": NOW_S - 4, "mid": NOW_S - 500, "snk": then - 5, "gone": then + 5}


def test_a_node_is_expected_to_report_if_it_told_of_those_minutes_yesterday(store: Store) -> None:
    stored = Stored(store=store)
    then = NOW_S - DAY_S
    stored.report("sink", NOW_S * 1_000, [then - 180, then], node="snk")
    stored.report("source", NOW_S * 1_000, [then], node="src")
    assert ViewCache(store).view(store.pipeline("chain"), NOW_S).expected == {"snk"}


def test_what_is_pending_is_known_with_its_places_and_since_when(store: Store) -> None:
    pipeline = applied(store)
    with store.engine.begin() as connection:
        for start, pending in ((NOW_S - 600, 2), (NOW_S - 300, 1), (NOW_S - 240, 0)):
            store_window(connection, document(pipeline.definition, start, verdict="unknown", pending=pending), start)
            for name in range(2):  # the last window's are names of an older revision
                kind = "pending" if name < max(pending, 1) else "lost"
                store_missing(connection, "chain", start, f"m{name}", kind=kind, place="link src->mid", last="src.out")
    assert ViewCache(store).view(pipeline, NOW_S).waiting == (
        WaitingMessages(("link src->mid",), 3, NOW_S - 600 + 12.345),
    )
    assert ViewCache(store).view(applied(store, ""), NOW_S).waiting == ()
