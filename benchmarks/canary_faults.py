"""How soon the heartbeat of the canary stops after a fault: `python -m benchmarks.canary_faults [FAULT...]`.

A `lagloss up` with servers of its own runs until its heart beats. Then each fault is made, the time until the last beat
is taken, and the fault is mended; the next one begins when the heart beats again. A fault takes about ten minutes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import psutil
import psycopg
from confluent_kafka.admin import AdminClient

from benchmarks.figures import Figure, table
from benchmarks.kills import Up
from lagloss.broker.topics import BEACONS
from lagloss_server.base.instances import read_endpoints
from lagloss_server.model.canary import CANARY_TOPIC
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres

BOUND_S: Final = 300.0
FIRST_S: Final = 900.0
"""Until the heart beats."""
SILENT_S: Final = 130.0
"""Two beats are missing: it has stopped."""


class Heart(ThreadingHTTPServer):
    """The receiver of heartbeats: when each came, and why the canary was said not to be right."""

    def __init__(self) -> None:
        self.beats: list[float] = []
        self.reasons: list[str] = []
        super().__init__(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        heart = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heart.beats.append(time.monotonic())
                self._answer()

            def do_POST(self) -> None:
                heart.reasons.append(self.rfile.read(int(self.headers["content-length"])).decode())
                self._answer()

            def _answer(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        return Handler

    def await_beat(self, timeout_s: float = FIRST_S) -> None:
        """Wait for the next beat. Raises SystemExit if there is none."""
        beats, ends_s = len(self.beats), time.monotonic() + timeout_s
        while len(self.beats) == beats:
            if time.monotonic() > ends_s:
                raise SystemExit(f"no heartbeat for {timeout_s:.0f} s; reasons: {self.reasons[-3:]}")
            time.sleep(0.5)


@contextmanager
def stopped(name: str, root: psutil.Process) -> Iterator[None]:
    """Stop a service and all that it started, as a hang does; and `up` first, which would end it after a minute."""
    service = next(child for child in root.children() if name in child.cmdline())
    processes = [root, service, *service.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def server_stopped(word: str, root: psutil.Process) -> Iterator[None]:
    """Stop a server: it accepts connections and answers none."""
    servers = [child for child in root.children() if any(word in part for part in child.cmdline()[:30])]
    processes = [root, *servers, *(process for server in servers for process in server.children(recursive=True))]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def topic_deleted(name: str, data_dir: Path) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": read_endpoints(data_dir)["kafka"], "log_level": 0})
    admin.delete_topics([name])[name].result(30)
    yield


@contextmanager
def database_read_only(data_dir: Path) -> Iterator[None]:
    """Let no new transaction write, and end the connections there are."""
    with psycopg.connect(read_endpoints(data_dir)["database"], autocommit=True) as connection:
        row = connection.execute("SELECT current_database()").fetchone()
        assert row is not None
        set_to = f'ALTER DATABASE "{row[0]}" SET default_transaction_read_only = '
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        connection.execute((set_to + "on").encode())
        connection.execute(end.encode())
        try:
            yield
        finally:
            connection.execute(b"SET default_transaction_read_only = off")
            connection.execute((set_to + "off").encode())
            connection.execute(end.encode())


def faults(root: psutil.Process, data_dir: Path) -> dict[str, Callable[[], object]]:
    """Return the faults by name; each a context within which it lasts. Those that are not mended come last."""
    made: dict[str, Callable[[], object]] = {
        f"{name} stopped": lambda name=name: stopped(name, root)  # type: ignore[misc]
        for name in ("aggregator", "alerting", "taps", "collector", "canary")
    }
    return {
        **made,
        "PostgreSQL stopped": lambda: server_stopped("postgres", root),
        "PostgreSQL read-only": lambda: database_read_only(data_dir),
        "Kafka stopped": lambda: server_stopped("kafka.Kafka", root),
        f"topic {CANARY_TOPIC} deleted": lambda: topic_deleted(CANARY_TOPIC, data_dir),
        f"topic {BEACONS} deleted": lambda: topic_deleted(BEACONS, data_dir),
    }


def measure(heart: Heart, fault: Callable[[], object]) -> float:
    """Return the seconds from a fault until the last beat after it; 0 if none came."""
    with fault():  # type: ignore[attr-defined]
        began_s = time.monotonic()
        while True:
            last_s = max(heart.beats[-1], began_s)
            if time.monotonic() - last_s > SILENT_S:
                return max(0.0, heart.beats[-1] - began_s)
            if time.monotonic() - began_s > BOUND_S + 2 * SILENT_S:
                return float("inf")
            time.sleep(1)


def run(names: Sequence[str] = ()) -> list[Figure]:
    """Make the faults, all or those named, and return how long the heart beat after each."""
    heart, figures = Heart(), []
    os.environ |= {"LAGLOSS_HEARTBEAT_URL": f"{heart.url}/ok", "LAGLOSS_HEARTBEAT_FAIL_URL": f"{heart.url}/fail"}
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        Path(folder).chmod(0o711)  # PostgreSQL's user passes
        data_dir = Path(folder) / "data"
        up = Up(data_dir)
        try:
            up.ready()
            root = psutil.Process(up.process.pid)
            for name, fault in faults(root, data_dir).items():
                if names and name not in names:
                    continue
                heart.await_beat()
                lasted_s = measure(heart, fault)
                print(f"{name}: the last heartbeat was {lasted_s:.0f} s later; {heart.reasons[-1:]}", flush=True)
                figures.append(Figure(f"heartbeat after: {name}", lasted_s, "s", BOUND_S))
        finally:
            up.process.send_signal(signal.SIGTERM)
            up.process.wait(60)
            EmbeddedPostgres.remove(data_dir / "postgres")
    return figures


def main() -> None:
    """Measure the faults that the command line names, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="such as 'aggregator stopped'; all by default")
    figures = run(parser.parse_args().faults)
    print(table(figures))
    sys.exit(not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    main()
