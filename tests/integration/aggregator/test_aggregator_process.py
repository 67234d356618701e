"""The aggregator as a process: killed and started again, standing by, and with servers that are away."""

from __future__ import annotations

import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyspark.sql import SparkSession

from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import choose_port, spawn, terminate
from lagloss_server.store.store import Store
from tests.conftest import fresh_database
from tests.support.closers import driven, wait_until
from tests.support.databases import differences, dump
from tests.support.dying.aggregator import POINTS, WINDOWS_PER_READ
from tests.support.window_documents import documents

MINUTES = 20
A_MINUTE = 300


@contextmanager
def aggregator(
    bootstrap: str, database_url: str, folder: Path, module: Sequence[str | Path] = ("aggregator",)
) -> Iterator[Any]:
    """A real aggregator process; ended at the end if it still runs. `.url` is where its metrics are."""
    port = choose_port("the aggregator")
    env = {
        "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_DATA_DIR": str(folder),
        "LAGLOSS_METRICS_PORT": str(port),
        "LAGLOSS_SPARK_DRIVER_MEMORY": "1g",
    }
    process = spawn([sys.executable, "-m", *module], folder / "aggregator.log", env=env)
    process.url = f"http://127.0.0.1:{port}"  # type: ignore[attr-defined]
    try:
        yield process
    finally:
        terminate(process, 20)


def health(process: Any) -> tuple[int, str]:
    """What /healthz says; (0, "") while nobody answers."""
    try:
        answer = httpx2.get(f"{process.url}/healthz", timeout=5)
    except httpx2.HTTPError:
        return 0, ""
    return answer.status_code, answer.text


def metric(url: str, name: str) -> float:
    """The sum of a metric's samples; 0 while nobody answers."""
    try:
        text = httpx2.get(f"{url}/metrics", timeout=5).text
    except httpx2.HTTPError:
        return 0.0
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def stands_by(process: Any) -> bool:
    """Whether it waits for the lease of another."""
    return "another aggregator holds the lease" in health(process)[1]


@pytest.fixture
def history(kafka_bootstrap: str) -> tuple[str, int]:
    """A pipeline whose last 20 minutes are in the log: name and start of the first window."""
    create_topics(kafka_bootstrap)
    name, start_s = f"killed-{uuid.uuid4().hex[:8]}", int(time.time()) // 60 * 60 - 60 * (MINUTES + 5)
    emitters = [Emitter(name, node, kafka_bootstrap, first=node == "src") for node in ("src", "snk")]
    for minute in range(MINUTES):
        for at in range(A_MINUTE):
            event_ms = (start_s + 60 * minute) * 1000 + at * 100
            for node, emitter in enumerate(emitters):
                if node == 0 or at % 50:
                    emitter.received(f"{minute}-{at}", event_ms, observed_at=event_ms + 5 + 10 * node)
                    emitter.sent(f"{minute}-{at}", event_ms, observed_at=event_ms + 9 + 10 * node)
    for emitter in emitters:
        assert emitter.flush(60)
        emitter.close()
    return name, start_s


def define(store: Store, name: str) -> None:
    text = f"""
        apiVersion: lagloss/v1
        kind: Pipeline
        metadata: {{name: {name}}}
        spec: {{nodes: [{{name: src, to: [snk]}}, {{name: snk}}]}}
    """
    store.apply(parse_definition(text))


def rows(store: Store, name: str, start_s: int) -> list[dict[str, Any]]:
    """The closed windows with their missing messages, without the moment of closing."""
    found = documents(store.windows(name, start_s, start_s + 60 * MINUTES))
    return [
        {**window, "closed_at": None, "missing": store.missing(name, start_s + 60 * at)}
        for at, window in enumerate(found)
        if window["state"] == "closed"
    ]


def closed(store: Store, name: str, start_s: int) -> int:
    """How many of the windows are closed."""
    found = documents(store.windows(name, start_s, start_s + 60 * MINUTES))
    return sum(window["state"] == "closed" for window in found)


@pytest.mark.slow
def test_killed_at_four_points_it_leaves_all_tables_as_an_undisturbed_run_does(
    history: tuple[str, int], spark: SparkSession, kafka_bootstrap: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """One database goes through all deaths; each process stands by until the one before it is dead, the last is
    whole."""
    name, start_s = history
    with fresh_database(postgres) as disturbed_url, fresh_database(postgres) as calm_url, ExitStack() as stack:
        disturbed, calm = (stack.enter_context(closing(Store(url))) for url in (disturbed_url, calm_url))
        define(disturbed, name)
        define(calm, name)
        modules = [
            ("tests.support.dying.aggregator", point, tmp_path / f"{point}.died", tmp_path / f"{point}.may")
            for point in POINTS
        ]

        def begin(number: int) -> Any:
            module = modules[number] if number < len(modules) else ("aggregator",)
            return stack.enter_context(aggregator(kafka_bootstrap, disturbed_url, tmp_path / str(number), module))

        done = []
        process = begin(0)
        for number, (_, point, marker, permit) in enumerate(modules):
            wait_until(marker.exists, 90, f"for {point}")  # it has the lease, which the next one shall wait for
            assert marker.read_text() == point
            assert not stands_by(process)  # it is in the middle of its first round, after it waited for the lease
            follower = begin(number + 1)
            wait_until(lambda it=follower: stands_by(it), 90, f"for who follows {point}")
            assert httpx2.get(f"{follower.url}/readyz").status_code == 503
            assert httpx2.get(f"{follower.url}/readyz?exclude=lease").status_code == 200
            assert httpx2.get(f"{follower.url}/livez").status_code == 200
            permit.touch()
            wait_until(lambda it=process: it.poll() is not None, 90, f"for the death {point}")
            assert process.returncode == -signal.SIGKILL
            done.append(closed(disturbed, name, start_s))
            process = follower
        # the last but one dies without a commit; the next may be quicker with its own than we with looking
        assert done[:2] == [0, 0]
        assert done[-1] == WINDOWS_PER_READ
        wait_until(lambda: closed(disturbed, name, start_s) == MINUTES, 150, "for all windows")
        wait_until(lambda: health(process) == (200, "ok"), 60, "for all to be well")
        with driven(spark, kafka_bootstrap, calm, BEACONS, REPORTS) as parts:
            parts.follow_all()
            now_ms = int(time.time() * 1000)
            while parts.closer.tick(now_ms, now_ms):
                pass
        assert {
            window["lost"]["min"] for window in documents(calm.windows(name, start_s, start_s + 60 * (MINUTES - 1)))
        } == {6}
        until_s = start_s + 60 * MINUTES
        assert differences(dump(disturbed.engine), dump(calm.engine), until_s) == []


@pytest.mark.slow
def test_it_waits_for_a_database_that_is_away_and_says_so(kafka_bootstrap: str, tmp_path: Path) -> None:
    create_topics(kafka_bootstrap)
    port = choose_port("PostgreSQL")
    nowhere = f"postgresql://lagloss:x@127.0.0.1:{port}/lagloss"
    with aggregator(kafka_bootstrap, nowhere, tmp_path) as process:

        def health() -> httpx2.Response | None:
            try:
                answer = httpx2.get(f"{process.url}/healthz", timeout=5)
            except httpx2.HTTPError:
                return None
            return answer if "refused" in answer.text else None

        answer = wait_until(health, 90, "for /healthz to tell")
        assert answer.status_code == 503
        assert process.poll() is None
