"""Memory of each service under a flood from loopback: `python -m benchmarks.flood --minutes 10`, ten minutes for each
service in turn, or those that are named.

Clients send what is too large, too slow, malformed or too much, between requests that are good: heads of 1 MB, endless
bodies, half a request, many requests at once, answers that nobody reads; bodies, blocks and reports that are none, and
gzip of what unpacks to far more; long ranges of the dashboard. The aggregator and the taps also get forged records on
Kafka. The load is bounded, so that a machine of two cores can bear it.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import httpx2
import psutil
from confluent_kafka import Producer

from benchmarks.database import Servers, fresh_servers
from benchmarks.figures import Figure, table
from benchmarks.services import Service, running
from benchmarks.traffic import chain
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import EmitterReport, Progress, encode_report

MINUTES: Final = 10.0
SERVICES: Final = ("alerting", "collector", "dashboard", "taps", "aggregator")
"""In this order: what is forged on Kafka comes last."""
ALL: Final = "all"
PER_SECOND: Final = 100.0
"""Requests begun."""
MAX_OPEN: Final = 1_200
"""Connections at a time: more than a service takes."""
RECORDS_PER_SECOND: Final = 300
GIVE_UP_S: Final = 20.0
"""For which a client holds a connection at most."""
SAMPLE_S: Final = 0.5
WARM_S: Final = 20.0
"""Time that a service gets before its memory is looked at first, and to recover before it is looked at last."""
MAX_GROWTH_MB: Final = 400.0
"""The queues and bodies that a collector may hold come to 164 MiB, and CPython holds some of them twice."""
PIPELINE: Final = "flooded"
HOST: Final = "127.0.0.1"
MIB: Final = 1 << 20
_JSON: Final = "application/json"
READS: Final = {"collector": "/v1/beacons", "dashboard": "/_dash-update-component"}
"""Paths at which a body is read."""


@dataclass
class Seen:
    """What a flood did: answers by status, and connections that the service ended without one."""

    answers: Counter[str] = field(default_factory=Counter)
    started: int = 0

    def refused(self) -> int:
        return sum(count for status, count in self.answers.items() if status != "200" and status != "202")


def head(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", f"Host: {HOST}", *lines, "", "")).encode()


def post(path: str, body: bytes, kind: str = _JSON, *lines: str) -> bytes:
    return head(path, f"Content-Type: {kind}", f"Content-Length: {len(body)}", *lines, method="POST") + body


def of_every_service(path: str) -> list[list[bytes]]:
    """Return requests as their pieces, which are sent one after the other; `path` reads a body."""
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    endless = head(path, f"Content-Type: {_JSON}", "Transfer-Encoding: chunked", method="POST")
    long_line = head("/livez", "X: y")[:-4] + b"x" * MIB
    return [
        [long_line],
        [b"GET /" + b"x" * MIB],
        [head("/livez", "X: y")[:-2], *[b"X-Short: y\r\n" * 100] * 1_000],
        [endless, *[chunk] * 400],
        [post(path, b"{" + b" " * 200)[:-100]],
        [head("/livez")[:20]],
        [b""],
        [head("/metrics") * 200],
        [b"\x16\x03\x01" + os.urandom(500)],
        [head("/livez", "Connection: close")],
        [head("/metrics", "Connection: close")],
        [head("/healthz", "Connection: close")],
    ]


def of_the_collector() -> list[list[bytes]]:
    now_ms = int(time.time() * 1000)
    beacons = [{"checkpoint": "in", "message_id": f"m-{number}", "event_time": now_ms} for number in range(1_000)]
    batch = json.dumps({"pipeline": PIPELINE, "node": "src", "beacons": beacons}).encode()
    bomb = gzip.compress(b'{"a": [' + b"[]," * (50 * MIB // 3) + b"[]]}")
    close = "Connection: close"
    return [
        [post("/v1/beacons", batch, _JSON, close)],
        [post("/v1/beacons", batch.replace(b"event_time", b"even_time"), _JSON, close)],
        [post("/v1/beacons", b"[" * 500_000, _JSON, close)],
        [post("/v1/beacons", bomb, _JSON, "Content-Encoding: gzip", close)],
        [post("/v1/beacons", batch, _JSON, "Authorization: Bearer lagloss_000000000000_x", close)],
        [post("/v1/traces", b'{"resourceSpans": [' + b"{}," * 190_000 + b"{}]}", _JSON, close)],
        [post("/v1/blocks", os.urandom(MIB), "application/vnd.lagloss.blocks", close)],
        [post("/v1/reports", os.urandom(MIB // 2), "application/vnd.lagloss.report", close)],
        [post("/v1/task-runs", b'{"reports": [' + b"{}," * 190_000 + b"{}]}", _JSON, close)],
    ]


def of_the_dashboard() -> list[list[bytes]]:
    close = "Connection: close"
    callback = json.dumps({"output": "x" * 100_000, "inputs": [{"id": "y", "value": "z" * 500_000}]}).encode()
    return [
        *([head(path, close)] for path in LONG_READS),
        [head("/", close)],
        [head("/")],  # and nobody reads it
        [head(f"/api/v1/pipelines/{PIPELINE}?range={'9' * 8_000}d", close)],
        [head("/api/v1/overview?q=RANDOM", close)],
        [head(f"/api/v1/pipelines/{PIPELINE}/messages?id=RANDOM", close)],
        [post("/_dash-update-component", callback, _JSON, close)],
        [post("/mcp", callback, _JSON, close)],
        [post("/api/v1/silences", callback, _JSON, close)],
    ]


LONG_READS: Final = tuple(
    f"/api/v1/{path}"
    for path in (
        f"pipelines/{PIPELINE}?range=90d",
        f"pipelines/{PIPELINE}/panels?range=90d",
        f"pipelines/{PIPELINE}/report?range=90d",
        "incidents?state=resolved&range=90d&size=500",
        "portfolio?range=90d",
    )
)


def demand_good(service: Service) -> None:
    """Check that what is meant to be accepted is: else a flood would measure refusals only. Raises SystemExit."""
    if service.name == "collector":
        _, _, batch = of_the_collector()[0][0].partition(b"\r\n\r\n")
        answers = [httpx2.post(f"{service.url}/v1/beacons", content=batch, headers={"content-type": _JSON}, timeout=60)]
    elif service.name == "dashboard":
        answers = [httpx2.get(f"{service.url}{path}", timeout=60) for path in LONG_READS]
    else:
        answers = [httpx2.get(f"{service.url}/metrics", timeout=60)]
    for answer in answers:
        if not answer.is_success:
            raise SystemExit(f"{answer.request.url}: {answer.status_code} {answer.text[:300]}")


async def flood(port: int, requests: Sequence[list[bytes]], until: float, seen: Seen) -> None:
    """Begin `PER_SECOND` requests per second, in turn, with up to `MAX_OPEN` connections open."""
    open_, tasks = asyncio.Semaphore(MAX_OPEN), set[asyncio.Task[None]]()
    began = time.monotonic()
    for number, pieces in enumerate(itertools.cycle(requests)):
        await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.monotonic()))
        if time.monotonic() > until:
            break
        await open_.acquire()
        task = asyncio.create_task(_client(port, pieces, seen))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(lambda _: open_.release())
    await asyncio.gather(*tasks, return_exceptions=True)


async def _client(port: int, pieces: Sequence[bytes], seen: Seen) -> None:
    """Send one request piece by piece, and note how its connection ends."""
    seen.started += 1
    status, writer = "no answer", None
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            for piece in pieces:
                writer.write(piece.replace(b"RANDOM", f"{random.getrandbits(64):x}".encode()))
                await writer.drain()
            line = await reader.readline()
            status = line.split()[1].decode() if line.startswith(b"HTTP/1.1 ") else "no answer"
            while await reader.read(65_536):
                pass
    if writer is not None:
        writer.transport.abort()
    seen.answers[status] += 1


class Forger:
    """Sends records to lagloss's topics, as a client with a right to write there could: bytes that are no record, and
    reports of emitters, pipelines, nodes and lanes that never were."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)

    def __enter__(self) -> Forger:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self._producer.flush(30)

    def _send(self) -> None:
        while not self._ends.wait(1.0):
            for number in range(RECORDS_PER_SECOND):
                topic, key, value = self._record(number)
                with suppress(BufferError):
                    self._producer.produce(topic, value, key)
            self._producer.poll(0)

    def _record(self, number: int) -> tuple[str, bytes, bytes]:
        if number % 3 == 0:
            return (BEACONS if number % 2 else REPORTS), os.urandom(8), os.urandom(2_000)
        name, now_ms = f"{random.getrandbits(64):x}", int(time.time() * 1000)
        pipeline = PIPELINE if number % 3 == 1 else name
        lanes = tuple(Progress(f"{name}.in", f"{name}/{lane}", now_ms) for lane in range(50))
        emitter = uuid.uuid4().bytes
        report = EmitterReport(pipeline, name, emitter, name * 10, 1, now_ms, now_ms, False, now_ms // 1000, lanes)
        return REPORTS, emitter, encode_report(report)


class Memory:
    """Samples the memory of a process: RSS, in MB."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self.peak = self.now()

    def now(self) -> float:
        return self._process.memory_info().rss / MIB

    @contextmanager
    def sampled(self) -> Iterator[None]:
        ends = threading.Event()

        def sample() -> None:
            while not ends.wait(SAMPLE_S):
                self.peak = max(self.peak, self.now())

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join()


def run(minutes: float = MINUTES, services: Sequence[str] = SERVICES) -> list[Figure]:
    """Print memory and answers of each service under its flood; return by how much its memory grew at most."""
    print("| service | start | peak | end | requests | refused | answers |\n|---|---|---|---|---|---|---|", flush=True)
    with fresh_servers() as servers:
        servers.store.apply(chain(PIPELINE), 0)
        return [_flooded(name, servers, minutes) for name in services]


def _flooded(name: str, servers: Servers, minutes: float) -> Figure:
    requests = of_every_service(
        {"collector": "/v1/beacons", "dashboard": "/_dash-update-component"}.get(name, "/livez")
    )
    requests += {"collector": of_the_collector, "dashboard": of_the_dashboard}.get(name, list)()
    with running(name, servers.folder, servers.env) as service:
        service.await_answer("/livez", 300)
        demand_good(service)
        time.sleep(WARM_S)
        memory, seen = Memory(service.pid), Seen()
        start, until = memory.now(), time.monotonic() + 60 * minutes
        with memory.sampled():
            if name in ("aggregator", "taps"):
                with Forger(servers.kafka.bootstrap):
                    asyncio.run(flood(service.port, requests, until, seen))
            else:
                asyncio.run(flood(service.port, requests, until, seen))
        time.sleep(WARM_S)
        service.await_answer("/livez", 60)
        end = memory.now()
    answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(seen.answers.items()))
    print(
        f"| {name} | {start:,.0f} MB | {memory.peak:,.0f} MB | {end:,.0f} MB | {seen.started:,} | {seen.refused():,} "
        f"| {answers} |",
        flush=True,
    )
    return Figure(f"{name}, growth in a flood of {minutes:g} min", memory.peak - start, "MB", MAX_GROWTH_MB)


def main() -> None:
    """Flood the services that the command line names, for as long as it says, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("services", nargs="*", choices=(*SERVICES, ALL), default=ALL, metavar="SERVICE")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    arguments = parser.parse_args()
    figures = run(arguments.minutes, SERVICES if ALL in arguments.services else arguments.services)
    print(table(figures))
    sys.exit(not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    main()
