"""Runs of jobs, as they are reported to a database, open and resolve incidents that say what waits."""

from __future__ import annotations

import time

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.views.view_cache import ViewCache
from lagloss_server.runs.run_store import RunReport, StateAt, record
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.store import Store
from tests.support.alert_views import rule_of
from tests.support.alerting_world import evaluate, only_loss, rows
from tests.support.runs import store_failed_run


def test_a_failed_publication_is_an_incident_until_the_hour_is_published(store: Store) -> None:
    to_s = int(time.time()) // 60 * 60 - 900
    store.apply(only_loss())
    store_failed_run(store, "chain", to_s)
    by = Evaluator(store, Notifier([]))
    assert evaluate(store, by) == ["run-failed/scores opened"]  # five minutes before its deadline
    (incident,) = rows(store, IncidentRow)
    assert (incident.kind, incident.severity, incident.state) == ("run-failed", "critical", "open")
    assert "publish failed after 2 tries although spark succeeded; the hour " in incident.detail["text"]
    assert "none of its windows is closed" in incident.detail["text"]
    due_ms, now_ms = 1_000 * to_s, int(1_000 * time.time())
    hour = (due_ms - 3_600_000, due_ms)
    again = StateAt("success", now_ms, now_ms - 60_000, now_ms)
    published = StateAt("success", now_ms, now_ms - 60_000, now_ms)
    with store.engine.begin() as connection:
        record(
            connection,
            [
                ("chain", RunReport("scores", "r-1", due_ms, hour, run=again)),
                ("chain", RunReport("scores", "r-1", due_ms, hour, task="publish", try_number=3, task_event=published)),
            ],
        )
    view = ViewCache(store).view(store.pipeline("chain"), time.time() + 60)  # a minute that was a breach stays one
    found = rule_of(view.definition, "run-failed/scores").assess(view)
    assert not found.breaches
    assert found.good
