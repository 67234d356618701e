"""One collector for all tests of it, and a watched pipeline with somebody to tell for tests of alerting."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx2
import psutil
import pytest
from playwright.sync_api import Browser, sync_playwright

from docs.make_screenshots import CHROMIUM_ARGS
from lagloss.broker.topics import REPORTS, create_topics
from lagloss.wire.format import decode_report
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.partitions import DAY_S, make_days_ahead
from lagloss_server.store.store import Store
from tests.conftest import fresh_database
from tests.programs import need
from tests.support.alerting_world import START, Somebody, only_loss, somebody
from tests.support.kafka_log import read_all, wait_for

YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: src, to: [mid]}
    - {name: mid, to: [ga, fb]}
    - {name: ga}
    - {name: fb}
"""


@dataclass(frozen=True)
class Collector:
    """A running collector: `client` speaks to it from this machine, without a token."""

    client: httpx2.Client
    process: psutil.Process
    store: Store
    database_url: str
    bootstrap: str

    @property
    def url(self) -> str:
        return str(self.client.base_url).rstrip("/")

    def metric(self, name: str) -> float:
        """The sum of all that /metrics says by this name."""
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and not line.startswith("#"))


@contextmanager
def serving(**settings: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client]]:
    """A process of the collector, once it answers, and a client on this machine; killed at the end if it still runs."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"LAGLOSS_COLLECTOR_PORT": str(port), **settings}
    process = subprocess.Popen([sys.executable, "-m", "collector"], env=env, stdout=subprocess.DEVNULL)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_for(lambda: _answers(client), timeout_s=30, what="the collector")
            yield process, client
    finally:
        process.kill()
        process.wait(10)


@pytest.fixture(scope="session")
def collector(kafka_bootstrap: str, postgres: EmbeddedPostgres) -> Iterator[Collector]:
    create_topics(kafka_bootstrap)
    with fresh_database(postgres) as database_url:
        store = Store(database_url)
        settings = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_DATABASE_URL": database_url}
        with serving(**settings) as (process, client):
            wait_for(lambda: client.get("/healthz").status_code == 200, timeout_s=30, what="the collector")
            try:
                yield Collector(client, psutil.Process(process.pid), store, database_url, kafka_bootstrap)
            finally:
                process.terminate()
                assert process.wait(20) in (0, -signal.SIGTERM)  # uvicorn takes its leave with the signal it got
                store.close()
        decoded = [decode_report(value) for _, _, _, value in read_all(kafka_bootstrap, REPORTS)]
        own = {report.emitter: report for report in decoded if report.host.endswith(f":{process.pid}")}
        assert all(report.closed for report in own.values())


def _answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/metrics").is_success
    except httpx2.TransportError:
        return False


@pytest.fixture
def pipeline(collector: Collector) -> str:
    """A pipeline of the test's own: src -> mid -> ga, fb."""
    name = f"web-{uuid.uuid4().hex[:8]}"
    answer = collector.client.put(f"/v1/pipelines/{name}", content=DEFINITION.replace("NAME", name), headers=YAML)
    assert answer.status_code == 201, answer.text
    return name


@pytest.fixture
def stopped_broker(kafka: EmbeddedKafka) -> Iterator[Callable[[], None]]:
    """Called, it stops the broker from answering; it answers again when the test is over."""
    broker = psutil.Process(kafka.processes[0].pid)
    victims = [broker, *broker.children(recursive=True)]

    def send(number: int) -> None:
        for victim in victims:
            victim.send_signal(number)

    yield lambda: send(signal.SIGSTOP)
    send(signal.SIGCONT)


@pytest.fixture
def watched(store: Store) -> Store:
    """The store of the test's own database, with a pipeline whose only rule is the one on loss."""
    store.apply(only_loss(), (START - DAY_S) * 1_000)
    make_days_ahead(store.engine, START)
    return store


@pytest.fixture
def receiver() -> Iterator[Somebody]:
    """Somebody who is told by webhook."""
    with somebody() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium. Not for longer: while it is there, its event loop counts as running, and tests that run one
    of their own could not."""
    chromium = need("chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_ARGS)
        yield opened
        opened.close()
