"""How soon the heartbeat of the canary stops after a fault: `python -m benchmarks.canary_faults [FAULT...]`.

A `lagloss up` with servers of its own runs until its heart beats. Then each fault is made, the time until the last beat
is taken, and the fault is mended; the next one begins when the heart beats again. A fault takes about ten minutes.

As root it lies on small disks of its own: else the faults of disks are left out. Where processes are stopped or killed,
so is `up`, which would start them again. For a host whose clock is ten minutes ahead, the receiver of heartbeats is
ten minutes behind.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
from tests.fakes.http_receiver import HttpReceiver, Reply, Request

BOUND_S: Final = 300.0
FIRST_S: Final = 900.0
"""Until the heart beats."""
SILENT_S: Final = 130.0
"""Two beats are missing: it has stopped."""
CLOCK_S: Final = 600.0
DISKS_MB: Final = {"": 3_000, "postgres": 600}
"""Folders of the data directory that are disks of their own."""


class Heart(HttpReceiver):
    """The receiver of heartbeats: when each came, and why the canary was said not to be right."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[float] = []
        self.reasons: list[str] = []

    def answer(self, request: Request) -> Reply:
        """Take a beat, or a reason."""
        if request.path == "/ok":
            self.beats.append(time.monotonic())
        elif request.path == "/fail":
            self.reasons.append(request.body.decode())
        return Reply()

    def await_beat(self, timeout_s: float = FIRST_S) -> None:
        """Wait for the next beat. Raises SystemExit if there is none."""
        beats, ends_s = len(self.beats), time.monotonic() + timeout_s
        while len(self.beats) == beats:
            if time.monotonic() > ends_s:
                raise SystemExit(f"no heartbeat for {timeout_s:.0f} s; reasons: {self.reasons[-3:]}")
            time.sleep(0.5)


def processes_of(root: psutil.Process, *words: str) -> list[psutil.Process]:
    """Return the processes that `up` has started with these words in their command lines, and all that they started."""
    found = [
        child
        for child in root.children(recursive=True)
        if all(any(word in part for part in child.cmdline()) for word in words)
    ]
    return list(dict.fromkeys(process for child in found for process in (child, *child.children(recursive=True))))


@contextmanager
def stopped(root: psutil.Process, *words: str) -> Iterator[None]:
    """Stop processes, as a hang does: what they listen on accepts connections and answers none."""
    processes = [root, *processes_of(root, *words)]
    assert len(processes) > 1, words
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.resume()


@contextmanager
def killed(root: psutil.Process, *words: str) -> Iterator[None]:
    """Kill processes; once it is mended, `up` starts them again."""
    processes = processes_of(root, *words)
    root.suspend()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    try:
        yield
    finally:
        root.resume()


@contextmanager
def topic_deleted(name: str, data_dir: Path) -> Iterator[None]:
    admin = AdminClient({"bootstrap.servers": read_endpoints(data_dir)["kafka"], "log_level": 0})
    admin.delete_topics([name])[name].result(30)
    yield


@contextmanager
def database_changed(data_dir: Path, *, by: str, back: str) -> Iterator[None]:
    """Run statements on the database, and others afterwards; `%s` is its name. Other connections are ended."""
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with psycopg.connect(read_endpoints(data_dir)["database"], autocommit=True) as connection:
        row = connection.execute("SELECT current_database()").fetchone()
        assert row is not None
        connection.execute(by.replace("%s", row[0]).encode())
        connection.execute(end.encode())
        try:
            yield
        finally:
            connection.execute(b"SET default_transaction_read_only = off")
            connection.execute(back.replace("%s", row[0]).encode())
            connection.execute(end.encode())


READ_ONLY: Final = 'ALTER DATABASE "%s" SET default_transaction_read_only = '
DROP_NOTICES: Final = """
    CREATE FUNCTION drop_notice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.notice := NULL; RETURN NEW; END $$;
    CREATE TRIGGER drop_notice BEFORE UPDATE OF notice ON canary_minute FOR EACH ROW EXECUTE FUNCTION drop_notice()
"""


@contextmanager
def disk_full(folder: Path) -> Iterator[None]:
    """Fill a disk to its last byte."""
    balloon = folder / "balloon"
    with balloon.open("wb") as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
    try:
        yield
    finally:
        balloon.unlink()


@contextmanager
def clock_off(heart: Heart) -> Iterator[None]:
    """Let the receiver's clock be behind the host's."""
    heart.ahead_s = -CLOCK_S
    try:
        yield
    finally:
        heart.ahead_s = 0.0


def faults(heart: Heart, root: psutil.Process, data_dir: Path) -> dict[str, Callable[[], object]]:
    """Return the faults by name; each a context within which it lasts. Those that are not mended come last."""
    services = ("aggregator", "alerting", "taps", "collector", "canary")
    made: dict[str, Callable[[], object]] = {
        f"{name} {how.__name__}": lambda name=name, how=how: how(root, "-m", name)  # type: ignore[misc]
        for how in (stopped, killed)
        for name in services
    }
    made |= {
        "Spark stopped": lambda: stopped(root, "org.apache.spark.deploy.SparkSubmit"),
        "PostgreSQL stopped": lambda: stopped(root, "postgres"),
        "Kafka stopped": lambda: stopped(root, "kafka.Kafka"),
        "PostgreSQL read-only": lambda: database_changed(data_dir, by=READ_ONLY + "on", back=READ_ONLY + "off"),
        "a column of another migration": lambda: database_changed(
            data_dir,
            by='ALTER TABLE "window" RENAME COLUMN document TO document_2',
            back='ALTER TABLE "window" RENAME COLUMN document_2 TO document',
        ),
        "a receiver that accepts and drops": lambda: database_changed(
            data_dir, by=DROP_NOTICES, back="DROP FUNCTION drop_notice() CASCADE"
        ),
    }
    made |= {
        "clock ten minutes ahead": lambda: clock_off(heart),
        f"topic {CANARY_TOPIC} deleted": lambda: topic_deleted(CANARY_TOPIC, data_dir),
        f"topic {BEACONS} deleted": lambda: topic_deleted(BEACONS, data_dir),
    }
    if os.geteuid() == 0:
        made["PostgreSQL's disk full"] = lambda: disk_full(data_dir / "postgres")
        made["disk full"] = lambda: disk_full(data_dir)
    return made


@contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def disks(data_dir: Path) -> Iterator[None]:
    """Mount the disks of `DISKS_MB` in memory, if this is root."""
    with ExitStack() as stack:
        for name, size_mb in DISKS_MB.items() if os.geteuid() == 0 else ():
            folder = data_dir / name
            folder.mkdir(exist_ok=True)
            options = f"size={size_mb}m,mode=0711"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
            stack.enter_context(_mounted(folder))
        yield


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
    figures = []
    with ExitStack() as stack:
        heart = stack.enter_context(Heart())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lagloss-bench-")))
        folder.chmod(0o711)  # PostgreSQL's user passes
        data_dir = folder / "data"
        data_dir.mkdir(mode=0o711)
        stack.enter_context(disks(data_dir))
        os.environ |= {"LAGLOSS_HEARTBEAT_URL": f"{heart.url}/ok", "LAGLOSS_HEARTBEAT_FAIL_URL": f"{heart.url}/fail"}
        up = Up(data_dir)
        try:
            up.ready()
            root = psutil.Process(up.process.pid)
            for name, fault in faults(heart, root, data_dir).items():
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
