"""The cluster of the fault matrix: servers, services and the nodes of four pipelines, each on a host of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import httpx2
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.settings import Settings
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.jars import jars_dir
from lagloss_server.ops.java import FEW_ARENAS
from lagloss_server.ops.prepare import prepare
from lagloss_server.ops.processes import python
from lagloss_server.store import tokens
from lagloss_server.store.store import Store
from tests.histories.net import OBSERVER, RECEIVER, Host, network
from tests.histories.programs import Program
from tests.histories.receiver import Receiver
from tests.histories.servers import BROKER_PORT, POSTGRES_PORT, Postgres, kafka_programs
from tests.histories.traffic import HTTP, JSON, NODES, PIPELINES, TOPICS, Role
from tests.histories.versions import unpack_oldest

CONTROLLER: Final = "ctl"
BROKERS: Final = ("k1", "k2", "k3")
POSTGRES: Final = ("pg1", "pg2")
SERVICES: Final = {
    "ag1": "aggregator",
    "ag2": "aggregator",
    "al1": "alerting",
    "al2": "alerting",
    "tap": "taps",
    "col": "collector",
    "dash": "dashboard",
}
"""The service of each host."""
PORT: Final = 8080
"""Of each service's HTTP."""
DISK_MB: Final = {
    CONTROLLER: 96,
    **dict.fromkeys(BROKERS, 512),
    **dict.fromkeys(POSTGRES, 640),
    **dict.fromkeys(("ag1", "ag2"), 256),
}
READY_S: Final = 240.0
PROXY: Final = {"X-Forwarded-User": "ann", "X-Forwarded-Groups": "ops"}
"""What a proxy in front of the dashboard adds for an operator."""


@dataclass
class Cluster:
    """All programs by the name of their host. `ledgers`: a folder in which nodes write down what they do."""

    hosts: dict[str, Host]
    programs: dict[str, Program]
    postgres: Postgres
    receiver: Receiver
    store: Store
    ledgers: Path
    logs: Path

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{self.hosts[name].address}:{BROKER_PORT}" for name in BROKERS)

    @property
    def roles(self) -> dict[str, str]:
        """Return the service of each host that has one."""
        return SERVICES

    def url(self, host: str) -> str:
        return f"http://{self.hosts[host].address}:{PORT}"

    def health(self, host: str) -> int:
        """Return the status of a service's /healthz; 0 while it does not answer."""
        try:
            return self.client.get(f"{self.url(host)}/healthz", timeout=3).status_code
        except httpx2.HTTPError:
            return 0

    @cached_property
    def client(self) -> httpx2.Client:
        """Return the client of everything that the run asks for: to make one takes 40 ms of the processor."""
        return httpx2.Client(limits=httpx2.Limits(max_keepalive_connections=0))

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 5_000})

    @cached_property
    def oldest_version(self) -> Path:
        """Return the tree of another version that can run beside this one."""
        return unpack_oldest(self.logs.parent)

    def in_sync(self) -> bool:
        """Return whether each partition has all its replicas in sync."""
        try:
            metadata = self.admin.list_topics(timeout=3)
        except KafkaException:
            return False
        partitions = [partition for topic in metadata.topics.values() for partition in topic.partitions.values()]
        return len(metadata.brokers) == len(BROKERS) and all(
            set(partition.isrs) == set(partition.replicas) and partition.leader >= 0 for partition in partitions
        )

    def tend(self) -> list[str]:
        """Start what died by itself; return the names of those that did since the last look."""
        return [name for name, program in self.programs.items() if program.tend()]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster in which all works, and messages flow; logs and ledgers are in `folder`."""
    logs, ledgers = folder / "logs", folder / "ledgers"
    for path in (logs, ledgers):
        path.mkdir(parents=True, exist_ok=True)
    clock = folder / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", clock, source], check=True, timeout=60)
    names = [CONTROLLER, *BROKERS, *POSTGRES, *SERVICES, *(role.host for role in NODES)]
    with ExitStack() as exits:
        hosts = exits.enter_context(network(names, DISK_MB))
        receiver = exits.enter_context(closing(Receiver(RECEIVER)))
        programs: dict[str, Program] = {}
        exits.callback(_stop, programs)
        postgres = Postgres((hosts[POSTGRES[0]], hosts[POSTGRES[1]]), logs)
        programs |= postgres.programs
        for program in postgres.programs.values():
            program.clock = clock
        postgres.start()
        kafka = kafka_programs(hosts[CONTROLLER], [hosts[name] for name in BROKERS], logs)
        programs |= {program.name: program for program in kafka}
        for program in kafka:
            program.clock = clock
            program.start()
        addresses = ",".join(host.address for host in (postgres.primary, postgres.standby))
        url = f"postgresql://lagloss@{addresses}:{POSTGRES_PORT}/lagloss?connect_timeout=3"
        store = exits.enter_context(closing(Store(url)))
        made = Cluster(hosts, programs, postgres, receiver, store, ledgers, logs)
        wait(lambda: postgres.is_primary(postgres.primary), 60, "PostgreSQL")
        postgres.ask(postgres.primary, "CREATE DATABASE lagloss")
        postgres.follow()
        wait(lambda: len(made.admin.list_topics(timeout=2).brokers) == len(BROKERS), 60, "the brokers")
        prepare(Settings(kafka_bootstrap=made.bootstrap, database_url=url, canary="off"))
        _create_topics(made)
        for text in PIPELINES.values():
            store.apply(parse_definition(text))
        applied_s = time.time()
        secrets = {name: tokens.create(store, name)[1] for name in (HTTP, JSON)}
        for name, module in SERVICES.items():
            programs[name] = replace(_service(made, name, module), clock=clock)
            programs[name].start()
        wait(lambda: all(made.health(name) in (200, 503) for name in SERVICES), READY_S, "the services", made)
        wait(lambda: made.health("col") == made.health("tap") == 200, READY_S, "collector and taps", made)
        wait(lambda: time.time() // WINDOW_S > applied_s // WINDOW_S, WINDOW_S + 1, "the first window of taps", made)
        for role in NODES:
            programs[role.host] = replace(_node(made, role, secrets), clock=clock)
            programs[role.host].start()
        yield made


def wait(condition: Callable[[], bool], timeout_s: float, what: str, tended: Cluster | None = None) -> None:
    """Wait for a condition; a Kafka that does not answer is one that is not met. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if condition():
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s for {what}")
        if tended is not None:
            tended.tend()
        time.sleep(0.2)


def _stop(programs: dict[str, Program]) -> None:
    """Kill everything: nothing of it is needed any more, and the order of ends is not tested here."""
    for program in programs.values():
        program.kill()


def _create_topics(made: Cluster) -> None:
    config = {"min.insync.replicas": "2"}
    topics = [NewTopic(name, num_partitions=4, replication_factor=3, config=config) for name in TOPICS]
    for topic in made.admin.create_topics(topics).values():
        topic.result(30)


def _environment(made: Cluster) -> dict[str, str]:
    """Return what all programs are told: names, which the host's own file resolves."""
    return {
        **FEW_ARENAS,
        "LAGLOSS_JARS_DIR": str(jars_dir()),
        "LAGLOSS_KAFKA_BOOTSTRAP": ",".join(f"{name}:{BROKER_PORT}" for name in BROKERS),
        "LAGLOSS_DATABASE_URL": f"postgresql://lagloss@{','.join(POSTGRES)}:{POSTGRES_PORT}/lagloss",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # each start would compile everything anew
        "OPENBLAS_NUM_THREADS": "1",
        "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1",
    }


def _service(made: Cluster, name: str, module: str) -> Program:
    host = made.hosts[name]
    alerting = host.disk / "alerting.yaml"
    if module == "alerting":
        receiver = {"name": "hook", "webhook": {"url": made.receiver.url, "allowPrivate": True}}
        document = {
            "apiVersion": "lagloss/v1",
            "kind": "Alerting",
            "receivers": [receiver],
            "routes": [{"to": ["hook"]}],
        }
        alerting.write_text(yaml.safe_dump(document))
    ports = dict.fromkeys(("METRICS", "ALERTING", "TAPS", "COLLECTOR", "DASHBOARD"), str(PORT))
    env = {
        **_environment(made),
        **{f"LAGLOSS_{service}_PORT": port for service, port in ports.items()},
        "LAGLOSS_DATA_DIR": str(host.disk),
        "LAGLOSS_SPOOL_DIR": str(host.disk / "spool"),
        "LAGLOSS_BIND_ADDRESS": "0.0.0.0",
        "LAGLOSS_SPARK_DRIVER_MEMORY": "512m",
        "LAGLOSS_SPARK_DRIVER_HOST": "127.0.0.1",
        "LAGLOSS_SPARK_MASTER": "local[1]",
        "LAGLOSS_CANARY": "off",
        "LAGLOSS_LOGIN": "proxy" if module == "dashboard" else "",
        "LAGLOSS_PROXY_TRUSTED": f"{OBSERVER}/32",
        "LAGLOSS_LOGIN_OPERATORS": "ops",
        "LAGLOSS_DASHBOARD_URL": f"http://dash:{PORT}",
        "LAGLOSS_ALERTING_FILE": str(alerting) if module == "alerting" else "",
    }
    return Program(name, host, python(module), made.logs / f"{name}.log", env)


def _node(made: Cluster, role: Role, secrets: dict[str, str]) -> Program:
    host = made.hosts[role.host]
    env = {
        **_environment(made),
        "LAGLOSS_SPOOL_DIR": str(host.disk / "spool"),
        "LAGLOSS_COLLECTOR_TOKEN": secrets.get(role.pipeline, ""),
        "LAGLOSS_COLLECTOR_URL": f"http://col:{PORT}" if role.pipeline in (HTTP, JSON) else "",
        "LAGLOSS_DATABASE_URL": "",
    }
    argv = [sys.executable, "-P", "-m", "tests.histories.nodes", role.host, made.ledgers]
    return Program(role.host, host, argv, made.logs / f"{role.host}.log", env)
