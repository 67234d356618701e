"""The hourly job on real servers, Airflow and Spark among them: what it computes and reports, and how it fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec import structs
from sqlalchemy import Engine, select

from aggregator.closing import window_store
from lagloss.wire.format import hash_id
from lagloss_server.model.jobs import JobSpec
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.runs.dag_runs import DagRun, why_bad
from lagloss_server.runs.run_store import read_runs
from lagloss_server.store.store import Store, read_basis
from pipeline_under_test.batch.airflow import USER, EmbeddedAirflow
from pipeline_under_test.batch.airflow_api import AirflowApi
from pipeline_under_test.batch.events import ScoreEvent
from pipeline_under_test.batch.hourly.faults import TaskFault, faults_of
from pipeline_under_test.batch.ledger import read_ledger
from pipeline_under_test.batch.schema import PUBLICATION, SCORE, create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.sinks import EventTable
from pipeline_under_test.batch.stack import DAG_FILE, MODULE, step_command
from pipeline_under_test.batch.topology import DAG, definitions
from pipeline_under_test.batch.verdict import TrueRuns, late_hours
from tests.conftest import new_folder
from tests.integration.conftest import Collector
from tests.support.closers import wait_until
from tests.support.pipeline_beacons import read_beacons
from tests.support.stored_windows import closing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPAN_S = 120
JOB = JobSpec.model_validate({"dag": DAG, "span": f"{SPAN_S}s", "node": "aggregate", "task": "aggregate"})
CAMPAIGNS = {"autumn": 30, "winter": 10}
"""Events of each hour, by campaign; each is worth 1."""


@dataclass(frozen=True)
class HourlyWorld:
    """An Airflow with the job, whose two past hours `first` and `second` (epoch s) are imported and whole."""

    settings: BatchSettings
    engine: Engine
    store: Store
    api: AirflowApi
    bootstrap: str
    first: int

    @property
    def second(self) -> int:
        return self.first + SPAN_S

    def import_events(self, hour: int, names: Sequence[str], campaign: str) -> set[str]:
        made = [ScoreEvent(name, 1000 * (hour + 5), campaign, "u", "view", 1.0) for name in names]
        EventTable(self.engine, SPAN_S).write(made)
        return {event.id for event in made}

    def run_of(self, hour: int) -> DagRun | None:
        """The run, as lagloss has it."""
        found = [run for run in read_runs(self.store, self.settings.pipeline, [JOB]) if run.hour.from_s == hour]
        return found[0] if found else None

    def await_run(self, hour: int, state: str) -> DagRun:
        def reached() -> DagRun | None:
            run = self.run_of(hour)
            return run if run is not None and run.state == state else None

        found: DagRun = wait_until(reached, 240, f"for the run of {hour} to be {state}")
        return found

    def rerun(self, run: DagRun) -> None:
        """Run all of it again, and return once it has succeeded."""
        number = max(each.number for each in (self.run_of(run.hour.from_s) or run).tries)
        self.api.rerun(run.run_id)

        def is_done() -> bool:
            found = self.run_of(run.hour.from_s) or run
            return any(each.number > number and each.task == "publish" for each in found.tries if each.ended_ms)

        wait_until(is_done, 240, "for the rerun")
        self.await_run(run.hour.from_s, "success")

    def scores(self, hour: int) -> dict[str, tuple[int, float, float]]:
        with self.engine.connect() as connection:
            rows = connection.execute(select(SCORE).where(SCORE.c.hour == hour)).all()
        return {row.campaign: (row.events, row.value, row.score) for row in rows}

    def publication(self, hour: int) -> tuple[int, str] | None:
        """Events and digest of what is published."""
        with self.engine.connect() as connection:
            row = connection.execute(select(PUBLICATION).where(PUBLICATION.c.hour == hour)).one_or_none()
        return None if row is None else (row.events, row.digest)


@pytest.fixture(scope="module")
def world(collector: Collector, postgres: EmbeddedPostgres, server_dir: Path) -> Iterator[HourlyWorld]:
    folder, word = new_folder(server_dir), uuid.uuid4().hex[:8]
    settings = BatchSettings(
        data_dir=folder / "pipeline",
        database_url=postgres.create_database(f"scores_{word}"),
        pipeline=f"scores-{word}",
        span_s=SPAN_S,
    )
    engine = open_database(settings.database_url)
    create_tables(engine)
    records, _ = definitions(SPAN_S, pipeline=settings.pipeline, tables=False)
    collector.store.apply(records)
    first = int(time.time()) // SPAN_S * SPAN_S - 2 * SPAN_S
    _close_windows(collector.store, settings.pipeline, range(first, first + 2 * SPAN_S, 60))
    faults_of(settings.data_dir).add(TaskFault.parse("task:publish", first))
    variables = {
        **settings.variables,
        "LAGLOSS_COLLECTOR_URL": collector.url,
        "LAGLOSS_KAFKA_BOOTSTRAP": collector.bootstrap,
        "SCORES_STEP": step_command(f"{MODULE}.hourly"),
        "SCORES_RETRY_S": "1",
        "SCORES_START_S": str(first),
    }
    airflow = EmbeddedAirflow(folder / "airflow", postgres.create_database(f"airflow_{word}"), [DAG_FILE], variables)
    with _imported(engine, settings, first), airflow, AirflowApi(airflow.url, USER, airflow.password, DAG) as api:
        yield HourlyWorld(settings, engine, collector.store, api, collector.bootstrap, first)
    engine.dispose()


@contextmanager
def _imported(engine: Engine, settings: BatchSettings, first: int) -> Iterator[None]:
    for hour in (first, first + SPAN_S):
        for campaign, number in CAMPAIGNS.items():
            made = [_event(hour, campaign, each) for each in range(number)]
            EventTable(engine, settings.span_s).write(made)
    yield


def _event(hour: int, campaign: str, number: int) -> ScoreEvent:
    return ScoreEvent(f"{hour}-{campaign}-{number}", 1000 * (hour + number), campaign, "u", "view", 1.0)


def names_of(hour: int) -> set[int]:
    return {
        hash_id(_event(hour, campaign, each).id) for campaign, number in CAMPAIGNS.items() for each in range(number)
    }


def _close_windows(store: Store, pipeline: str, starts: Sequence[int]) -> None:
    """Write windows in which nothing is missing, as the aggregator does."""
    with store.engine.begin() as connection:
        basis = read_basis(connection)
        for start in starts:
            made = closing(start, 20, 0, 10.0, basis, int(time.time() * 1000))
            window_store.commit(connection, [replace(made, result=structs.replace(made.result, pipeline=pipeline))])


def test_a_run_whose_publication_fails_is_failed_although_spark_succeeded_until_it_is_repaired(
    world: HourlyWorld,
) -> None:
    failed = world.await_run(world.first, "failed")
    # a task that Airflow could not begin on a busy machine is tried again: what became of each is what counts
    ended = {each.task: each.state for each in failed.last_tries}
    assert ended == dict.fromkeys(("whole", "aggregate", "load", "check"), "success") | {"publish": "failed"}
    tries = [(each.number, each.state) for each in failed.tries if each.task == "publish"]
    assert tries == [(1, "failed"), (2, "failed"), (3, "failed")]
    assert "although aggregate succeeded" in str(why_bad(JOB, failed))
    assert world.scores(world.first) == {"autumn": (30, 30.0, 0.75), "winter": (10, 10.0, 0.25)}
    assert world.publication(world.first) is None
    assert TrueRuns.of(read_ledger(world.settings.ledger_dir)).failed == {
        (world.first, "publish", number) for number in (1, 2, 3)
    }
    faults_of(world.settings.data_dir).lift(TaskFault.parse("task:publish", world.first))
    world.api.rerun(failed.run_id, only_failed=True)
    repaired = world.await_run(world.first, "success")
    assert repaired.failed_ms is not None
    before, after = ([each for each in run.tries if each.task == "aggregate"] for run in (failed, repaired))
    assert before == after, "what had succeeded is not done again"
    assert world.publication(world.first) is not None


def test_a_rerun_replaces_its_output_exactly_and_restates_an_hour_with_late_data(world: HourlyWorld) -> None:
    run = world.await_run(world.second, "success")
    published = world.publication(world.second)
    assert published is not None
    assert published[0] == 40
    late = world.import_events(world.second, [f"{world.second}-late"], "winter")
    with world.engine.connect() as connection:
        assert late_hours(connection) == {world.second}
    world.rerun(run)
    assert (world.publication(world.second) or (0,))[0] == 41  # and not 81
    assert world.scores(world.second) == {
        "autumn": (30, 30.0, pytest.approx(30 / 41)),
        "winter": (11, 11.0, pytest.approx(11 / 41)),
    }
    beacons = read_beacons(world.bootstrap, world.settings.pipeline)
    reported = names_of(world.second) | {hash_id(name) for name in late}
    for checkpoint in ("aggregate.in", "aggregate.out"):
        assert reported <= beacons.ids[checkpoint]
        assert beacons.ids[checkpoint] - reported <= names_of(world.first)
