"""Views of pipelines out of a real PostgreSQL: what is kept is what a fresh reading finds, whatever was revised."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import Connection, delete, event, insert, select, update

from alerting.backtest.history import read_habits
from alerting.rules import rules_of
from alerting.rules.measures import Measure
from alerting.rules.view import PipelineView, WaitingMessages
from alerting.views.view_cache import ViewCache
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.place import Place
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema.core import EmitterRow, PipelineRow, RollupRow, TallyRow, WindowRow, table_of
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import Rollup
from tests.support.alert_views import defined
from tests.support.stored_windows import Stored
from tests.support.window_documents import document, store_missing, store_window

NOW_S = int(time.time()) // 60 * 60
RULES = """lag: [{}, {at: checkpoint=mid.in, target: 1s}]
duplicates: on
deadLetters: on
pendingAge: on
negativeLag: on"""
COLUMNS = (
    "verdict",
    "evidence",
    "messages",
    "lost_min",
    "on_time",
    "on_time_of",
    "pending",
    "dead",
    "filtered",
    "live",
    "due",
)
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
    assert readings.view(pipeline, NOW_S).windows.measured == ("p95", "p95 checkpoint mid.in")
    changed = applied(store, "lag: [{at: link=src->mid, target: 1s}]")
    queue_time = Measure("p95", Place("link", "src->mid"))
    assert readings.view(changed, NOW_S).windows.read(queue_time).tolist() == [2.0]


def test_another_definition_under_the_same_version_has_its_own_rules(store: Store) -> None:
    views = ViewCache(store)
    before = applied(store, "deadLetters: off")
    assert "dead-letters" not in views.rules(before)
    with store.engine.begin() as connection:  # as a backup that is restored, and another `apply`
        connection.execute(delete(table_of(PipelineRow)))
    after = applied(store, "deadLetters: on")
    assert after.version == before.version
    assert "dead-letters" in views.rules(after)


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
    came = {NOW_S - 240: NOW_S, NOW_S - 60: NOW_S}
    assert (view.newest_s, view.came_s(["src"])) == ({}, came)  # snk.in is no delivery
    stored.report("source", NOW_S * 1_000 + 1_000, [NOW_S - 60, NOW_S], node="src")
    stored.report("elsewhere", NOW_S * 1_000 + 2, [NOW_S + 60], node="src", pipeline="other")
    assert readings.view(pipeline, NOW_S).came_s(["src"]) == came | {NOW_S: NOW_S + 1}
    later = came | {NOW_S - 60: NOW_S + 1, NOW_S: NOW_S + 1}
    assert ViewCache(store).view(pipeline, NOW_S).came_s(["src"]) == later, (
        "of a changed tally only the last report is known"
    )


def test_an_hour_of_the_past_that_is_sent_now_makes_nothing_stale(store: Store) -> None:
    """As at the demo's start: reports of the first node are ahead of those of the last, by minutes of event time."""
    stored = Stored(store=store)
    past = list(range(NOW_S - 3_600, NOW_S, 60))
    for at, start in enumerate(past):
        stored.report("history", NOW_S * 1_000 + at, [start], node="src")
    with store.engine.begin() as connection:  # the first minutes have been delivered
        row = dict(connection.execute(select(table_of(TallyRow)).limit(1)).mappings().one())
        delivered = [row | {"checkpoint": "snk.out", "node": "snk", "window_start": start} for start in past[:5]]
        connection.execute(insert(TallyRow), delivered)
    pipeline = store.pipeline("chain")
    view = ViewCache(store).view(pipeline, NOW_S + 5)
    rule = next(rule for rule in rules_of(pipeline.definition) if rule.name == "staleness")
    assert view.newest_s == {"snk.out": past[4]}
    assert (rule.assess(view).breaches, rule.assess(replace(view, now_s=NOW_S + 299.0)).breaches) == ({}, {})
    assert rule.assess(replace(view, now_s=NOW_S + 301.0)).breaches, "five minutes later it is"


def test_habits_are_read_from_minutes_and_hours_and_once_an_hour(store: Store) -> None:
    pipeline, now_s = applied(store), NOW_S // 3_600 * 3_600 + 1_800
    hours = [now_s // 3_600 * 3_600 - day * DAY_S - 3_600 * back for day in range(1, 8) for back in (0, 1)]
    with store.engine.begin() as connection:
        for number, hour in enumerate(hours):
            for start in range(hour, hour + 3_600, 60):
                found = document(pipeline.definition, start, messages=100 + number) | {"filtered": 20}
                store_window(connection, found, start, notify=False)
            rollup = Rollup.merged([Rollup(windows=60, messages=60 * (100 + number), filtered=60 * 20)])
            row = {"pipeline": "chain", "period": "hour", "start": hour, "computed_at": 0, "packed": rollup.pack()}
            connection.execute(insert(RollupRow).values(row | rollup.headline()))
    statements: list[str] = []
    event.listen(store.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    readings = ViewCache(store)

    def asked(at_s: float) -> tuple[PipelineView, int]:
        statements.clear()
        view = readings.view(pipeline, at_s)
        return view, sum("rollup" in each or "/ 900" in each for each in statements)

    view, first = asked(now_s)
    assert (first, asked(now_s + 60)[1], asked(now_s + 3_600)[1]) == (2, 0, 2)
    at = np.array([now_s])
    assert view.habits.volume.usual_at(at).median.tolist() == [106.0]
    share = view.habits.share("filtered / messages").usual_at(at)
    assert share.median.tolist() == [20 / 106]
    assert share.week_ago.tolist() == [20 / 112]
    with store.engine.connect() as connection:
        backtested = read_habits(connection, pipeline.definition, now_s - 3_600, now_s)
    assert backtested.volume.usual_at(at).median.tolist() == [106.0]
    assert backtested.share("filtered / messages").usual_at(at).median.tolist() == [20 / 106]


def test_a_young_pipeline_has_no_habit(store: Store) -> None:
    view = ViewCache(store).view(applied(store), NOW_S)
    assert np.isnan(view.habits.volume.usual_at(np.array([NOW_S])).median).all()


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
