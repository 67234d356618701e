"""A real Kafka (KRaft) on loopback, one Java process a broker; its data survives restarts."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
import subprocess
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lagloss.errors import AlreadyRunning, PortInUse, ServerNotReady, StaleDataDirectory
from lagloss.jars import broker_jars
from lagloss.java import find_java
from lagloss.processes import LOOPBACK, choose_port, launcher, spawn, terminate, wait_gone

MAIN_CLASS: Final = "kafka.Kafka"
MAX_RECORD_BYTES: Final = 2 * 1024 * 1024
LEFTOVER_S: Final = 30
"""How long a broker whose parent was killed may take to shut down before we call it somebody else's."""


@dataclass(frozen=True)
class Node:
    """One broker of the cluster; node 1 is the controller, too."""

    number: int
    folder: Path
    port: int
    controller_port: int

    @property
    def properties_path(self) -> Path:
        return self.folder / "server.properties"

    @property
    def logs_folder(self) -> Path:
        return self.folder / "logs"

    @property
    def log_path(self) -> Path:
        return self.folder / "kafka.log"

    @property
    def pid_path(self) -> Path:
        return self.folder / "kafka.pid"

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"


class EmbeddedKafka:
    """A cluster of `brokers` brokers below `data_dir`; `bootstrap` is its address once it is started.

    Port 0 takes the port used last time if free, else any free one. With several brokers, `port` is the first's.
    Topics are never made by mention. Start from a thread that lives on (see lagloss.processes.spawn).
    """

    def __init__(self, data_dir: Path, port: int = 0, brokers: int = 1, heap_mb: int = 512) -> None:
        self.data_dir = data_dir.absolute()
        self._wanted_port = port
        self._brokers = brokers
        self._heap_mb = heap_mb
        self._nodes: list[Node] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def bootstrap(self) -> str:
        """host:port of every broker, comma-separated."""
        return ",".join(node.address for node in self._nodes)

    @property
    def log_path(self) -> Path:
        return self.data_dir / "node-1" / "kafka.log"

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """The running brokers' processes, for who watches or kills them."""
        return list(self._processes.values())

    def start(self, timeout_s: float = 60) -> Self:
        """Starts every broker and waits until they answer.

        Raises JavaMissing, JarsMissing, PortInUse, AlreadyRunning, StaleDataDirectory or ServerNotReady.
        """
        java = find_java()
        class_path = os.pathsep.join(map(str, broker_jars()))
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._nodes = self._plan_nodes()
        self._wanted_port = self._nodes[0].port  # clients know it by now: a restart of this object must keep it
        cluster_id = self._cluster_id()
        for node in self._nodes:
            self._await_leftover(node)
            node.folder.mkdir(exist_ok=True)
            _write_properties(node, self._nodes)
            if not (node.logs_folder / "meta.properties").exists():
                _format(java, class_path, node, cluster_id)
        try:
            for node in self._nodes:
                node.log_path.unlink(missing_ok=True)
                self._processes[node.number] = spawn(self._command(java, class_path, node), node.log_path)
                node.pid_path.write_text(str(self._processes[node.number].pid))
            self._await_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, timeout_s: float = 20) -> None:
        """Ends every broker in an orderly way, so that the next start needs no recovery. Twice does no harm."""
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        # The controller last: the others hand over to it.
        for number in sorted(self._processes, reverse=True):
            terminate(self._processes[number], timeout_s)
            (self.data_dir / f"node-{number}" / "kafka.pid").unlink(missing_ok=True)
        self._processes.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _plan_nodes(self) -> list[Node]:
        remembered = _read_ports(self.data_dir / "ports.json")
        nodes = []
        for number in range(1, self._brokers + 1):
            wanted = self._wanted_port if number == 1 else 0
            old = remembered.get(number)
            node = Node(
                number,
                self.data_dir / f"node-{number}",
                choose_port("Kafka", wanted, old and old[0]),
                choose_port("Kafka's controller", 0, old and old[1]),
            )
            nodes.append(node)
        ports = {node.number: (node.port, node.controller_port) for node in nodes}
        (self.data_dir / "ports.json").write_text(json.dumps(ports))
        return nodes

    def _cluster_id(self) -> str:
        """The id in `cluster.id`, made at first start; a node formatted for another cluster is refused."""
        path = self.data_dir / "cluster.id"
        if not path.exists():
            path.write_text(urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("="))
        cluster_id = path.read_text().strip()
        for node in self._nodes:
            meta = node.logs_folder / "meta.properties"
            if not meta.exists():
                if node.logs_folder.exists() and any(node.logs_folder.glob("*-*/*.log")):
                    raise StaleDataDirectory(server="Kafka", path=self.data_dir, detail=f"{meta} is missing")
                continue
            found = re.search(r"^cluster\.id=(.*)$", meta.read_text(errors="replace"), re.MULTILINE)
            if found is None or found[1].strip() != cluster_id:
                other = found[1].strip() if found else "none"
                raise StaleDataDirectory(
                    server="Kafka",
                    path=self.data_dir,
                    detail=f"node {node.number} belongs to cluster {other}, expected {cluster_id}",
                )
        return cluster_id

    def _await_leftover(self, node: Node) -> None:
        """Waits for the broker of a killed parent to end: two brokers in one folder would spoil it."""
        if node.pid_path.exists():
            text = node.pid_path.read_text().strip()
            if text.isdigit() and not wait_gone(int(text), MAIN_CLASS, LEFTOVER_S):
                raise AlreadyRunning(what="Kafka", path=self.data_dir, pid=text)
            node.pid_path.unlink()

    def _command(self, java: Path, class_path: str, node: Node) -> list[str | Path]:
        log4j = resources.files("lagloss.embedded").joinpath("log4j2.xml")
        return [
            java,
            f"-Xmx{self._heap_mb}m",
            "-XX:+UseG1GC",
            "-XX:MaxGCPauseMillis=20",
            "-XX:+ExitOnOutOfMemoryError",
            f"-Dlog4j2.configurationFile={log4j}",
            *("-cp", class_path, MAIN_CLASS, node.properties_path),
        ]

    def _await_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        # A client that finds nobody yet logs each try; those lines are no news.
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200})
        while True:
            for node in self._nodes:
                if self._processes[node.number].poll() is not None:
                    raise self._why_it_died(node)
            try:
                if len(admin.list_topics(timeout=1).brokers) == self._brokers:
                    return
            except KafkaException:
                pass
            if time.monotonic() > deadline:
                raise ServerNotReady(server="Kafka", detail=f"no answer within {timeout_s:.0f} s", log=self.log_path)
            time.sleep(0.05)

    def _why_it_died(self, node: Node) -> Exception:
        log = node.log_path.read_text(errors="replace")
        if "Address already in use" in log or "Failed to bind" in log:
            return PortInUse(server="Kafka", port=node.port)
        if "Failed to acquire lock" in log:
            return AlreadyRunning(what="Kafka", path=self.data_dir, pid="unknown, see `jps -l`")
        if re.search(r"InconsistentClusterId|InconsistentBrokerMetadata|CorruptRecord|meta\.properties|Corrupt", log):
            return StaleDataDirectory(server="Kafka", path=self.data_dir, detail=_last_error(log))
        return ServerNotReady(server="Kafka", detail=_last_error(log), log=node.log_path)


def _read_ports(path: Path) -> dict[int, tuple[int, int]]:
    try:
        return {int(number): (int(a), int(b)) for number, (a, b) in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}  # never started, or the file is torn: other ports do as well


def _write_properties(node: Node, nodes: list[Node]) -> None:
    controller = node.number == 1
    listeners = [f"PLAINTEXT://{node.address}"]
    if controller:
        listeners.append(f"CONTROLLER://{LOOPBACK}:{node.controller_port}")
    replication = min(3, len(nodes))
    properties = {
        "process.roles": "broker,controller" if controller else "broker",
        "node.id": node.number,
        "controller.quorum.bootstrap.servers": f"{LOOPBACK}:{nodes[0].controller_port}",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": node.logs_folder,
        # A pipeline's topic that comes into being by a typing error would look like a pipeline without data.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": replication,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min(2, replication),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": min(2, replication),
        # A lone consumer need not wait 3 s for company.
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": MAX_RECORD_BYTES,
        "num.network.threads": 2,
        "num.io.threads": 4,
    }
    node.properties_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def _format(java: Path, class_path: str, node: Node, cluster_id: str) -> None:
    """Writes meta.properties and, on node 1, the list of controllers: itself."""
    voters = "--standalone" if node.number == 1 else "--no-initial-controllers"
    # One argument with "=": an id may begin with a dash, which the tool would take for an option of its own.
    identity = (f"--cluster-id={cluster_id}", f"--config={node.properties_path}")
    tool = ("kafka.tools.StorageTool", "format", *identity, voters)
    fast = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # it lives for a second
    done = subprocess.run(
        [*launcher(), java, *fast, "-cp", class_path, *tool], capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode != 0:
        raise StaleDataDirectory(server="Kafka", path=node.folder, detail=_last_error(done.stdout + done.stderr))


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"ERROR|FATAL|Exception|rror:", line) and not line.startswith("at ")]
    return (errors or lines or ["it ended at once and said nothing"])[-1][:400]
