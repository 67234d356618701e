"""The page and the report of one of several sources, read from real rows and roll-ups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aggregator.closing.window_store import mark_hours
from aggregator.maintenance import rollups
from aggregator.set_aside import SetAside
from dashboard.queries.panels import read_panels
from dashboard.reports.making import make_report
from dashboard.reports.ranges import CalendarRange
from dashboard.request.shown_range import ShownRange
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.window import LossRatio
from lagloss_server.store.store import Store
from tests.support.window_documents import document, store_window

MIDNIGHT = 1_795_219_200
HOUR = 3_600
DAY = 86_400
MERGED = parse_definition(
    """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: merged}
spec:
  nodes:
    - {name: web, to: [norm]}
    - {name: app, to: [norm]}
    - {name: norm}
"""
)


def source(name: str, messages: int, lost: int) -> dict[str, Any]:
    delivered = messages - lost
    counts = {"messages": messages, "delivered": delivered, "filtered": 0, "dead": 0, "pending": 0}
    lags = {"p50": 1.0, "p95": 2.0, "p99": 3.0, "max": 4.0}
    share = {"on_time_share": delivered / messages, "on_time_of": messages, "e2e_lag_ms": lags}
    return {"name": name, **counts, "lost": {"min": lost, "max": lost}, **share}


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    """Two hours: 900 messages a minute from web, 100 from app, of which 3 are lost in every tenth minute."""
    opened = Store(module_database_url)
    opened.apply(MERGED, now_ms=MIDNIGHT * 1_000)
    starts = range(MIDNIGHT, MIDNIGHT + 2 * HOUR, 60)
    with opened.engine.begin() as connection:
        for start in starts:
            lost = 3 if start % 600 == 0 else 0
            window = document(MERGED, start, lost={"app->norm": (lost, lost)} if lost else None)
            window["sources"] = [source("web", 900, 0), source("app", 100, lost)]
            store_window(connection, window, start, notify=False)
        mark_hours(connection, [("merged", start) for start in starts], 0)
    now_ms, left = 10 * DAY * 1_000 + MIDNIGHT * 1_000, 1
    while left:
        _, left = rollups.roll_up(opened.engine, now_ms, SetAside(opened.engine))
        now_ms += rollups.SETTLE_MS
    yield opened
    opened.close()


def test_the_minutes_of_a_source_have_its_messages_and_no_others(store: Store) -> None:
    span = ShownRange(MIDNIGHT, MIDNIGHT + 2 * HOUR)
    panels = read_panels(store, "merged", span, MIDNIGHT + 2 * HOUR).from_source("app")
    assert {bucket.messages for bucket in panels.series.buckets} == {100}
    assert sum(bucket.lost.max for bucket in panels.series.buckets if bucket.lost) == 36
    assert panels.series.total is not None
    assert (panels.series.total.messages, panels.series.total.loss_ratio) == (12_000, (0.003, 0.003))
    assert panels.newest is not None
    assert (panels.newest.messages, panels.newest.loss_ratio) == (100, LossRatio(0.0, 0.0))


def test_the_hours_of_a_source_are_what_its_minutes_come_to(store: Store) -> None:
    span = ShownRange(MIDNIGHT - 10 * DAY, MIDNIGHT + 2 * HOUR)
    series = read_panels(store, "merged", span, MIDNIGHT + 2 * HOUR).series.from_source("app")
    assert [(bucket.messages, bucket.loss_ratio) for bucket in series.buckets] == [(6_000, (0.003, 0.003))] * 2


def test_the_report_of_a_source_is_judged_by_its_messages_where_that_of_all_is_not(store: Store) -> None:
    span, now_s = CalendarRange(MIDNIGHT, MIDNIGHT + 2 * HOUR, "UTC"), MIDNIGHT + 3 * HOUR
    whole, app = make_report(store, "merged", span, now_s), make_report(store, "merged", span, now_s, "app")
    assert (whole.whole.total.messages, app.whole.total.messages) == (120_000, 12_000)
    assert [there.whole.total.messages for there in whole.sources] == [108_000, 12_000]
    assert app.whole.total.loss_ratio == LossRatio(0.003, 0.003)
    assert {hour.figures.total.messages for hour in app.worst_hours} == {6_000}
