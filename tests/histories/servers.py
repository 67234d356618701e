"""Three Kafka brokers with a controller, and a PostgreSQL with its stand-by, each on a host of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from base64 import urlsafe_b64encode
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Final

import psycopg

from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.embedded.kafka import MAIN_CLASS
from lagloss_server.ops.embedded.kafka_node import BrokerAccess, BrokerNode, format_folder, write_properties
from lagloss_server.ops.embedded.postgres import SERVER_USER
from lagloss_server.ops.embedded.postgres_programs import find_programs
from lagloss_server.ops.jars import broker_jars
from lagloss_server.ops.java import FEW_ARENAS, SMALL_HEAP, find_java
from tests.histories.net import SUBNET, Host
from tests.histories.programs import Program

BROKER_PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
POSTGRES_PORT: Final = 5432
BROKER_HEAP_MB: Final = 192
_WIDE: Final = {
    "offsets.retention.minutes": 1440,
    "replica.lag.time.max.ms": 10_000,
    "controller.quorum.request.timeout.ms": 2_000,
}


def kafka_programs(controller: Host, brokers: list[Host], logs: Path) -> list[Program]:
    """Format the disks of a cluster; return its processes, the controller's first, which are to be started."""
    java, class_path = find_java(), os.pathsep.join(map(str, broker_jars()))
    nodes = [BrokerNode(0, controller.disk, 0, CONTROLLER_PORT, controller.address)]
    nodes += [BrokerNode(number, host.disk, BROKER_PORT, 0, host.address) for number, host in enumerate(brokers, 1)]
    access = BrokerAccess(properties=_WIDE)
    cluster_id = urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "a")
    for node in nodes:
        write_properties(node, nodes, access)
        format_folder(java, class_path, node, cluster_id, ())
    log4j = resources.files("lagloss_server.ops.embedded").joinpath("log4j2.xml")
    return [
        Program(
            host.name,
            host,
            [
                *(java, f"-Xmx{BROKER_HEAP_MB}m", *SMALL_HEAP, "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"),
                *("-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={log4j}"),
                *("-cp", class_path, MAIN_CLASS, node.properties_path),
            ],
            logs / f"{host.name}.log",
            FEW_ARENAS,
            is_foreign=True,
        )
        for host, node in zip([controller, *brokers], nodes, strict=True)
    ]


class Postgres:
    """A pair of servers. Whichever is the primary, the other follows it."""

    def __init__(self, hosts: tuple[Host, Host], logs: Path) -> None:
        self._bin = find_programs(SERVER_USER, lambda: logs)
        self.programs = {host.name: self._program(host, logs) for host in hosts}
        self.primary, self.standby = hosts

    def start(self) -> None:
        """Make the primary, the database, and the stand-by as its copy."""
        self._prepare(self.primary)
        self._as_server("initdb", "-D", _data(self.primary), "-U", "lagloss", "--auth=trust", "--encoding=UTF8",
                        "--locale=C", "--no-sync")  # fmt: skip
        with (_data(self.primary) / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {SUBNET}.0/24 trust\nhost replication all {SUBNET}.0/24 trust\n")
        self.programs[self.primary.name].start()

    def ask(self, host: Host, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement on one of the servers. Raises psycopg.Error."""
        with psycopg.connect(
            host=host.address, port=POSTGRES_PORT, user="lagloss", dbname=database, connect_timeout=2, autocommit=True
        ) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def is_primary(self, host: Host) -> bool:
        try:
            return self.ask(host, "SELECT pg_is_in_recovery()") == [(False,)]
        except psycopg.Error:
            return False

    def follow(self) -> None:
        """Make the stand-by's data anew, a copy of the primary's, and start it."""
        program = self.programs[self.standby.name]
        program.stop()
        shutil.rmtree(_data(self.standby), ignore_errors=True)
        self._prepare(self.standby)
        self._copy(_data(self.standby), "--write-recovery-conf")
        program.start()

    def back_up(self) -> None:
        """Make a backup of the primary as it is, on its own disk."""
        backup = _backup(self.primary)
        shutil.rmtree(backup, ignore_errors=True)
        self._prepare(self.primary, backup)
        self._copy(backup)

    def restore(self) -> None:
        """Have the primary go on from its last backup."""
        program = self.programs[self.primary.name]
        program.kill()
        shutil.rmtree(_data(self.primary))
        _backup(self.primary).rename(_data(self.primary))
        program.start()

    def dump(self, path: Path) -> None:
        """Write the primary's tables to a file of SQL, for whoever looks into a failure."""
        words = ("-h", self.primary.address, "-p", str(POSTGRES_PORT), "-U", "lagloss", "--inserts", "lagloss")
        with path.open("wb") as file:
            environment = {**foreign_environment(), "PGCONNECT_TIMEOUT": "5"}
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([self._bin / "pg_dump", *words], stdout=file, check=False, timeout=120, env=environment)

    def promote(self) -> None:
        """Make the stand-by the primary: the promotion script of whoever runs the cluster."""
        self.ask(self.standby, "SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary

    def lag_bytes(self) -> int:
        """Return how far the stand-by is behind; -1 if nobody follows."""
        rows = self.ask(
            self.primary, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), min(replay_lsn)) FROM pg_stat_replication"
        )
        return int(str(rows[0][0])) if rows and rows[0][0] is not None else -1

    def _program(self, host: Host, logs: Path) -> Program:
        options = {
            "listen_addresses": "*",
            "unix_socket_directories": "",
            "timezone": "UTC",
            "fsync": "off",  # a killed process loses nothing by it; no host here loses its power
            "max_connections": "100",
            "shared_buffers": "32MB",
            "max_wal_size": "128MB",
            "wal_keep_size": "128MB",
        }
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        # the file of a killed server's process may name one that another program has by now
        lock = _data(host) / "postmaster.pid"
        return Program(
            host.name,
            host,
            [*_AS_SERVER, self._bin / "postgres", "-D", _data(host), "-p", POSTGRES_PORT, *words],
            logs / f"{host.name}.log",
            is_foreign=True,
            before=lambda: lock.unlink(missing_ok=True),
        )

    def _prepare(self, host: Host, folder: Path | None = None) -> None:
        folder = folder or _data(host)
        host.disk.chmod(0o755)
        folder.mkdir(mode=0o700)
        shutil.chown(folder, SERVER_USER)

    def _copy(self, folder: Path, *words: object) -> None:
        """Copy the primary's data into a folder."""
        source = f"host={self.primary.address} port={POSTGRES_PORT} user=lagloss"
        self._as_server("pg_basebackup", "-D", folder, "-d", source, "--checkpoint=fast", "--no-sync", *words)

    def _as_server(self, program: str, *words: object) -> None:
        command = [*_AS_SERVER, str(self._bin / program), *map(str, words)]
        subprocess.run(
            list(map(str, self.standby.enter(command) if program == "pg_basebackup" else command)),
            cwd="/",
            check=True,
            timeout=120,
            env=foreign_environment(),
            stdout=subprocess.DEVNULL,
        )


_AS_SERVER: Final = ("setpriv", f"--reuid={SERVER_USER}", "--regid=nogroup", "--clear-groups", "--pdeathsig=INT")


def _data(host: Host) -> Path:
    return host.disk / "data"


def _backup(host: Host) -> Path:
    return host.disk / "backup"
