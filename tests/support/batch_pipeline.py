"""The batch pipeline as processes on real servers: landing, importers, and what they left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, func, select

from lagloss.broker.connection import BOOTSTRAP_VARIABLE
from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import log_tail, spawn, terminate
from pipeline_under_test.batch import schema
from pipeline_under_test.batch.aws import EMULATED, Aws, Infrastructure, create
from pipeline_under_test.batch.faults import injections, parse
from pipeline_under_test.batch.ledger import Fact, read_ledger
from pipeline_under_test.batch.scaling import importer_group
from pipeline_under_test.batch.settings import BatchSettings
from pipeline_under_test.batch.topology import IMPORTERS
from pipeline_under_test.harness.group import Group
from tests.support.closers import wait_until

MODULE = "pipeline_under_test.batch"


@dataclass
class BatchPipeline:
    """A pipeline of a test's own; `groups` are tended by a thread while it is entered."""

    settings: BatchSettings
    aws: Aws
    infrastructure: Infrastructure
    engine: Engine
    env: Mapping[str, str]
    groups: dict[str, Group] = field(default_factory=dict)
    landing: subprocess.Popen[bytes] | None = None

    def inject(self, *faults: str) -> None:
        """From now on, these faults hold and no others."""
        injections(self.settings).begin_anew(map(parse, faults))

    def start_landing(self) -> None:
        words = [sys.executable, "-m", MODULE, "landing"]
        self.landing = spawn(words, self.settings.log_dir / "landing.log", env=self.env)

    def stop_landing(self) -> None:
        assert self.landing is not None
        code = terminate(self.landing, 30)
        assert code == 0, log_tail(self.settings.log_dir / "landing.log", 12)

    def command(self, *words: str) -> None:
        done = spawn([sys.executable, "-m", MODULE, *words], self.settings.log_dir / "command.log", env=self.env)
        assert done.wait(60) == 0, log_tail(self.settings.log_dir / "command.log", 12)

    def facts(self, *kinds: str) -> list[Fact]:
        return [fact for fact in read_ledger(self.settings.ledger_dir) if fact["kind"] in kinds]

    def await_facts(self, number: int, *kinds: str, timeout_s: float = 90) -> None:
        wait_until(lambda: len(self.facts(*kinds)) >= number, timeout_s, f"for {number} of {kinds}")

    def await_drained(self, timeout_s: float = 120) -> None:
        """Returns once nothing is visible or in flight in any queue, twice in a row."""
        calm = 0

        def drained() -> bool:
            nonlocal calm
            counts = [self.aws.counts(url) for url in self.infrastructure.queues.values()]
            calm = calm + 1 if all(each == (0, 0) for each in counts) else 0
            time.sleep(0.5)
            return calm > 2

        wait_until(drained, timeout_s, "for empty queues")

    def rows(self, table: str) -> int:
        with self.engine.connect() as connection:
            found: int = connection.execute(
                select(func.count()).select_from(schema.METADATA.tables[table])
            ).scalar_one()
        return found


@contextmanager
def batch_pipeline(
    bootstrap: str,
    localstack: EmbeddedLocalStack,
    postgres: EmbeddedPostgres,
    folder: Path,
    processes: Mapping[str, int] | None = None,
    **options: object,
) -> Iterator[BatchPipeline]:
    """Importers that run, and a landing that can be started; `processes` by importer, one by default."""
    create_topics(bootstrap)
    word = uuid.uuid4().hex[:8]
    database = postgres.create_database(f"scores_{word}")
    defaults: dict[str, object] = {
        "span_s": 60,
        "notified_within_s": 5,
        "visibility_s": 6,
        "poll_s": 1,
        "dead_letters_s": 10,
        "file_records": 50,
        "file_s": 2,
    }
    settings = BatchSettings.model_validate(
        {
            **defaults,
            "data_dir": folder,
            "s3_endpoint": localstack.url,
            "database_url": database,
            "pipeline": f"scores-{word}",
            **options,
        }
    )
    env = {**localstack.variables, **settings.variables, BOOTSTRAP_VARIABLE: bootstrap}
    aws = Aws.connect(settings, **EMULATED)
    engine = schema.open_database(database)
    schema.create_tables(engine)
    made = BatchPipeline(settings, aws, create(aws, settings), engine, env)
    for importer in IMPORTERS:
        number = (processes or {}).get(importer, 1)
        made.groups[importer] = importer_group(settings, importer, least=number, most=number, env=env)
    ended = threading.Event()
    try:
        for group in made.groups.values():
            group.tend()  # from this thread: its end would be the processes'
        tending = threading.Thread(target=_tend, args=(made.groups, ended.is_set), daemon=True)
        tending.start()
        yield made
        ended.set()
        tending.join(10)
        codes = [code for group in made.groups.values() for code in group.end()]
        assert set(codes) <= {0, -signal.SIGTERM}, "the latter of one that was about to start"
    finally:
        ended.set()
        if made.landing is not None:
            terminate(made.landing, 10)
        for group in made.groups.values():
            group.abort()
        engine.dispose()
        aws.close()
        postgres.drop_database(f"scores_{word}")


def _tend(groups: Mapping[str, Group], is_over: Callable[[], bool]) -> None:
    while not is_over():
        for group in groups.values():
            group.tend()
        time.sleep(0.1)
