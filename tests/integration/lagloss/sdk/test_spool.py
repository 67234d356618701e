"""The spool against a real broker: outages, deaths and full disks, and what the log holds afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from lagloss import Emitter
from lagloss.broker.topics import create_topics
from lagloss.wire.format import hash_id
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from tests.support.kafka_log import blocks_of, in_ranges, newest_tallies, reports_of, wait_for

OUTAGE_FLUSHES = 600
FLUSH_BEACONS = 5_000

SERVICE = """
import resource, sys, time
from lagloss import Emitter
bootstrap, spool, limit = sys.argv[1:]
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
emitter = Emitter("it-spool", "mid", bootstrap, spool=spool)
now_ms = time.time_ns() // 1_000_000
number = 0
print(emitter.id.hex(), flush=True)
while True:
    for _ in range(50):
        emitter.received(f"m{number}", now_ms)
        number += 1
    mark = emitter.mark()
    emitter.request_flush()
    while not emitter.acknowledged(mark):
        time.sleep(0.001)
    print(number, emitter.stats().errors, flush=True)
"""


@pytest.fixture
def bootstrap(kafka_bootstrap: str) -> str:
    create_topics(kafka_bootstrap)
    return kafka_bootstrap


@pytest.fixture
def own_kafka(jars: None, own_dir: Path) -> Iterator[EmbeddedKafka]:
    """A broker of the test's own: who reads all of the session's topics would read three million beacons ever after."""
    with EmbeddedKafka(own_dir / "kafka") as kafka:
        create_topics(kafka.bootstrap)
        yield kafka


def service(bootstrap: str, spool: Path, file_limit: int = 0) -> subprocess.Popen[str]:
    """A process that observes m0, m1, … and prints its emitter, then how many of them are safe, and errors."""
    command = [sys.executable, "-c", SERVICE, bootstrap, str(spool), str(file_limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def told_until(process: subprocess.Popen[str], safe: int) -> list[int]:
    """The first line that says that so many are safe."""
    for line in said(process):
        numbers = [int(word) for word in line.split()]
        if numbers[0] >= safe:
            return numbers
    raise AssertionError(process.stderr.read() if process.stderr else "it ended")


def ended(process: subprocess.Popen[str], how: int) -> int:
    """Sends it this signal; how many it had said to be safe."""
    process.send_signal(how)
    rest, _ = process.communicate(timeout=20)
    assert process.returncode == -how
    lines = [line for line in rest.splitlines() if len(line.split()) == 2]
    return int(lines[-1].split()[0]) if lines else 0


def messages_of(bootstrap: str, emitter: bytes) -> Counter[int]:
    """How often each id hash is in the log, each block counted once."""
    blocks = {at.block.seq: at.block for at in blocks_of(bootstrap, emitter)}.values()
    return Counter(int(h) for block in blocks for h in block.id_hash)


def assert_settled(bootstrap: str, emitter: bytes, at_least: int) -> None:
    """The first so many messages are there once, the tallies hold what the log holds, and the account is closed."""
    found = messages_of(bootstrap, emitter)
    assert {hash_id(f"m{number}") for number in range(at_least)} <= set(found)
    assert set(found.values()) == {1}
    tallies = newest_tallies(reports_of(bootstrap, emitter)).values()
    assert sum(tally.beacons for tally in tallies) == found.total()
    assert not any(tally.dropped for tally in tallies)
    ranges = tuple(place for tally in tallies for place in tally.ranges)
    seqs = {at.block.seq: False for at in blocks_of(bootstrap, emitter)}
    for at in blocks_of(bootstrap, emitter):
        seqs[at.block.seq] |= in_ranges(ranges, at.partition, at.offset)
    assert all(seqs.values())
    assert reports_of(bootstrap, emitter)[-1].closed


def test_what_a_killed_process_had_flushed_arrives_once_and_its_successor_closes_its_account(
    bootstrap: str, tmp_path: Path
) -> None:
    process = service(bootstrap, tmp_path)
    emitter = bytes.fromhex(said(process).readline().strip())
    (safe, _) = told_until(process, 2_000)
    safe = max(safe, ended(process, signal.SIGKILL))
    assert not any(report.closed for report in reports_of(bootstrap, emitter))
    with Emitter("it-spool", "mid", bootstrap, spool=tmp_path) as successor:
        wait_for(lambda: not list(tmp_path.glob(f"*{emitter.hex()}")), 90, "the end of the window and a settlement")
        assert successor.flush()
    assert_settled(bootstrap, emitter, safe)


def test_sigterm_loses_nothing_while_the_broker_answers(bootstrap: str, tmp_path: Path) -> None:
    process = service(bootstrap, tmp_path)
    emitter = bytes.fromhex(said(process).readline().strip())
    (safe, _) = told_until(process, 500)
    safe = max(safe, ended(process, signal.SIGTERM))
    assert_settled(bootstrap, emitter, safe)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_takes_no_more_leaves_the_host_with_the_broker(bootstrap: str, tmp_path: Path) -> None:
    process = service(bootstrap, tmp_path, file_limit=20_000)
    emitter = bytes.fromhex(said(process).readline().strip())
    while (told := told_until(process, 0))[1] == 0:
        pass
    safe, errors = told_until(process, told[0] + 1_000)
    assert errors >= 1
    safe = max(safe, ended(process, signal.SIGTERM))
    assert_settled(bootstrap, emitter, safe)


@pytest.mark.slow
def test_an_outage_with_the_beacons_of_ten_minutes_at_5000_a_second_loses_none(
    own_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """As much data as in ten minutes, and as many flushes, in less time."""
    run, bootstrap = uuid.uuid4().hex[:8], own_kafka.bootstrap
    with Emitter("it-spool", "mid", bootstrap, spool=tmp_path, max_buffered=50_000) as emitter:
        assert emitter.received(f"{run}-before", time.time_ns() // 1_000_000)
        assert emitter.flush()
        own_kafka.stop()
        try:
            for flush in range(OUTAGE_FLUSHES):
                names = [f"{run}-{flush}-{number}" for number in range(FLUSH_BEACONS // 2)]
                times = [time.time_ns() // 1_000_000] * len(names)
                assert emitter.observe_all("received", names, times) == len(names)
                assert emitter.observe_all("sent", names, times) == len(names)
                mark = emitter.mark()
                emitter.request_flush()
                wait_for(lambda mark=mark: emitter.acknowledged(mark), what="a flush")  # type: ignore[misc]
            spooled = emitter.stats().spooled_bytes
            assert emitter.stats().sent == 1
        finally:
            own_kafka.start()
        assert emitter.flush(timeout_s=240)
        stats = emitter.stats()
        assert (stats.dropped, stats.sent) == (0, OUTAGE_FLUSHES * FLUSH_BEACONS + 1)
        assert stats.spooled_bytes < spooled / 4
    found = messages_of(bootstrap, emitter.id)
    expected = {hash_id(f"{run}-before"): 1}
    for flush in range(OUTAGE_FLUSHES):
        expected |= {hash_id(f"{run}-{flush}-{number}"): 2 for number in range(FLUSH_BEACONS // 2)}
    assert found == expected
    tallies = newest_tallies(reports_of(bootstrap, emitter.id)).values()
    assert sum(tally.beacons for tally in tallies) == found.total()
    assert not list(tmp_path.iterdir())
