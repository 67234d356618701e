"""Kafka Connect and Kafka's own command line tools, as services that know nothing of lagloss.

`python -m tests.support.kafka_connect` fetches their jars (`make test-tools` does), with `--lock` it writes their lock
anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Self

import httpx2

from lagloss_server.ops.jars import BROKER, JarSet, present
from lagloss_server.ops.java import find_java
from lagloss_server.ops.processes import choose_port, log_tail, spawn, terminate
from tests.support.fetched_jars import fetch
from tests.support.kafka_log import wait_for

_VERSION: Final = BROKER.coordinates[0].rpartition(":")[2]
CONNECT: Final = JarSet(
    "connect",
    (
        *(
            f"org.apache.kafka:{name}:{_VERSION}"
            for name in ("connect-runtime", "connect-file", "connect-json", "connect-mirror", "kafka-tools")
        ),
        "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
    ),
    transitive=True,
    lock=Path(__file__).with_name("connect_jars.lock"),
)
JDBC: Final = JarSet(
    "connect-jdbc",
    (
        *(
            f"io.debezium:debezium-{name}:3.4.0.Final"
            for name in ("connector-jdbc", "sink", "core", "common", "api", "openlineage-api")
        ),
        *(f"org.hibernate.orm:hibernate-{name}:7.1.0.Final" for name in ("core", "c3p0")),
        *("com.mchange:c3p0:0.9.5.5", "com.mchange:mchange-commons-java:0.2.19"),
        *("org.hibernate.models:hibernate-models:1.0.1", "org.antlr:antlr4-runtime:4.13.2"),
        *("com.fasterxml:classmate:1.7.0", "net.bytebuddy:byte-buddy:1.17.6"),
        *("org.jboss.logging:jboss-logging:3.6.1.Final", "org.postgresql:postgresql:42.7.7"),
        *("jakarta.persistence:jakarta.persistence-api:3.2.0", "jakarta.transaction:jakarta.transaction-api:2.0.1"),
        *("jakarta.xml.bind:jakarta.xml.bind-api:4.0.2", "jakarta.activation:jakarta.activation-api:2.1.3"),
        "jakarta.inject:jakarta.inject-api:2.0.1",
    ),
    transitive=False,
    lock=Path(__file__).with_name("connect_jdbc_jars.lock"),
)
"""Debezium's JDBC sink, with the driver of PostgreSQL and no other; in a folder of its own, as a plugin of Connect. It
takes Jackson from Connect's class path: of a second one, modules would not fit."""
READY_S: Final = 60.0


def java_command(main_class: str, arguments: Iterable[str | Path], heap_mb: int = 192) -> list[str]:
    """Return the command that runs a main class of Kafka Connect or of Kafka's tools. Raises JarsMissing."""
    class_path = os.pathsep.join(map(str, present(CONNECT)))
    return [str(find_java()), f"-Xmx{heap_mb}m", "-cp", class_path, main_class, *map(str, arguments)]


def produce(bootstrap: str, topic: str, lines: Iterable[str], log_path: Path) -> None:
    """Produce records by Kafka's console producer, an idempotent one: lines of HEADERS, a tab, and the value.

    Raises:
        CalledProcessError: it ended with an error; see the log.
    """
    arguments = ["--bootstrap-server", bootstrap, "--topic", topic]
    arguments += ["--command-property", "enable.idempotence=true", "--command-property", "acks=all"]
    arguments += ["--reader-property", "parse.headers=true", "--reader-property", "null.marker=-"]
    command = java_command("org.apache.kafka.tools.ConsoleProducer", arguments)
    with log_path.open("ab") as log:
        subprocess.run(command, input="\n".join(lines).encode(), stdout=log, stderr=log, check=True)


class ConnectWorker:
    """A worker of Kafka Connect with these connectors, below `directory`, which a kill leaves as it is.

    `storage`: a prefix of the topics of a distributed worker; one without it is standalone. `plugins`: sets of jars,
    each with a class loader of its own.
    """

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        connectors: Mapping[str, Mapping[str, str]],
        storage: str = "",
        plugins: Iterable[JarSet] = (),
    ) -> None:
        self.log_path = directory / "connect.log"
        self._port = choose_port("Kafka Connect")
        self._connectors = connectors
        self._is_distributed = bool(storage)
        if storage:
            own = {
                "group.id": storage,
                "session.timeout.ms": "6000",
                "heartbeat.interval.ms": "1000",
                "scheduled.rebalance.max.delay.ms": "0",
                "offset.storage.topic": f"{storage}-offsets",
                "offset.storage.partitions": "3",
                "config.storage.topic": f"{storage}-config",
                "status.storage.topic": f"{storage}-status",
                **{f"{kind}.storage.replication.factor": "1" for kind in ("offset", "config", "status")},
            }
        else:
            own = {"offset.storage.file.filename": str(directory / "connect.offsets")}
        worker = {
            "bootstrap.servers": bootstrap,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            **own,
            "offset.flush.interval.ms": "500",
            "consumer.session.timeout.ms": "6000",  # a killed worker's partitions are taken over after this
            "consumer.heartbeat.interval.ms": "1000",
            "listeners": f"http://127.0.0.1:{self._port}",
            "plugin.discovery": "service_load",  # those on the class path, too
            **_plugin_path(directory / "plugins", plugins),
        }
        files = {"worker": worker}
        if not storage:
            files |= {name: {"name": name, **each} for name, each in connectors.items()}
        paths = [_write_properties(directory / f"{name}.properties", each) for name, each in files.items()]
        kind = "Distributed" if storage else "Standalone"
        self._command = java_command(f"org.apache.kafka.connect.cli.Connect{kind}", paths)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the worker, and wait until all its tasks run."""
        self._process = spawn(self._command, self.log_path)
        wait_for(self._is_running, timeout_s=READY_S, what="Kafka Connect")
        return self

    def kill(self) -> None:
        """Kill the worker with -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            terminate(self._process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _is_running(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log_tail(self.log_path)
        return all(self._runs(name) for name in self._connectors)

    def _runs(self, name: str) -> bool:
        url = f"http://127.0.0.1:{self._port}/connectors/{name}"
        try:
            if self._is_distributed and httpx2.get(url).status_code == httpx2.codes.NOT_FOUND:
                httpx2.put(f"{url}/config", json=dict(self._connectors[name]))
            found = httpx2.get(f"{url}/status").json()
        except (httpx2.HTTPError, ValueError):
            return False
        tasks = found.get("tasks", ())
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)


def _plugin_path(folder: Path, plugins: Iterable[JarSet]) -> dict[str, str]:
    for plugin in plugins:
        (folder / plugin.name).mkdir(parents=True, exist_ok=True)
        for jar in present(plugin):
            (folder / plugin.name / jar.name).symlink_to(jar)
    return {"plugin.path": str(folder)} if folder.exists() else {}


def _write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path


if __name__ == "__main__":
    jars = sum(len(jar_set.locked()) for jar_set in (CONNECT, JDBC))
    sys.exit(fetch(sys.argv[1:], (CONNECT, JDBC), f"jars of Kafka Connect: {jars} in place"))
