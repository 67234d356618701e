"""All that the batch pipeline needs on one machine: lagloss, S3, Airflow, and the pipeline's own processes."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import psycopg

from lagloss_server.base.errors import ServerNotReady
from lagloss_server.base.settings import Settings
from lagloss_server.net.table_urls import variable_of
from lagloss_server.ops.child_environment import PACKAGES
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.processes import LOOPBACK, launcher, log_tail, python, rotate
from lagloss_server.ops.supervisor import Say, Service, start_all, stop_all
from lagloss_server.ops.up import ServiceStack
from lagloss_server.store.store import Store
from pipeline_under_test.batch import hourly
from pipeline_under_test.batch.airflow import USER, EmbeddedAirflow
from pipeline_under_test.batch.airflow_api import AirflowApi
from pipeline_under_test.batch.aws import Aws, Infrastructure, create
from pipeline_under_test.batch.schema import create_tables, open_database
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import DAG, DATABASE, IMPORTERS, LANDING, definitions

DAG_FILE: Final = Path(hourly.__file__).with_name("dag.py")
MODULE: Final = "pipeline_under_test.batch"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 30.0
LOOK_EVERY_S: Final = 0.2
LEAD_S: Final = 2.0
"""The first hour begins this much later than the importers work, or with the hour after."""


@dataclass(frozen=True)
class Sizes:
    """How large the pipeline is, and how patient: `retry_s` is the pause before a task's second try."""

    importers: int = 2
    retry_s: float = 3.0


class BatchStack:
    """The servers and processes of a run; use as a context manager from the main thread.

    `lagloss` has the settings of the running lagloss, `settings` those of the pipeline's processes, once started.
    """

    def __init__(self, lagloss: Settings, settings: BatchSettings, sizes: Sizes, say: Say) -> None:
        self.lagloss = lagloss
        self.settings = settings
        self._sizes = sizes
        self._say = say
        self._services: list[Service] = []
        self._landing: Service | None = None
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._start(exits)
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    @property
    def endpoints(self) -> dict[str, str]:
        """URLs for people, without passwords."""
        return {
            **self._services_of_lagloss.printable(),
            "s3, sns, sqs": self._localstack.url,
            "airflow": self.airflow.url,
        }

    def begin(self, first_run_s: int) -> None:
        """Start Airflow, with a first run of the hour at `first_run_s`, and to make events from `start_s` on.

        Both begin with an hour of the clock: one that is only partly observed is not whole, and would be waited for.
        """
        self._say("starting Airflow")
        self.airflow.launch({"SCORES_START_S": str(first_run_s)})
        self.airflow.await_ready(meanwhile=self._land_in_time)
        self._say(f"Airflow is ready: {self.airflow.url}")
        while self._landing is None:
            self._land_in_time()
            time.sleep(LOOK_EVERY_S)

    def _land_in_time(self) -> None:
        if self._landing is None and time.time() >= self.start_s:
            self._say("generating events")
            self._landing = self._service(LANDING, LANDING)
            self._landing.start()

    def stop_landing(self) -> None:
        """Store what is left, and make no more events."""
        if self._landing is not None:
            stop_all([self._landing], STOP_TIMEOUT_S)
            self._landing = None

    def tend(self) -> None:
        """Check all servers and processes once; restart those that died.

        Raises:
            ServerNotReady: LocalStack died, and with it all that was in S3 and in the queues.
        """
        self._services_of_lagloss.tend()
        if any(process.poll() is not None for process in self._localstack.processes):
            log = self._localstack.log_path
            raise ServerNotReady(server="LocalStack", detail=f"the process died: {log_tail(log)}", log=log)
        if any(process.poll() is not None for process in self.airflow.processes):
            self._say(f"Airflow died; restarting it; log: {self.airflow.log_path}")
            self.airflow.stop()
            self.airflow.start()
        for service in self._running:
            service.tend(self._say)
            rotate(service.log_path)

    @property
    def _running(self) -> list[Service]:
        return [*self._services, *([self._landing] if self._landing else ())]

    def _start(self, exits: ExitStack) -> None:
        data_dir = self.lagloss.data_dir.absolute()
        self._say("starting LocalStack")
        self._localstack = exits.enter_context(EmbeddedLocalStack(data_dir / "localstack"))
        # Everything that is started from here on reaches it, the aggregator too, which asks for the queues' lags.
        url_path = data_dir / "scores.url"  # once there is a database
        exits.enter_context(_variables({**self._localstack.variables, f"{variable_of(DATABASE)}_FILE": str(url_path)}))
        self._services_of_lagloss = exits.enter_context(ServiceStack(self.lagloss, self._say))
        self.lagloss = self._services_of_lagloss.settings
        database = self.lagloss.require_database()
        self.settings = self.settings.model_copy(
            update={
                "data_dir": data_dir / "pipeline",
                "s3_endpoint": self._localstack.url,
                "database_url": create_database(database, DATABASE),
                "tables": True,
            }
        )
        url_path.write_text(self.settings.database_url)
        exits.enter_context(_variables(self.settings.variables))
        self.aws = Aws.connect(self.settings)
        exits.callback(self.aws.close)
        self.infrastructure = prepare(self.aws, self.settings, database)
        self._say("creating Airflow's tables")
        reached = {
            "LAGLOSS_COLLECTOR_URL": self.lagloss.collector_url,
            "LAGLOSS_KAFKA_BOOTSTRAP": self.lagloss.require_kafka(),
            "SCORES_RETRY_S": str(self._sizes.retry_s),
        }
        self.airflow = airflow_of(self.settings, data_dir / "airflow", reached)
        self.airflow.prepare()
        self._services = [
            self._service(f"{importer}-{number}", "importer", importer)
            for importer in IMPORTERS
            for number in range(1, self._sizes.importers + 1)
        ]
        self._say("starting the importers")
        exits.callback(lambda: stop_all(self._running, STOP_TIMEOUT_S))
        start_all(self._services, START_TIMEOUT_S, self._say)
        self.start_s = self._first_hour()
        self.api = exits.enter_context(AirflowApi(self.airflow.url, USER, self.airflow.password, DAG))
        exits.callback(self.airflow.stop)

    def _first_hour(self) -> int:
        span_s = self.settings.span_s
        return math.ceil((time.time() + LEAD_S) / span_s) * span_s

    def _service(self, name: str, *command: str) -> Service:
        env = {
            "LAGLOSS_KAFKA_BOOTSTRAP": self.lagloss.require_kafka(),
            "LAGLOSS_SPOOL_DIR": str(self.settings.data_dir / "spool"),  # what a killed importer reported is certain
        }
        return Service(name, MODULE, self.settings.log_dir / f"{name}.log", env, None, command)


def prepare(aws: Aws, settings: BatchSettings, lagloss_url: str) -> Infrastructure:
    """Create bucket, topic, queues and tables, as far as they are missing, define both pipelines in lagloss's database,
    and return what there is."""
    infrastructure = create(aws, settings)
    engine = open_database(settings.database_url)
    create_tables(engine)
    engine.dispose()
    store = Store(lagloss_url)
    for definition in definitions(settings.span_s, infrastructure.queues, settings.pipeline, tables=settings.tables):
        store.apply(definition)
    store.close()
    return infrastructure


def airflow_of(
    settings: BatchSettings, data_dir: Path, variables: Mapping[str, str], port: int = 0, address: str = LOOPBACK
) -> EmbeddedAirflow:
    """Return the Airflow of the hourly job, with a database beside the pipeline's own; see `EmbeddedAirflow`."""
    database_url = create_database(settings.database_url, "airflow")
    steps = {"SCORES_STEP": step_command(f"{MODULE}.hourly"), "SCORES_WHEN_LOSSY": "run"}
    return EmbeddedAirflow(data_dir, database_url, [DAG_FILE], {**steps, **variables}, port, address)


def step_command(module: str) -> str:
    """Return the shell command of a task in this process's environment, which ends with the shell's parent."""
    words = [shlex.quote(word) for word in launcher()]
    words[words.index(str(os.getpid()))] = "$PPID"  # the shell's parent, and that of what `exec` replaces it by
    return " ".join([*words, "env", f"PYTHONPATH={shlex.quote(str(PACKAGES))}", shlex.join(python(module))])


def create_database(server_url: str, name: str) -> str:
    """Return the URL of a database beside that of `server_url`, made if it is missing."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


@contextmanager
def _variables(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
