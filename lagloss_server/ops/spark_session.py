"""A Spark session: in this process, on a cluster, or inside `spark-submit`."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

import psutil
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lagloss.broker.connection import KafkaConnection
from lagloss_server.base.errors import SparkEnded
from lagloss_server.net.server_watch import Answers
from lagloss_server.ops import code_archive as shipping
from lagloss_server.ops import jars
from lagloss_server.ops.java import SMALL_HEAP, find_java
from lagloss_server.ops.processes import LOOPBACK

CANCEL_S: Final = 0.5
"""How soon jobs are cancelled."""
_WORKERS_PATH: Final = "spark.executorEnv.PYTHONPATH"
_ON_A_CLUSTER: Final = MappingProxyType(
    {
        # Executors come when tasks wait and go after idling: a stand-by, which has no tasks, holds no core that the
        # aggregator at work needs.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "300s",
        "spark.dynamicAllocation.executorIdleTimeout": "300s",  # windows are closed each minute
        "spark.executor.cores": "1",  # tasks share nothing; without it, a standalone worker gives all its cores at once
    }
)
_GIVEN_BACK: Final = "-XX:G1PeriodicGCInterval=60000"
"""Collect an idle heap, and give memory back, each minute."""
EMPTY: Final[Mapping[str, str]] = MappingProxyType({})
FETCHING: Final[Mapping[str, str]] = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(50 << 20),
    # Spark asks for the log's ends after every poll: fewer polls, fewer round trips.
    "kafka.max.poll.records": "20000",
    # A fetch at the log's end is held back this long, and those questions wait behind it on the same connection: with
    # Kafka's 500 ms, every partition of a small window would cost half a second.
    "kafka.fetch.max.wait.ms": "10",
}
"""Options of Spark's Kafka source for a batch read of exact offset ranges."""
REDACTED: Final = "(?i)secret|password|token|access[.]?key|jaas|keystore"
"""Names of options that Spark blanks wherever it shows them: its own list, and what holds Kafka's."""
QUIET = ("org.apache.spark.sql.kafka010",)
"""What ends a read reaches us as its exception; here, as in py4j, it would fill the log with a hundred lines each
time."""


@dataclass(frozen=True, slots=True)
class SparkJob:
    """A service that runs tasks: its name in Spark's UI, the module that its Python workers are forked from, with the
    kernel already imported, and the rows of an Arrow batch."""

    name: str
    daemon: str
    batch_rows: int


def start_session(job: SparkJob, master: str, driver_memory: str, scratch: Path, driver_host: str = "") -> SparkSession:
    """Start a session whose temporary files lie in a folder of this process's own below `scratch`.

    Settings given to `spark-submit`, or in the `spark-defaults.conf` of the folder that SPARK_CONF_DIR names, override
    everything here but a given `master`; without either it is `local[*]`. `driver_host` is where executors of a cluster
    reach this process; empty: this machine's name.

    Raises:
        JavaMissing, JarsMissing: with what to do.
    """
    name_programs()
    folder = claim_scratch(scratch)
    conf = session_conf(job, master, driver_memory, folder, driver_host, _submitted())
    if is_local(conf["spark.master"]):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Spark looks up the machine's own name at its start, and ends where no name server or file has it.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    else:  # the executors' Python; by default, the path of this one
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.config(map={**conf}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    log4j = cast("Any", spark.sparkContext._jvm).org.apache.logging.log4j
    for name in QUIET:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    if not is_local(conf["spark.master"]):
        shipping.ship(spark, folder)
    return spark


def name_programs() -> None:
    """Name Java and Spark in the environment, unless it does: pyspark would look for Spark in the folder above the
    current one first, and run what it found there.

    Raises:
        JavaMissing, SparkMissing: with what to do.
    """
    os.environ.setdefault("JAVA_HOME", str(find_java().parent.parent))
    if "SPARK_HOME" not in os.environ:
        os.environ["SPARK_HOME"] = str(jars.require_spark())


def check_session(spark: SparkSession) -> None:
    """Raise SparkEnded if Spark's own process is gone, or has stopped its context: neither comes back."""
    try:
        stopped = spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, OSError, AttributeError) as error:
        raise SparkEnded(detail=str(error) or type(error).__name__) from error
    if stopped:
        raise SparkEnded(detail="its context was stopped")


@contextmanager
def cancelling_jobs(spark: SparkSession, stop: threading.Event) -> Iterator[None]:
    """Cancel what Spark computes in the block once `stop` is set, and whatever it is asked for afterwards."""
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(CANCEL_S):
            if stop.is_set():
                with suppress(Py4JError):  # its process does not answer
                    spark.sparkContext.cancelAllJobs()

    threading.Thread(target=cancel, name="cancel jobs", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def spark_answers(spark: SparkSession) -> Answers:
    """Return the question to Spark's own process, for a watch."""

    def answers() -> Generator[None]:
        while True:
            check_session(spark)
            yield

    return answers


def session_conf(
    job: SparkJob,
    master: str,
    driver_memory: str,
    folder: Path,
    driver_host: str = "",
    submitted: Mapping[str, str] = EMPTY,
) -> dict[str, str]:
    """Return Spark's settings: those given to `spark-submit` override ours, and a given `master` overrides both."""
    master = master or submitted.get("spark.master", "local[*]")
    return {
        "spark.app.name": job.name,
        "spark.jars": ",".join(str(jar) for jar in jars.spark_jars()),  # the driver serves them to executors
        "spark.local.dir": str(folder),
        "spark.driver.memory": driver_memory,
        "spark.driver.defaultJavaOptions": " ".join((*SMALL_HEAP, _GIVEN_BACK)),
        "spark.driver.host": LOOPBACK if is_local(master) else driver_host or socket.gethostname(),
        "spark.scheduler.mode": "FAIR",  # following and closing share the cores
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(job.batch_rows),
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.python.daemon.module": job.daemon,
        "spark.executorEnv.PYTHONSAFEPATH": "1",  # no file of a worker's current directory is that module
        "spark.ui.enabled": os.environ.get("LAGLOSS_SPARK_UI", "false"),
        "spark.ui.showConsoleProgress": "false",
        **({} if is_local(master) else _ON_A_CLUSTER),
        **_token_endpoint_allowed(),
        "spark.redaction.regex": REDACTED,
        "spark.sql.redaction.options.regex": REDACTED,
        **submitted,
        **({} if is_local(master) else {_WORKERS_PATH: _first(shipping.FOLDER, submitted.get(_WORKERS_PATH))}),
        "spark.master": master,
    }


def _token_endpoint_allowed() -> dict[str, str]:
    """Return what lets Kafka's client in each JVM ask for tokens: it asks at no URL that its host has not named."""
    connection = KafkaConnection.of_environment()
    url = connection.properties.get("sasl.oauthbearer.token.endpoint.url") if connection else None
    if url is None:
        return {}
    option = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={url}"
    return {"spark.driver.extraJavaOptions": option, "spark.executor.extraJavaOptions": option}


def _first(folder: str, rest: str | None) -> str:
    return folder if rest is None else f"{folder}:{rest}"


def is_local(master: str) -> bool:
    """Return whether tasks run in this process: `local-cluster[...]` starts others."""
    return master == "local" or master.startswith("local[")


def _submitted() -> dict[str, str]:
    """Return the settings given to `spark-submit`, or in the file that it would read."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # asking would start a JVM before its settings are known
        folder = os.environ.get("SPARK_CONF_DIR")
        return defaults_in(Path(folder, "spark-defaults.conf")) if folder else {}
    SparkContext._ensure_initialized()  # as the session's builder does: connects to spark-submit's JVM
    return dict(SparkConf().getAll())


def defaults_in(path: Path) -> dict[str, str]:
    """Return the settings in a file of Spark's defaults, `name value` a line; none if there is no such file."""
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    words = (line.split(maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {name: rest[0].strip() if rest else "" for name, *rest in filter(None, words)}


def claim_scratch(scratch: Path) -> Path:
    """Create an empty folder of this process's own, and remove those of processes that have ended. A second aggregator
    on the same data directory (a stand-by) keeps its own."""
    for path in scratch.glob("*"):
        if not (path.name.isdigit() and int(path.name) != os.getpid() and psutil.pid_exists(int(path.name))):
            shutil.rmtree(path, ignore_errors=True)
    folder = scratch / str(os.getpid())
    folder.mkdir(mode=0o700, parents=True)  # messages are spilled there
    return folder
