"""`lagloss up`: the whole service in the foreground, with embedded servers unless others are configured."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Final, Self

from rich.console import Console
from rich.table import Table

from lagloss.errors import EXIT_OK, ServerUnreachable
from lagloss_server.base.database_url import without_password
from lagloss_server.base.errors import AlreadyRunning, DiskUnusable, MachineTooSmall, UnreachableDirectory
from lagloss_server.base.instances import remove_endpoints, write_endpoints
from lagloss_server.base.settings import Settings
from lagloss_server.net.table_urls import own_database
from lagloss_server.ops import disk, jars, machine
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.embedded.postgres_programs import require_wheel
from lagloss_server.ops.java import FEW_ARENAS, find_java
from lagloss_server.ops.prepare import prepare
from lagloss_server.ops.private_files import OWNER_ONLY, close_folder, make_folder, umask
from lagloss_server.ops.processes import choose_port, end_leftovers, rotate
from lagloss_server.ops.supervisor import Say, Service, start_all, stop_all

READY_TIMEOUT_S: Final = 180
"""Spark alone takes 10 to 15 s on an idle laptop, several times that on a busy one."""
WATCH_EVERY_S: Final = 0.5
SERVER_RETRY_S: Final = 30.0
"""Pause between two tries to start a server that cannot use its disk."""
DISK_EVERY_S: Final = 60.0
_PID_FILES: Final = (
    *("logs/*.pid", "kafka/node-*/kafka.pid", "postgres/postgres.pid"),
    *("pipeline/*.pid", "pipeline/logs/*.pid"),  # of the demo
)


class ServiceStack:
    """The servers and services that `up` runs.

    Use as a context manager from the main thread; `endpoints` is the contract's ready line.
    """

    def __init__(self, settings: Settings, say: Say) -> None:
        self.settings = settings
        self.endpoints: dict[str, str] = {}
        self._say = say
        self._dir = settings.data_dir.absolute()
        self._lock: IO[str] | None = None
        self._kafka: EmbeddedKafka | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._services: list[Service] = []
        self._ports: dict[str, int] = {}
        self._exits = ExitStack()
        self._callers_umask = 0o022
        self._retry_at: dict[EmbeddedKafka | EmbeddedPostgres, float] = {}
        """Servers that wait for their disk, and when each is tried again."""
        self._disk_at = 0.0

    def __enter__(self) -> Self:
        with ExitStack() as exits:
            self._callers_umask = exits.enter_context(umask(OWNER_ONLY))
            exits.callback(self.stop)
            self.start()
            self._exits = exits.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exits.close()

    def start(self) -> None:
        """Start everything and return when all is ready. Raises a LaglossError with advice."""
        try:
            with disk.naming(self._dir):
                self._start()
        except ServerUnreachable as error:
            unusable = None if isinstance(error, DiskUnusable) else disk.problem_of(self._dir)
            if unusable is not None:  # whatever a server or service said
                raise unusable from error
            raise

    def _start(self) -> None:
        # as root, PostgreSQL runs as another user, who has to pass
        passable = os.geteuid() == 0 and not self.settings.database_url
        with umask(self._callers_umask):
            self._lock = _lock_directory(self._dir, passable=passable)
        end_leftovers_in(self._dir)
        self._check_machine()
        sets = (jars.SPARK,) if self.settings.kafka_bootstrap else jars.SETS
        with umask(self._callers_umask), disk.naming(jars.jars_dir()):  # other users may share them
            jars.ensure(lambda line, done, total: self._say(f"jars {done}/{total} {line}" if total else line), sets)
        settings = self._start_servers()
        self._say("creating topics and tables")
        prepare(settings)
        self._services = _services(settings, self._dir)
        self._say("starting " + ", ".join(service.name for service in self._services))
        start_all(self._services, READY_TIMEOUT_S, self._say)
        self.settings = settings
        self.endpoints = {
            "kafka": settings.kafka_bootstrap,
            "database": settings.database_url,
            "dashboard": settings.dashboard_url,
            "collector": settings.collector_url,
        }
        others = {
            name: getattr(settings, f"{name}_url")
            for name in ("aggregator", "alerting", "taps", "canary", "dashboard_health")
            if name != "canary" or settings.canary == "on"
        }
        write_endpoints(self._dir, {**self.endpoints, **others})

    def printable(self) -> dict[str, str]:
        """Return the endpoints, the database's without a password; that of an embedded one names a file with it."""
        return {**self.endpoints, "database": without_password(self.endpoints["database"])}

    def watch(self, until: Callable[[], bool] = lambda: False) -> None:
        """Keep everything running until `until()` or a signal. Raises if a server cannot be restarted."""
        while not until():
            self.tend()
            time.sleep(WATCH_EVERY_S)

    def tend(self) -> None:
        """Check all servers and services once; restart those that died or hang."""
        servers = [server for server in (self._kafka, self._postgres) if server]
        for server in servers:
            self._tend_server(server)
        for service in self._services:
            service.tend(self._say)
        for process in (*servers, *self._services):
            rotate(process.log_path)
        self._warn_of_disk()

    def _tend_server(self, server: EmbeddedKafka | EmbeddedPostgres) -> None:
        """Restart a server that died. One that cannot use its disk is tried again until it can: its clients wait."""
        name, retry_at = server.name, self._retry_at.get(server)
        if retry_at is None:
            if all(process.poll() is None for process in server.processes):
                return
            self._say(f"{name} died; restarting it; log: {server.log_path}")
        elif time.monotonic() < retry_at:
            return
        try:
            server.stop()
            server.start()
        except (DiskUnusable, AlreadyRunning) as error:
            self._retry_at[server] = time.monotonic() + SERVER_RETRY_S
            self._say(
                f"{name} is not running: {error} The rest keeps running; retrying {name} every {SERVER_RETRY_S:.0f} s."
            )
        else:
            self._retry_at.pop(server, None)
            self._say(f"{name} restarted")

    def _warn_of_disk(self) -> None:
        """Say once a minute that a disk is nearly full, before it stops a server."""
        if time.monotonic() < self._disk_at:
            return
        self._disk_at = time.monotonic() + DISK_EVERY_S
        with suppress(OSError):  # the folder is gone: others say so
            for warning in disk.warnings(self._dir):
                self._say(f"warning: {warning}")

    def stop(self) -> None:
        """Stop services first, then servers. Idempotent."""
        if self._lock is None:
            return
        with suppress(OSError):  # of a disk that can only be read
            remove_endpoints(self._dir)
        stop_all(self._services)
        self._services = []
        for server in (self._postgres, self._kafka):
            if server is not None:
                server.stop()
        self._lock.close()
        self._lock = None

    def _check_machine(self) -> None:
        """Raise, before any long step, if this machine lacks something or another process has taken a port."""
        jars.require_spark()
        if not self.settings.database_url:
            require_wheel()
        find_java()
        disk.demand(self._dir)
        needed_mb = 0 if (self._dir / "ports.json").exists() else machine.MIN_DISK_MB  # what is there goes on
        for problem in (*machine.memory_problems(), *machine.disk_problems(str(self._dir), needed_mb)):
            raise MachineTooSmall(problem=problem)
        choose_port("Kafka", self.settings.kafka_port)
        choose_port("PostgreSQL", self.settings.postgres_port)
        self._ports = _service_ports(self.settings, self._dir / "ports.json")

    def _start_servers(self) -> Settings:
        """Start the servers that no setting names; return the settings with their addresses."""
        values: dict[str, str] = {}
        if not self.settings.kafka_bootstrap:
            self._say("starting Kafka")
            self._kafka = EmbeddedKafka(self._dir / "kafka", self.settings.kafka_port)
            values["kafka_bootstrap"] = self._kafka.start().bootstrap
        if not self.settings.database_url:
            self._say("starting PostgreSQL")
            self._postgres = EmbeddedPostgres(self._dir / "postgres", self.settings.postgres_port)
            values["database_url"] = self._postgres.start().url
        ports = self._ports
        urls = {f"{name}_url": f"http://{_visible_host(self.settings)}:{port}" for name, port in ports.items()}
        urls["dashboard_health_url"] = urls["dashboard_url"]
        urls["dashboard_url"] = self.settings.dashboard_url or urls["dashboard_url"]  # a proxy's, for browsers
        numbers = {
            "dashboard_port": ports["dashboard"],
            "collector_port": ports["collector"],
            "metrics_port": ports["aggregator"],
            "alerting_port": ports["alerting"],
            "taps_port": ports["taps"],
            "canary_port": ports["canary"],
        }
        return self.settings.model_copy(update={**values, **urls, **numbers, "data_dir": self._dir})


def end_leftovers_in(data_dir: Path) -> None:
    """Wait for what a killed `up` or demo left, before its ports and folders are taken. Raises AlreadyRunning."""
    end_leftovers("lagloss up", data_dir, [path for pattern in _PID_FILES for path in data_dir.glob(pattern)])


def run(settings: Settings, *, as_json: bool = False) -> int:
    """Run the stack until Ctrl-C or SIGTERM. Stdout: the ready line, or a table of endpoints; stderr: the rest."""
    console = Console(stderr=True)
    with signals_interrupt(), progress_lines(console) as say:
        try:
            with ServiceStack(settings, say) as stack:
                _print_ready(stack.printable(), as_json=as_json)
                say("ready; Ctrl-C stops everything")
                stack.watch()
        except KeyboardInterrupt:
            say("stopped")
    return EXIT_OK


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM and SIGHUP (a closed terminal), as on SIGINT, once.

    Later signals are ignored, so that an impatient second Ctrl-C does not leave half of it running.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        for signal_number in numbers:
            signal.signal(signal_number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_lines(console: Console) -> Iterator[Say]:
    """Print lines with the seconds since the start, so that progress is visible from the first second."""
    began = time.monotonic()

    def say(line: str) -> None:
        with suppress(OSError):  # stderr may be a file on a full disk
            console.print(f"{time.monotonic() - began:6.1f} s  {line}", markup=False, highlight=False, soft_wrap=True)

    say("lagloss is starting")
    yield say


def _print_ready(endpoints: dict[str, str], *, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        sys.stdout.write(json.dumps(endpoints) + "\n")
        sys.stdout.flush()
        return
    table = Table("lagloss is up", "", box=None, header_style="bold green")
    for name, address in endpoints.items():
        table.add_row(name, address)
    Console().print(table)


def _lock_directory(data_dir: Path, *, passable: bool) -> IO[str]:
    """Lock the data directory for this process; the kernel releases the lock when the process ends, in any way."""
    try:
        make_folder(data_dir, passable=passable)
        lock = (data_dir / "up.lock").open("a+")
        close_folder(data_dir, passable=passable)
    except OSError as error:
        if error.errno in disk.FULL:
            raise
        raise UnreachableDirectory(path=data_dir, detail=error.strerror) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise AlreadyRunning(what="lagloss up", path=data_dir, pid=holder) from error
    lock.truncate(0)
    os.pwrite(lock.fileno(), str(os.getpid()).encode(), 0)
    return lock


def _service_ports(settings: Settings, path: Path) -> dict[str, int]:
    """Choose a port for each service; the last ones if they are free, so that bookmarks stay valid."""
    try:
        last_ports = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        last_ports = None
    remembered = last_ports if isinstance(last_ports, dict) else {}
    wanted_ports = {
        "dashboard": settings.dashboard_port,
        "collector": settings.collector_port,
        "aggregator": settings.metrics_port,
        "alerting": settings.alerting_port,
        "taps": settings.taps_port,
        "canary": settings.canary_port,
    }
    ports = {name: choose_port(f"the {name}", port, remembered.get(name)) for name, port in wanted_ports.items()}
    disk.write_whole(path, json.dumps(ports))
    return ports


def _visible_host(settings: Settings) -> str:
    return "127.0.0.1" if settings.bind_address in ("", "0.0.0.0", "::") else settings.bind_address


def _services(settings: Settings, data_dir: Path) -> list[Service]:
    env = {
        **FEW_ARENAS,
        "LAGLOSS_KAFKA_BOOTSTRAP": settings.kafka_bootstrap,
        "LAGLOSS_DATABASE_URL": settings.database_url,
        "LAGLOSS_DATA_DIR": str(data_dir),
        "LAGLOSS_DASHBOARD_PORT": str(settings.dashboard_port),
        "LAGLOSS_COLLECTOR_PORT": str(settings.collector_port),
        "LAGLOSS_METRICS_PORT": str(settings.metrics_port),
        "LAGLOSS_ALERTING_PORT": str(settings.alerting_port),
        "LAGLOSS_ALERTING_URL": settings.alerting_url,
        "LAGLOSS_TAPS_PORT": str(settings.taps_port),
        "LAGLOSS_TAPS_URL": settings.taps_url,
        "LAGLOSS_CANARY": settings.canary,
        "LAGLOSS_CANARY_PORT": str(settings.canary_port),
        "LAGLOSS_CANARY_URL": settings.canary_url,
        "LAGLOSS_ALERTING_FILE": str(settings.alerting_file.absolute()) if settings.alerting_file else "",
        "LAGLOSS_REPORTS_FILE": str(settings.reports_file.absolute()) if settings.reports_file else "",
        "LAGLOSS_DASHBOARD_URL": settings.dashboard_url,
        "LAGLOSS_COLLECTOR_URL": settings.collector_url,
        "LAGLOSS_AGGREGATOR_URL": settings.aggregator_url,
        "LAGLOSS_BIND_ADDRESS": settings.bind_address,
        "LAGLOSS_SPOOL_DIR": settings.spool_dir or str(data_dir / "spool"),
        "LAGLOSS_ALERT_WEBHOOK_URL": "",
        "LAGLOSS_HEARTBEAT_URL": "",
        "LAGLOSS_HEARTBEAT_FAIL_URL": "",
        "LAGLOSS_OIDC_CLIENT_SECRET": "",
        "LAGLOSS_JARS_DIR": str(jars.jars_dir()),
    }
    urls = {
        "aggregator": settings.aggregator_url,  # first: it is the slowest to start
        "alerting": settings.alerting_url,
        "taps": settings.taps_url,
        "dashboard": settings.dashboard_health_url,
        "collector": settings.collector_url,
        **({"canary": settings.canary_url} if settings.canary == "on" else {}),
    }
    alone = {  # secrets of one service
        "alerting": {"LAGLOSS_ALERT_WEBHOOK_URL": settings.alert_webhook_url},
        "taps": own_database(os.environ, settings),
        "dashboard": {"LAGLOSS_OIDC_CLIENT_SECRET": settings.oidc_client_secret},
        "canary": {
            "LAGLOSS_HEARTBEAT_URL": settings.heartbeat_url,
            "LAGLOSS_HEARTBEAT_FAIL_URL": settings.heartbeat_fail_url,
        },
    }
    return [
        Service(
            name,
            name,
            data_dir / "logs" / f"{name}.log",
            {**env, **alone.get(name, {})},
            f"{url}/healthz",
            live_url=f"{url}/livez",
        )
        for name, url in urls.items()
    ]
