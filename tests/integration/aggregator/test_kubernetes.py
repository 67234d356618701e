"""The chart's aggregator with its tasks in pods: Spark's own scheduler, settings and pod as the chart renders them,
and of Spark what the image has."""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import pytest
from kubernetes_validate import validate

from lagloss.broker.topics import create_topics
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import LOOPBACK, choose_port, spawn, terminate
from lagloss_server.store.store import Store
from tests.conftest import fresh_database
from tests.fakes.kubernetes import Kubernetes, Pod, kubernetes, started
from tests.integration.aggregator.test_aggregator_process import MINUTES, define, rows
from tests.integration.aggregator.test_cluster import A_MINUTE, send_history
from tests.support.closers import wait_until
from tests.support.image_spark import image_spark
from tests.support.manifests import ON_KUBERNETES, RELEASE, ROOT, of_kind, rendered, workloads
from tests.support.spark_cluster import bare_python

EXECUTOR = ROOT / "deploy" / "spark-executor.sh"
ON_ONE_MACHINE = (  # where drivers and executors cannot all have the same ports
    "aggregator.spark.conf.spark\\.driver\\.port=0",
    "aggregator.spark.conf.spark\\.driver\\.blockManager\\.port=0",
    "aggregator.spark.conf.spark\\.blockManager\\.port=0",
    "aggregator.spark.conf.spark\\.executor\\.memory=512m",
    "aggregator.spark.executor.maxExecutors=2",
)


@contextmanager
def aggregator(
    number: int, cluster: Kubernetes, servers: Mapping[str, str], folder: Path, spark_home: str
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The aggregator of pod `number` as the chart sets it up, but for the addresses; and its own."""
    manifests = rendered(*ON_KUBERNETES, overrides=ON_ONE_MACHINE)
    pod = workloads(manifests)["aggregator"]
    given = pod.started_in(folder, manifests)
    conf = Path(given["SPARK_CONF_DIR"], "spark-defaults.conf")
    conf.write_text(conf.read_text().replace("/etc/lagloss/spark", given["SPARK_CONF_DIR"]))
    port = choose_port("the aggregator")
    name = f"{pod.name}-{number}"
    cluster.pods.setdefault(name, {"metadata": {"name": name, "uid": str(uuid.uuid4())}, "status": {}})
    env = {
        **{variable: value for variable, value in given.items() if "SPARK" in variable},
        **servers,
        "POD_NAME": name,
        "LAGLOSS_METRICS_PORT": str(port),
        "LAGLOSS_DATA_DIR": str(folder / "data"),
        "LAGLOSS_SPARK_MASTER": f"k8s://{cluster.url}",
        "LAGLOSS_SPARK_DRIVER_HOST": LOOPBACK,
        "LAGLOSS_SPARK_DRIVER_MEMORY": "1g",
        "PYSPARK_PYTHON": str(bare_python(folder / "python")),
        "SPARK_HOME": spark_home,
    }
    process = spawn([sys.executable, *pod.container["command"][1:]], folder / "aggregator.log", env=env)
    try:
        yield process, f"http://{LOOPBACK}:{port}"
    finally:
        terminate(process, 20)


def ready(url: str, path: str) -> int:
    try:
        return httpx2.get(f"{url}{path}", timeout=5).status_code
    except httpx2.HTTPError:
        return 0


@pytest.mark.slow
def test_windows_close_on_executors_that_are_pods_and_a_stand_by_has_none(
    jars: None, kafka_bootstrap: str, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    create_topics(kafka_bootstrap)
    name, start_s = f"pods-{uuid.uuid4().hex[:8]}", int(time.time()) // 60 * 60 - 60 * (MINUTES + 5)
    send_history(kafka_bootstrap, name, start_s)
    spark_home = str(image_spark(tmp_path / "spark"))
    image = {"SPARK_HOME": spark_home, "PATH": f"{find_java().parent}:/usr/bin:/bin"}
    rules = of_kind(rendered(*ON_KUBERNETES), "Role")[f"{RELEASE}-aggregator"]["rules"]

    def run(pod: Pod) -> subprocess.Popen[bytes]:
        return started(pod, ["/bin/bash", EXECUTOR], tmp_path / pod["metadata"]["name"], image)

    with (
        fresh_database(postgres) as url,
        closing(Store(url)) as store,
        kubernetes(rules, run) as cluster,
    ):
        servers = {"LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap, "LAGLOSS_DATABASE_URL": url}
        define(store, name)
        with aggregator(0, cluster, servers, tmp_path / "first", spark_home) as (first, _):
            wait_until(cluster.running, 150, "for an executor")
            with aggregator(1, cluster, servers, tmp_path / "second", spark_home) as (second, second_url):
                wait_until(lambda: len(rows(store, name, start_s)) == MINUTES, 180, "for all windows")
                wait_until(lambda: ready(second_url, "/readyz?exclude=lease") == 200, 120, "for the stand-by")
                assert ready(second_url, "/readyz") == 503
                drivers = {pod["metadata"]["ownerReferences"][0]["name"] for pod in cluster.seen}
                assert drivers == {f"{RELEASE}-aggregator-0"}
                second.terminate()
                assert second.wait(20) == 0
            first.terminate()
            assert first.wait(20) == 0
            wait_until(lambda: not cluster.running(), 20, "for the executors to end with their driver")
        assert {row["lost"]["min"] for row in rows(store, name, start_s)[:-1]} == {A_MINUTE // 50}
    assert cluster.refused == []
    for pod in cluster.seen:
        validate(pod, "1.37", strict=True)
        assert pod["spec"]["serviceAccountName"] == f"{RELEASE}-executor"
        assert not pod["spec"]["automountServiceAccountToken"]
        assert not pod["spec"]["enableServiceLinks"]
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        written = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/data", "/tmp"} < written
        assert any(path.startswith(f"{tmp_path}/first/data/spark/") for path in written)  # Spark's own
