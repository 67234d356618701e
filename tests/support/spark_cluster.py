"""A standalone Spark cluster on loopback from the pyspark wheel: a master and workers, one core and 1 GB each."""

from __future__ import annotations

import signal
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pyspark

from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import LOOPBACK, choose_port, spawn, terminate

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class Cluster:
    """The processes of a running cluster and the address of its master."""

    url: str
    workers: list[subprocess.Popen[bytes]]

    def worker_of(self, executor: str) -> subprocess.Popen[bytes]:
        """The worker that runs this executor."""
        return next(worker for worker in self.workers if _runs(worker, executor))

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with its executors: what a machine does that loses its power."""
        for process in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]:
            process.send_signal(signal.SIGKILL)
        worker.wait(10)


def _runs(worker: subprocess.Popen[bytes], executor: str) -> bool:
    commands = (child.cmdline() for child in psutil.Process(worker.pid).children())
    return any(("--executor-id", executor) in pairwise(command) for command in commands)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster that is starting (drivers wait for it), whose processes know nothing of this one's Python path."""
    port = choose_port("the Spark master")
    url = f"spark://{LOOPBACK}:{port}"
    env = {"SPARK_HOME": str(SPARK_HOME), "SPARK_SCALA_VERSION": "2.13", "PYTHONPATH": ""}

    def start(name: str, main: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        java = [find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{SPARK_HOME}/jars/*"]
        command = [*java, f"org.apache.spark.deploy.{main}", "--host", LOOPBACK, *arguments]
        return spawn(command, folder / f"{name}.log", env=env, cwd=folder)

    master = start("master", "master.Master", "--port", str(port), "--webui-port", "0")
    started = [
        start(name, "worker.Worker", "--webui-port", "0", "-c", "1", "-m", "1g", "-d", folder / name, url)
        for name in (f"worker-{at}" for at in range(workers))
    ]
    try:
        yield Cluster(url, started)
    finally:
        for process in (*started, master):
            terminate(process, 10)


def bare_python(folder: Path) -> Path:
    """A Python that finds what is installed beside this one, but not what is only linked there (such as lagloss in a
    checkout)."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin" / "python"
