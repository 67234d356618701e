"""The aggregator with its tasks on a Spark cluster, on machines that do not have lagloss; and inside spark-submit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pyspark.sql import SparkSession

import aggregator.__main__ as aggregator_main
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.errors import EXIT_UNREACHABLE
from lagloss.sdk.emitter import Emitter
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.jars import spark_jars
from lagloss_server.ops.processes import LOOPBACK, choose_port, spawn, terminate
from lagloss_server.store.store import Store
from tests.conftest import fresh_database
from tests.integration.aggregator.test_aggregator_process import MINUTES, define, rows
from tests.support.closers import driven, wait_until
from tests.support.spark_cluster import SPARK_HOME, Cluster, bare_python, spark_cluster

A_MINUTE = 500
SPARK_SUBMIT = SPARK_HOME / "bin" / "spark-submit"


def send_history(bootstrap: str, name: str, start_s: int) -> None:
    """Whole minutes into the log, every fiftieth message lost on the link."""
    src, snk = (Emitter(name, node, bootstrap, first=node == "src") for node in ("src", "snk"))
    for at in range(MINUTES * A_MINUTE):
        event_ms = start_s * 1000 + at * 60_000 // A_MINUTE
        src.received(f"m-{at}", event_ms, observed_at=event_ms + 5)
        src.sent(f"m-{at}", event_ms, observed_at=event_ms + 9)
        if at % 50:
            snk.received(f"m-{at}", event_ms, observed_at=event_ms + 15)
            snk.sent(f"m-{at}", event_ms, observed_at=event_ms + 19)
    for emitter in (src, snk):
        assert emitter.flush(60)
        emitter.close()


@contextmanager
def aggregator(
    cluster: Cluster, bootstrap: str, database_url: str, folder: Path
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """`lagloss aggregator` on the cluster: its process, and where Spark's page for it will be."""
    page = choose_port("Spark's page")
    env = {
        "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_SPARK_DRIVER_MEMORY": "1g",
        "LAGLOSS_SPARK_DRIVER_HOST": LOOPBACK,
        "LAGLOSS_SPARK_UI": "true",
        "PYSPARK_PYTHON": str(bare_python(folder / "python")),
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.ui.port={page} pyspark-shell",
    }
    command = [
        sys.executable,
        "-m",
        "lagloss_server.cli.main",
        "aggregator",
        "--master",
        cluster.url,
        "--data-dir",
        folder,
    ]
    process = spawn(command, folder / "aggregator.log", env=env)
    try:
        yield process, f"http://{LOOPBACK}:{page}/api/v1/applications"
    finally:
        terminate(process, 20)


def asked(url: str, timeout_s: float = 5) -> Any:
    """What Spark's page answers, [] while it does not."""
    try:
        answer = httpx2.get(url, timeout=timeout_s)
    except httpx2.HTTPError:
        return []
    return answer.json() if answer.headers.get("content-type") == "application/json" else []


def reading_tasks(applications: str) -> list[dict[str, Any]]:
    """Tasks of a closing's read that run now."""
    found = []
    for application in asked(applications):
        stages = f"{applications}/{application['id']}/stages"
        for stage in asked(f"{stages}?status=active"):
            if "spark_reader.py" in stage["name"]:
                found += asked(f"{stages}/{stage['stageId']}/{stage['attemptId']}/taskList?status=running")
    return found


def failed_reading_tasks(applications: str) -> int:
    (application,) = asked(applications)
    stages = asked(f"{applications}/{application['id']}/stages")
    return sum(stage["numFailedTasks"] for stage in stages if "spark_reader.py" in stage["name"])


def test_a_machine_of_the_cluster_has_no_lagloss_of_its_own(tmp_path: Path) -> None:
    python = bare_python(tmp_path / "python")
    done = subprocess.run(
        [python, "-c", "import fastavro, pyarrow, lagloss"],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr.strip().endswith("No module named 'lagloss'")


@pytest.mark.slow
def test_a_worker_killed_while_a_window_closes_changes_no_row(
    spark: SparkSession, kafka_bootstrap: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    name, start_s = f"cluster-{uuid.uuid4().hex[:8]}", int(time.time()) // 60 * 60 - 60 * (MINUTES + 5)
    with (
        fresh_database(postgres) as cluster_url,
        fresh_database(postgres) as calm_url,
        spark_cluster(tmp_path) as cluster,
        aggregator(cluster, kafka_bootstrap, cluster_url, tmp_path) as (process, applications),
    ):
        on_cluster, calm = Store(cluster_url), Store(calm_url)
        send_history(kafka_bootstrap, name, start_s)
        define(on_cluster, name)  # from here on there is something to close
        define(calm, name)
        task = wait_until(lambda: reading_tasks(applications), 90, "for a read to run")[0]
        cluster.kill(cluster.worker_of(task["executorId"]))
        wait_until(lambda: len(rows(on_cluster, name, start_s)) == MINUTES, 120, "for all windows")
        assert failed_reading_tasks(applications) > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        with driven(spark, kafka_bootstrap, calm, BEACONS, REPORTS) as parts:
            parts.follow_all()
            windows = [(name, start_s + 60 * at) for at in range(MINUTES)]
            parts.closer.close_windows(windows, int(time.time() * 1000))
        assert rows(on_cluster, name, start_s) == rows(calm, name, start_s)
        assert {row["lost"]["min"] for row in rows(calm, name, start_s)[:-1]} == {A_MINUTE // 50}
        on_cluster.close()
        calm.close()


@pytest.mark.slow
def test_inside_spark_submit_its_settings_win(jars: None, tmp_path: Path) -> None:
    """The aggregator starts Spark before it finds that no Kafka is named; Spark's event log tells the settings."""
    told = {
        "spark.sql.shuffle.partitions": "3",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": tmp_path.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.ui.enabled": "false",
    }
    options = [word for key, value in told.items() for word in ("--conf", f"{key}={value}")]
    connector = ",".join(map(str, spark_jars()))
    done = subprocess.run(
        [SPARK_SUBMIT, "--master", "local[1]", "--jars", connector, *options, aggregator_main.__file__],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "LAGLOSS_DATA_DIR": str(tmp_path / "data")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == EXIT_UNREACHABLE, done.stdout[-4000:]
    assert "The address of Kafka is unknown" in done.stdout
    (log,) = tmp_path.glob("local-*")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    (settings,) = (event["Spark Properties"] for event in events if event["Event"] == "SparkListenerEnvironmentUpdate")
    assert {key: settings[key] for key in told} == told
    assert (settings["spark.master"], settings["spark.scheduler.mode"]) == (
        "local[1]",
        "FAIR",
    )  # ours where it said nothing
