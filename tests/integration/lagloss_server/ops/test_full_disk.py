"""A disk that fills up below a running `lagloss up`: a file system of its own, filled to the last byte."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import psycopg
import pytest
from confluent_kafka import Producer

from benchmarks.kills import Up
from lagloss.broker.topics import BEACONS, create_topics
from lagloss_server.base.errors import DiskFull
from lagloss_server.base.instances import read_endpoints
from lagloss_server.ops._die_with_parent import started
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from tests.programs import SKIPPED
from tests.support.closers import wait_until

SIZE_MB = 800
SERVICES = ("aggregator", "alerting", "taps", "collector", "dashboard")


@pytest.fixture
def small_disk(own_dir: Path) -> Iterator[Path]:
    """A folder on a disk of its own. Without the right to mount one, tests/unit/lagloss_server/ops/test_disk.py is what
    there is: it has the same servers' words, and no servers."""
    folder = own_dir / "disk"
    folder.mkdir()
    done = mount(folder, SIZE_MB)
    if done.returncode != 0:  # a right, and no program that a runner could install: LAGLOSS_ALL_TESTS asks for none
        pytest.skip(f"{SKIPPED}mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(folder: Path, size_mb: int, *more: str) -> subprocess.CompletedProcess[str]:
    options = ",".join((f"size={size_mb}m", "mode=0711", *more))
    words = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def fill(folder: Path) -> Path:
    """Write a file until the disk takes no byte more."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


def doctor(folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "lagloss_server.cli.main", "doctor", "--data-dir", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "400"})


def write_until_refused(endpoints: dict[str, str]) -> None:
    """Write to both servers; each ends when it cannot."""
    producer = Producer({"bootstrap.servers": endpoints["kafka"], "log_level": 0, "message.timeout.ms": 5_000})
    for _ in range(40):
        producer.produce(BEACONS, os.urandom(500_000))
    producer.flush(6)
    with suppress(psycopg.OperationalError), psycopg.connect(endpoints["database"], autocommit=True) as connection:
        for _ in range(400):  # the log of writes gets a new file each 16 MB
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")


def answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz", params={"exclude": "lease"}, timeout=5).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


@pytest.mark.slow
def test_a_full_disk_is_named_and_waited_for_and_all_comes_back_by_itself(jars: None, small_disk: Path) -> None:
    with Up(small_disk) as up:
        endpoints = up.ready()
        kept = [int((small_disk / "logs" / f"{name}.pid").read_text().split()[0]) for name in SERVICES]
        filler = fill(small_disk)
        write_until_refused(endpoints)

        waiting = [
            f"Kafka is not running: The disk of {small_disk}/kafka is full",
            f"PostgreSQL is not running: The disk of {small_disk}/postgres is full",
        ]
        wait_until(lambda: all(line in up.said for line in waiting), 90, "that both servers wait")
        found = doctor(small_disk)
        assert found.returncode == 3
        assert f"The disk of {small_disk} is full" in found.stdout
        assert "delete" not in found.stdout + up.said
        assert all(map(started, kept)), up.said

        filler.unlink()
        running = read_endpoints(small_disk)
        wait_until(lambda: all(answers(running[name]) for name in SERVICES), 170, "that all answer again")
        assert up.end() == 0

    fill(small_disk)
    with Up(small_disk) as again:
        assert again.process.wait(60) == 3
        assert f"The disk of {small_disk} is full" in again.said.splitlines()[-1]
        assert "delete" not in again.said


def test_a_first_start_that_fills_the_disk_leaves_nothing_half_made(jars: None, small_disk: Path) -> None:
    """PostgreSQL's own files take more than what there is."""
    assert mount(small_disk, 36, "remount").returncode == 0
    with pytest.raises(DiskFull):
        EmbeddedPostgres(small_disk / "postgres").start()
    filler = fill(small_disk)
    with pytest.raises(DiskFull):
        EmbeddedKafka(small_disk / "kafka").start()
    filler.unlink()
    assert mount(small_disk, 300, "remount").returncode == 0
    with EmbeddedPostgres(small_disk / "postgres") as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with EmbeddedKafka(small_disk / "kafka") as kafka:
        create_topics(kafka.bootstrap)
