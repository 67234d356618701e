"""Real servers for tests that ask for them: started when first asked for, shared by the session, ended with it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

import httpx2
import hypothesis
import pytest
from pyspark.sql import SparkSession
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from lagloss.broker.topics import create_topics
from lagloss_server.ops import jars as lagloss_jars
from lagloss_server.ops.embedded import postgres as embedded_postgres
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.spark_session import start_session
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store
from tests.programs import SKIPPED
from tests.support.kafka_log import PATIENCE
from tests.support.spark_archive import archive_options

# How long an example takes says more about the machine's other work than about the code.
hypothesis.settings.register_profile("lagloss", deadline=None)
hypothesis.settings.load_profile("lagloss")

# A job in the background of a script has SIGINT ignored, and with it all that tests start, and end as Ctrl-C does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For JVMs that live for seconds or minutes: else they spend half of it on compiling well what they will hardly run.
_java_options = (os.environ.get("JAVA_TOOL_OPTIONS", ""), "-XX:TieredStopAtLevel=1", *archive_options())
os.environ["JAVA_TOOL_OPTIONS"] = " ".join(_java_options).strip()

# Without a client of one's own, httpx2 reads the machine's authorities anew for each request, for http:// too: 40 ms of
# the processor, thousands of times while tests wait for something on loopback.
_authorities = httpx2.create_ssl_context()
for _name in ("delete", "get", "head", "options", "patch", "post", "put", "request"):
    setattr(httpx2, _name, partial(getattr(httpx2, _name), verify=_authorities))

TEMPLATE = "migrated_template"
QUICK_IN_A_BROWSER = "test_shell.py"
"""Of the tests in a browser, those that `make test` runs, too: five to twenty seconds each is too long for all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in a folder other than tests/unit and tests/oracle needs servers, as far as `make unit` goes. Each
    test has a second try: on a machine that is busy with others a broker may answer late, and a process start after the
    next step of its test. The summary counts reruns; one that comes up again is a fault to mend. Slow tests, which kill
    processes and servers, have longer than the others before they count as stuck."""
    here = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
        if folder in ("integration", "acceptance"):
            item.add_marker(pytest.mark.servers)
        item.add_marker(pytest.mark.flaky(reruns=1))
        if "browser" in getattr(item, "fixturenames", ()) and item.path.name != QUICK_IN_A_BROWSER:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(600 * PATIENCE))
        elif item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(180 * PATIENCE))


class OneInstallationAtATime(LoadFileScheduling):
    """Files go to whoever is free, but all of tests/acceptance to one process. Each of its tests runs a whole
    installation, a demo at times: three of them beside each other take a machine of two cores for ten minutes."""

    def _split_scope(self, nodeid: str) -> str:
        acceptance = "tests/acceptance/"
        return acceptance if nodeid.startswith(acceptance) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneInstallationAtATime | None:
    return OneInstallationAtATime(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no slow test after LAGLOSS_SLOW_UNTIL (epoch s): CI ends a run that takes too long on a slow machine, and
    says nothing of what it found. The summary names the tests that did not run."""
    until_s = float(os.environ.get("LAGLOSS_SLOW_UNTIL") or "inf")
    if item.get_closest_marker("slow") is not None and time.time() > until_s:
        pytest.skip("the time for slow tests is up")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
    """Name last the programs that tests were skipped for, and the command that installs them."""
    yield
    missing = Counter(
        str(report.longrepr[2]).partition(SKIPPED)[2]
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple) and SKIPPED in report.longrepr[2]
    )
    if missing:
        programs = ", ".join(f"{name} ({count})" for name, count in sorted(missing.items()))
        terminalreporter.write_line(f"{missing.total()} tests were skipped for want of programs: {programs}")
        terminalreporter.write_line("`make test-tools` installs them")


@dataclass(frozen=True)
class Topics:
    """A pair of topics of a test's own."""

    beacons: str
    reports: str


@pytest.fixture(scope="session")
def server_dir() -> Iterator[Path]:
    """A folder for servers' data. Not pytest's own: PostgreSQL's user could not enter that when we are root."""
    folder = new_folder()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def new_folder(server_dir: Path | None = None) -> Path:
    """An empty folder for servers' data that nobody else has, nor an earlier try of the same test."""
    folder = Path(tempfile.mkdtemp(prefix="lagloss-tests-", dir=server_dir))
    folder.chmod(0o711)
    return folder


@pytest.fixture
def own_dir(server_dir: Path) -> Path:
    """A folder for the data of servers that are this test's own."""
    return new_folder(server_dir)


@pytest.fixture(scope="session")
def jars() -> None:
    """All jars in place (fetched if they are not)."""
    lagloss_jars.ensure()


@pytest.fixture(scope="session")
def kafka(jars: None, server_dir: Path) -> Iterator[EmbeddedKafka]:
    """The session's broker."""
    with EmbeddedKafka(server_dir / "kafka") as broker:
        yield broker


@pytest.fixture(scope="session")
def kafka_bootstrap(kafka: EmbeddedKafka) -> str:
    """host:port of the session's broker."""
    return kafka.bootstrap


@pytest.fixture(scope="session")
def localstack(server_dir: Path) -> Iterator[EmbeddedLocalStack]:
    """The session's emulator of S3, SNS and SQS, in an environment of its own (fetched if it is not there)."""
    with EmbeddedLocalStack(server_dir / "localstack") as emulator:
        yield emulator


@pytest.fixture(scope="session")
def postgres(server_dir: Path) -> Iterator[EmbeddedPostgres]:
    """The session's PostgreSQL, with a migrated database to copy from. It would not survive a power cut: to drop a
    database, as hundreds of tests do, writes a checkpoint, which would sync the files of all tables."""
    with patch.dict(embedded_postgres._SETTINGS, fsync="off", max_prepared_transactions="10"):
        server = EmbeddedPostgres(server_dir / "postgres").start()
    try:
        migrate(server.create_database(TEMPLATE))
        yield server
    finally:
        server.stop()


@pytest.fixture
def database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh migrated database of the test's own; `postgresql://…`."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """The store of the test's own database."""
    opened = Store(database_url)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def module_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A fresh migrated database that a module's tests share."""
    with fresh_database(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def spark(jars: None, server_dir: Path) -> Iterator[SparkSession]:
    """The session's Spark, set up as the aggregator sets up its own."""
    from aggregator.kernel.spark_reader import AGGREGATOR_JOB  # with the kernel, which most tests do not need

    session = start_session(AGGREGATOR_JOB, "local[2]", "1g", server_dir / "spark")
    yield session
    session.stop()


@pytest.fixture
def topics(kafka_bootstrap: str) -> Callable[..., Topics]:
    """Makes pairs of topics with names of their own: `topics()`, `topics(beacons_partitions=2)`."""

    def make(beacons_partitions: int = 4, reports_partitions: int = 2) -> Topics:
        word = uuid.uuid4().hex[:12]
        pair = Topics(f"lagloss.beacons.{word}", f"lagloss.reports.{word}")
        create_topics(
            kafka_bootstrap, beacons_partitions, reports_partitions, beacons=pair.beacons, reports=pair.reports
        )
        return pair

    return make


@contextmanager
def fresh_database(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A migrated database for as long as the block lasts."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield postgres.create_database(name, template=TEMPLATE)
    postgres.drop_database(name)
