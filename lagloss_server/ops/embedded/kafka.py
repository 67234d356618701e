"""A real Kafka (KRaft) on loopback, one Java process per broker; its data survives restarts.

A lone broker is its own controller. Several have a controller in a process of its own, so that any broker can be killed
and the others notice and continue; a real cluster has three controllers.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lagloss_server.base.errors import AlreadyRunning, PortInUse, ServerNotReady, StaleDataDirectory
from lagloss_server.ops import disk
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.embedded.kafka_node import (
    LONE_CONTROLLER,
    BrokerAccess,
    BrokerNode,
    format_folder,
    last_error,
    write_properties,
)
from lagloss_server.ops.jars import broker_jars
from lagloss_server.ops.java import FEW_ARENAS, SMALL_HEAP, find_java
from lagloss_server.ops.processes import choose_port, end_leftovers, spawn, terminate

MAIN_CLASS: Final = "kafka.Kafka"
ASK_TIMEOUT_S: Final = 1.0
LET_IN: Final = BrokerAccess()
"""Everybody on this machine."""


class EmbeddedKafka:
    """A cluster of `brokers` brokers below `data_dir`; `bootstrap` is its address once it is started.

    Port 0 takes the last port if it is free, else any free one. With several brokers, `port` is the first's. Topics are
    never created by mention. Start from a thread that lives on (see lagloss_server.ops.processes.spawn).
    """

    name: Final = "Kafka"

    def __init__(
        self,
        data_dir: Path,
        port: int = 0,
        brokers: int = 1,
        heap_mb: int = 512,
        access: BrokerAccess = LET_IN,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self._wanted_port = port
        self._brokers = brokers
        self._heap_mb = heap_mb
        self._access = access
        self._nodes: list[BrokerNode] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._java: tuple[Path, str] | None = None

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, comma-separated."""
        return ",".join(node.address for node in self._nodes if node.is_broker)

    @property
    def log_path(self) -> Path:
        return self.data_dir / "node-1" / "kafka.log"

    @property
    def numbers(self) -> range:
        """Numbers of the brokers."""
        return range(1, self._brokers + 1)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Processes of the brokers, in the order of their numbers, for callers that watch or kill them."""
        return [process for number, process in self._processes.items() if number != LONE_CONTROLLER]

    def start(self, timeout_s: float = 60) -> Self:
        """Start every broker and wait until they answer.

        Raises JavaMissing, JarsMissing, PortInUse, AlreadyRunning, StaleDataDirectory, DiskUnusable or ServerNotReady.
        """
        with disk.naming(self.data_dir):
            self._start(timeout_s)
        return self

    def _start(self, timeout_s: float) -> None:
        java, class_path = self._java = find_java(), os.pathsep.join(map(str, broker_jars()))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        # two brokers in one folder would corrupt it
        end_leftovers(self.name, self.data_dir, self.data_dir.glob("node-*/kafka.pid"))
        disk.demand(self.data_dir)
        self._nodes = self._plan_nodes()
        # clients know it by now: a restart of this object must keep it
        self._wanted_port = next(node.port for node in self._nodes if node.is_broker)
        cluster_id = self._cluster_id()
        for node in self._nodes:
            node.folder.mkdir(exist_ok=True)
            write_properties(node, self._nodes, self._access)
            if not (node.logs_folder / "meta.properties").exists():
                format_folder(java, class_path, node, cluster_id, self._access.format_options)
        try:
            for node in self._nodes:
                node.log_path.unlink(missing_ok=True)
                self._launch(node)
            self._await_ready(timeout_s)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 20) -> None:
        """Stop every broker in an orderly way, so that the next start needs no recovery. Idempotent."""
        # The controller last: the others hand over to it.
        for number, process in self._processes.items():
            if number != LONE_CONTROLLER and process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for number in sorted(self._processes, reverse=True):
            terminate(self._processes[number], timeout_s)
        self._processes.clear()

    def kill_broker(self, number: int) -> None:
        """Kill a broker with -9, as a crash would."""
        self._processes[number].kill()
        self._processes[number].wait()

    def end_broker(self, number: int) -> None:
        """Ask a broker to hand over to the others and stop; does not wait for it."""
        self._processes[number].send_signal(signal.SIGTERM)

    def start_broker(self, number: int) -> None:
        """Start a stopped broker, with its data and at its address; does not wait until it answers."""
        self._launch(next(node for node in self._nodes if node.number == number))

    def is_running(self, number: int) -> bool:
        """Return True if a broker's process lives."""
        return self._processes[number].poll() is None

    @property
    def is_in_sync(self) -> bool:
        """True if all brokers answer and every partition has all its replicas in sync; asks, for a second at most."""
        admin = AdminClient({**self._access.client, "bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            metadata = admin.list_topics(timeout=ASK_TIMEOUT_S)
        except KafkaException:
            return False
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        return len(metadata.brokers) == self._brokers and all(
            set(partition.isrs) == set(partition.replicas) and partition.leader >= 0 for partition in partitions
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _plan_nodes(self) -> list[BrokerNode]:
        remembered = _read_ports(self.data_dir / "ports.json")
        first = 1 if self._brokers == 1 else LONE_CONTROLLER
        nodes = []
        for number in range(first, self._brokers + 1):
            port = self._wanted_port if number == 1 else 0
            old = remembered.get(number)
            node = BrokerNode(
                number,
                self.data_dir / f"node-{number}",
                choose_port("Kafka", port, old and old[0]),
                choose_port("Kafka's controller", 0, old and old[1]) if number == first else 0,
            )
            nodes.append(node)
        ports = {node.number: (node.port, node.controller_port) for node in nodes}
        disk.write_whole(self.data_dir / "ports.json", json.dumps(ports))
        return nodes

    def _launch(self, node: BrokerNode) -> None:
        assert self._java is not None, "call start() first"
        command = self._command(*self._java, node)
        words = {**FEW_ARENAS, "LC_ALL": "C.UTF-8"}  # the operating system's reasons in the words that `disk` knows
        self._processes[node.number] = spawn(command, node.log_path, env=words, environment=foreign_environment)

    def _cluster_id(self) -> str:
        """Return the id in `cluster.id`, created at first start; raise if a node was formatted for another cluster."""
        path = self.data_dir / "cluster.id"
        if not path.exists():
            disk.write_whole(path, urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="))
        cluster_id = path.read_text().strip()
        controller = self.data_dir / f"node-{LONE_CONTROLLER}"
        if controller.exists() != (self._brokers > 1) and (self.data_dir / "node-1").exists():
            detail = "its controller is a separate process" if controller.exists() else "its controller is a broker"
            raise StaleDataDirectory(
                server="Kafka", path=self.data_dir, detail=f"{detail}, which does not match {self._brokers} broker(s)"
            )
        for node in self._nodes:
            meta = node.logs_folder / "meta.properties"
            if not meta.exists():
                if node.logs_folder.exists() and any(node.logs_folder.glob("*-*/*.log")):
                    raise StaleDataDirectory(server="Kafka", path=self.data_dir, detail=f"{meta} is missing")
                continue
            match = re.search(r"^cluster\.id=(.*)$", meta.read_text(errors="replace"), re.MULTILINE)
            if match is None or match[1].strip() != cluster_id:
                other = match[1].strip() if match else "none"
                raise StaleDataDirectory(
                    server="Kafka",
                    path=self.data_dir,
                    detail=f"node {node.number} belongs to cluster {other}, expected {cluster_id}",
                )
        return cluster_id

    def _command(self, java: Path, class_path: str, node: BrokerNode) -> list[str | Path]:
        log4j = resources.files("lagloss_server.ops.embedded").joinpath("log4j2.xml")
        return [
            java,
            f"-Xmx{self._heap_mb}m",
            *SMALL_HEAP,
            "-XX:+UseSerialGC",  # of a heap this small it takes the least memory, and pauses no longer
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={log4j}",
            *("-cp", class_path, MAIN_CLASS, node.properties_path),
        ]

    def _await_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        # The client logs each failed connection; those lines are expected.
        quiet = {"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200}
        admin = AdminClient({**self._access.client, **quiet})
        while True:
            for node in self._nodes:
                if self._processes[node.number].poll() is not None:
                    raise self._startup_error(node)
            try:
                if len(admin.list_topics(timeout=1).brokers) == self._brokers:
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                detail = f"no response within {timeout_s:.0f} s"
                raise disk.problem_of(self.data_dir) or ServerNotReady(server="Kafka", detail=detail, log=self.log_path)
            time.sleep(0.05)

    def _startup_error(self, node: BrokerNode) -> Exception:
        log = node.log_path.read_text(errors="replace")
        unusable = disk.problem_of(self.data_dir, log)
        if unusable is not None:
            return unusable
        if "Address already in use" in log or "Failed to bind" in log:
            return PortInUse(server="Kafka", port=node.port)
        if "Failed to acquire lock" in log:
            return AlreadyRunning(what="Kafka", path=self.data_dir, pid="unknown, see `jps -l`")
        if re.search(r"InconsistentClusterId|InconsistentBrokerMetadata|CorruptRecord|meta\.properties|Corrupt", log):
            return StaleDataDirectory(server="Kafka", path=self.data_dir, detail=last_error(log))
        return ServerNotReady(server="Kafka", detail=last_error(log), log=node.log_path)


def _read_ports(path: Path) -> dict[int, tuple[int, int]]:
    try:
        return {int(number): (int(a), int(b)) for number, (a, b) in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return {}  # never started, or the file is damaged: other ports will do
