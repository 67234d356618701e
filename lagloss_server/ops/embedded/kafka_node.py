"""One process of an embedded Kafka: its address, folder and configuration files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lagloss_server.base.errors import StaleDataDirectory
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.disk import problem_of
from lagloss_server.ops.processes import LOOPBACK, run

MAX_RECORD_BYTES: Final = 2 * 1024 * 1024
LONE_CONTROLLER: Final = 0
"""Number of the node that is only a controller."""


@dataclass(frozen=True)
class BrokerNode:
    """One process of the cluster. `controller_port` is its port as the controller; 0 if it is not one."""

    number: int
    folder: Path
    port: int
    controller_port: int
    host: str = LOOPBACK

    @property
    def is_broker(self) -> bool:
        return self.number != LONE_CONTROLLER

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
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class BrokerAccess:
    """How clients are let in: by default everybody on this machine is.

    `properties` go to each broker, `format_options` to the tool that makes its folder (users of SCRAM are made there);
    `client` has librdkafka's properties of one who may ask the cluster how it is.
    """

    protocol: str = "PLAINTEXT"
    properties: Mapping[str, object] = field(default_factory=dict)
    format_options: Sequence[str] = ()
    client: Mapping[str, str] = field(default_factory=dict)


def write_properties(node: BrokerNode, nodes: list[BrokerNode], access: BrokerAccess) -> None:
    """Write server.properties of one of the cluster's `nodes`."""
    listeners = [f"{access.protocol}://{node.address}"] if node.is_broker else []
    if node.controller_port:
        listeners.append(f"CONTROLLER://{node.host}:{node.controller_port}")
    roles = [*(["broker"] if node.is_broker else []), *(["controller"] if node.controller_port else [])]
    brokers = sum(node.is_broker for node in nodes)
    replication = min(3, brokers)
    properties: dict[str, object] = {
        "process.roles": ",".join(roles),
        "node.id": node.number,
        "controller.quorum.bootstrap.servers": f"{nodes[0].host}:{nodes[0].controller_port}",
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"{access.protocol}:{access.protocol},CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": access.protocol,
        "log.dirs": node.logs_folder,
        # A topic created by a typing error would look like a pipeline without data.
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": replication,
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": min(2, replication),
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": min(2, replication),
        # A lone consumer need not wait 3 s for others.
        "group.initial.rebalance.delay.ms": 0,
        "message.max.bytes": MAX_RECORD_BYTES,
        "num.network.threads": 2,
        "num.io.threads": 4,
        # Taken from the heap at start: Kafka's 128 MB for 5 million keys would be most of a broker's heap here.
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
    }
    if brokers > 1:
        # Time after which a killed broker's partitions have another leader, and acknowledgements are no longer held up.
        properties |= {"broker.session.timeout.ms": 6_000, "broker.heartbeat.interval.ms": 1_000}
    properties |= access.properties
    node.properties_path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def format_folder(java: Path, class_path: str, node: BrokerNode, cluster_id: str, options: Sequence[str]) -> None:
    """Write meta.properties and, on the controller, the list of controllers: itself."""
    voters = "--standalone" if node.controller_port else "--no-initial-controllers"
    # One argument with "=": an id may begin with a dash, which the tool would take for an option of its own.
    identity = (f"--cluster-id={cluster_id}", f"--config={node.properties_path}")
    tool = ("kafka.tools.StorageTool", "format", *identity, voters, *options)
    fast = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # it lives for a second
    done = run([java, *fast, "-cp", class_path, *tool], environment=foreign_environment, timeout_s=120)
    if done.returncode != 0:
        said = done.stdout + done.stderr
        unusable = problem_of(node.folder, said)
        raise unusable or StaleDataDirectory(server="Kafka", path=node.folder, detail=last_error(said))


def last_error(log: str) -> str:
    """Return the line of a log that most likely names the cause of its process's end."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"ERROR|FATAL|Exception|rror:", line) and not line.startswith("at ")]
    return (errors or lines or ["it exited immediately and logged nothing"])[-1][:400]
