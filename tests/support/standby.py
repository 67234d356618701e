"""A PostgreSQL and a stand-by that follows it, to which a failover goes."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lagloss_server.ops.embedded.postgres import SERVER_USER, EmbeddedPostgres
from lagloss_server.ops.embedded.postgres_programs import find_programs
from lagloss_server.ops.processes import LOOPBACK, choose_port, spawn, terminate
from tests.support.closers import wait_until
from tests.support.databases import password_in


@dataclass(frozen=True)
class Pair:
    """Both servers. `url` names them, as a service does that rides out a failover."""

    primary: EmbeddedPostgres
    standby_port: int

    @property
    def url(self) -> str:
        options = conninfo_to_dict(self.primary.url)
        return make_conninfo(**options | {"host": f"{LOOPBACK},{LOOPBACK}", "port": self._ports})

    @property
    def _ports(self) -> str:
        return f"{self.primary.port},{self.standby_port}"

    @property
    def standby_url(self) -> str:
        return make_conninfo(**conninfo_to_dict(self.primary.url) | {"port": str(self.standby_port)})

    def lag_bytes(self) -> int:
        """How far the stand-by is behind."""
        with psycopg.connect(self.primary.url) as connection:
            row = connection.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), min(replay_lsn)) FROM pg_stat_replication"
            ).fetchone()
        return int(row[0]) if row and row[0] is not None else -1

    def hold_back(self, *, held: bool) -> None:
        """Let the stand-by receive nothing for a while: what is committed meanwhile dies with the primary."""
        with psycopg.connect(self.primary.url) as connection:
            pids = [row[0] for row in connection.execute("SELECT pid FROM pg_stat_replication").fetchall()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP if held else signal.SIGCONT)

    def fail_over(self) -> None:
        """Kill the primary as a power cut does, and promote the stand-by."""
        for process in self.primary.processes:
            dying = psutil.Process(process.pid)
            for each in [dying, *dying.children(recursive=True)]:
                each.send_signal(signal.SIGKILL)
            process.wait(10)
        with psycopg.connect(self.standby_url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")


@contextmanager
def primary_and_standby(folder: Path) -> Iterator[Pair]:
    with EmbeddedPostgres(folder / "primary") as primary, tempfile.TemporaryDirectory(dir="/var/tmp") as place:
        user = SERVER_USER if os.geteuid() == 0 else None
        programs = find_programs(user, lambda: Path(place))
        copy, port = Path(place) / "standby", choose_port("the stand-by")
        source = primary.database_url("postgres")
        subprocess.run(
            [programs / "pg_basebackup", "-D", copy, "-d", source, "--write-recovery-conf", "--checkpoint=fast"],
            timeout=60,
            check=True,
        )
        # As the server's user it reads no file of ours: the password goes where only that user looks.
        password = password_in(primary.data_dir / "pgpass")
        conninfo = make_conninfo(**conninfo_to_dict(source) | {"password": password, "passfile": "/dev/null"})
        with (copy / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{conninfo}'\n")
        if user:
            subprocess.run(["chown", "-R", user, place], timeout=20, check=True)
        options = {"listen_addresses": LOOPBACK, "unix_socket_directories": "", "timezone": "UTC"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        process = spawn(
            [programs / "postgres", "-D", copy, "-p", str(port), *words],
            folder / "standby.log",
            on_parent_death=signal.SIGINT,
            user=user,
            cwd=Path(place),
        )
        pair = Pair(primary, port)
        try:
            wait_until(lambda: pair.lag_bytes() == 0, 30, "the stand-by")
            yield pair
        finally:
            terminate(process, 20, how=signal.SIGINT)
