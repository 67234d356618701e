"""The warehouse commits a click once its row is in the table, whatever kills it; with `commit_first`, before that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from pipeline_under_test.harness.faults import LEAD_S
from pipeline_under_test.stream.faults import parse
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.table import create_table, stored_rows
from pipeline_under_test.stream.topology import WAREHOUSE, dead_topic, topic_of
from tests.conftest import fresh_database
from tests.support.closers import wait_until
from tests.support.event_topics import backlog, clicks, events_in, idle_pipeline, names_committed, names_in, put
from tests.support.node_process import running

MakePipeline = Callable[..., ReferenceSettings]


@pytest.fixture
def pipeline(kafka_bootstrap: str, postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[MakePipeline]:
    create_topics(kafka_bootstrap)
    with fresh_database(postgres) as url:

        def make(**more: Any) -> ReferenceSettings:
            settings = idle_pipeline(kafka_bootstrap, tmp_path, database_url=url, **more)
            create_table(url, settings.pipeline)
            return settings

        yield make


def send(settings: ReferenceSettings, prefix: str, count: int) -> set[str]:
    events = clicks(prefix, count)
    put(settings, topic_of(settings.pipeline, WAREHOUSE), events)
    return {event.id for event in events}


def stored(settings: ReferenceSettings) -> list[str]:
    with closing(stored_rows(settings)) as rows:
        return [entry.id for entry in rows.new_entries()]


def await_committed(settings: ReferenceSettings) -> None:
    wait_until(lambda: backlog(settings, WAREHOUSE) == 0, 60, "for the commits")


def test_each_click_is_stored_once_and_faults_decide_which_are_not(pipeline: MakePipeline) -> None:
    settings = pipeline(batch=20)
    injections = settings.injections()
    for fault in ("lose:node:warehouse:0.2", "dead:warehouse:0.2", "duplicate:warehouse:0.2"):
        injections.add(parse(fault), in_s=0)
    sent = send(settings, "a", 300)
    with running(settings, "node", WAREHOUSE) as warehouse:
        await_committed(settings)
        assert warehouse.end() == 0
    rows = stored(settings)
    dead = names_in(settings, dead_topic(settings.pipeline))
    assert len(rows) == len(set(rows))
    assert set(rows) | dead < sent
    assert 20 < len(dead) < 100
    assert 20 < len(sent - set(rows) - dead) < 100


def test_a_click_that_no_table_takes_is_dead_and_the_others_are_stored(pipeline: MakePipeline) -> None:
    settings = pipeline(batch=50)
    good = clicks("good", 90)
    (poison,) = clicks("poison", 1, url="https://shop.example/\0")
    put(settings, topic_of(settings.pipeline, WAREHOUSE), [*good[:40], poison, *good[40:]])
    with running(settings, "node", WAREHOUSE):
        await_committed(settings)
    assert sorted(stored(settings)) == sorted(event.id for event in good)
    (dead,) = events_in(settings.bootstrap, dead_topic(settings.pipeline))
    assert (dead.id, dead.back_to, dead.reason) == ("poison-0", WAREHOUSE, "refused by the table: DataError")


@pytest.mark.slow
def test_a_warehouse_that_is_killed_or_has_no_table_stores_each_click_once(pipeline: MakePipeline) -> None:
    settings = pipeline(batch=10)
    sent = send(settings, "a", 200)
    hidden = psycopg.connect(settings.database_url, autocommit=True)
    rename = 'ALTER TABLE "{0}".{1} RENAME TO {2}'
    with closing(hidden), running(settings, "node", WAREHOUSE) as warehouse:
        await_committed(settings)
        hidden.execute(rename.format(settings.pipeline, "click", "away"))  # type: ignore[arg-type]
        sent |= send(settings, "b", 100)
        wait_until(lambda: "storing 10 clicks again" in warehouse.log_path.read_text(), 60, "for a refused batch")
        assert backlog(settings, WAREHOUSE) == 100
        warehouse.kill()
        hidden.execute(rename.format(settings.pipeline, "away", "click"))  # type: ignore[arg-type]
        warehouse.start()
        await_committed(settings)
    assert sorted(stored(settings)) == sorted(sent)


@pytest.mark.slow
def test_a_killed_warehouse_that_commits_first_leaves_committed_clicks_that_no_table_has(
    pipeline: MakePipeline,
) -> None:
    settings = pipeline(commit_first=True)
    before = send(settings, "a", 50)
    with running(settings, "node", WAREHOUSE) as warehouse:
        wait_until(lambda: set(stored(settings)) == before, 60, "for the rows")
        settings.injections().add(parse("delay:warehouse:60s:1"), in_s=0)
        time.sleep(LEAD_S)  # until the process knows
        held = send(settings, "b", 50)
        wait_until(lambda: held <= names_committed(settings, WAREHOUSE), 60, "for the commits")
        warehouse.kill()
        settings.injections().end_all()
        warehouse.start()
        after = send(settings, "c", 50)
        wait_until(lambda: after <= set(stored(settings)), 60, "for the rows")
    assert set(stored(settings)) == before | after
