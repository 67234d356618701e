"""Intake over HTTP: requests and beacons a second that one collector process acknowledges, beside a plain FastAPI
application that parses the same JSON and answers, each loaded by as many connections, in one run."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from benchmarks.database import fresh_servers
from benchmarks.figures import Figure
from benchmarks.services import running, running_application
from benchmarks.traffic import chain
from lagloss.wire.format import BeaconBlock, encode_block, hash_id, partition_of

CONNECTIONS = 32
SECONDS = 5.0
ROUNDS = 3
BEACONS = 100
PARTITIONS = 8

plain = FastAPI()


@plain.post("/v1/beacons")
async def parse(request: Request) -> JSONResponse:
    """Parse the body and answer, as a collector that does nothing."""
    batch = await request.json()
    return JSONResponse({"accepted": len(batch["beacons"])}, 202)


@dataclass(frozen=True)
class Load:
    """Request to one endpoint; `body(n)` is the n-th body."""

    name: str
    port: int
    path: str
    kind: str
    beacons: int
    body: Callable[[int], bytes]


def run() -> list[Figure]:
    """Print and return the rates of all loads, and how the collector's compare with the plain application's."""
    with _servers() as (collector, bare):
        beacons, blocks = ("/v1/beacons", "application/json", BEACONS), "application/vnd.lagloss.blocks"
        loads = [
            Load("plain FastAPI, JSON", bare, *beacons, _batch),
            Load("collector, JSON", collector, *beacons, _batch),
            Load("collector, JSON with emitter and seq", collector, *beacons, _numbered),
            Load("collector, blocks", collector, "/v1/blocks", blocks, BEACONS * PARTITIONS, _blocks),
        ]
        rates: dict[str, list[float]] = {load.name: [] for load in loads}
        for _ in range(ROUNDS):
            for load in loads:
                rates[load.name].append(asyncio.run(_requests_a_second(load)))
    cores = len(os.sched_getaffinity(0))
    print(
        f"{CONNECTIONS} connections, {SECONDS:.0f} s, median of {ROUNDS} rounds; {cores} cores for load, server, broker"
    )
    base = median(rates[loads[0].name])
    for load in loads:
        rate = median(rates[load.name])
        print(
            f"{load.name:38} {rate:8,.0f} requests/s {rate * load.beacons:12,.0f} beacons/s {rate / base:6.2f} of plain"
        )
    return [
        Figure(load.name, median(rates[load.name]), "requests/s", None, base, loads[0].name, more_is_better=True)
        for load in loads[1:]
    ]


@contextmanager
def _servers() -> Iterator[tuple[int, int]]:
    """Run a collector and the plain application, one process each; yield their ports."""
    with fresh_servers(PARTITIONS) as servers:
        servers.store.apply(chain("bench", ("src", "snk")), 0)
        with (
            running("collector", servers.folder, servers.env) as collector,
            running_application("benchmarks.intake:plain", servers.folder, "/docs") as bare,
        ):
            collector.await_answer("/v1/pipelines/bench/intake", 60)
            yield collector.port, bare.port


async def _requests_a_second(load: Load) -> float:
    """Return how many requests were answered 202 per second, each connection sending one after the other.

    Without an HTTP library: one would take more of the cores than the servers that are measured.
    """
    numbers = iter(range(sys.maxsize))
    answered = 0

    async def connection(until: float) -> None:
        nonlocal answered
        reader, writer = await asyncio.open_connection("127.0.0.1", load.port)
        while time.monotonic() < until:
            body = load.body(next(numbers))
            lines = ("Host: localhost", f"Content-Type: {load.kind}", f"Content-Length: {len(body)}")
            head = "\r\n".join((f"POST {load.path} HTTP/1.1", *lines, ""))
            writer.write(head.encode() + b"\r\n" + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            content = await reader.readexactly(length)
            if not answer.startswith(b"HTTP/1.1 202"):
                raise SystemExit(f"{load.name}: {answer.decode()}{content.decode()}")
            answered += 1
        writer.close()
        await writer.wait_closed()

    began = time.monotonic()
    await asyncio.gather(*(connection(began + SECONDS) for _ in range(CONNECTIONS)))
    return answered / (time.monotonic() - began)


_NOW_MS = int(time.time() * 1000)
_SEEN = [
    {"checkpoint": "in", "message_id": str(uuid.UUID(int=number << 64 | number)), "event_time": _NOW_MS + number}
    for number in range(BEACONS)
]
_EMITTER = str(uuid.uuid4())
_BATCH = json.dumps({"pipeline": "bench", "node": "snk", "beacons": _SEEN}).encode()


def _batch(number: int) -> bytes:
    return _BATCH


def _numbered(number: int) -> bytes:
    return b'{"emitter":"%s","seq":%d,' % (_EMITTER.encode(), number + 1) + _BATCH[1:]


def _a_block_each() -> list[bytes]:
    """Return a block of 100 beacons for each partition."""
    window_s = int(time.time()) // 60 * 60
    ids: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for number in range(3 * BEACONS * PARTITIONS):
        id_hash = hash_id(str(number))
        ids[partition_of(id_hash, PARTITIONS)].append(id_hash)
    lags = np.full(BEACONS, 5, np.float32)
    return [
        encode_block(
            BeaconBlock(
                "bench",
                "snk.in",
                uuid.uuid4().bytes,
                1,
                window_s,
                PARTITIONS,
                np.array(some[:BEACONS], np.uint64),
                lags,
            )
        )
        for some in ids
    ]


_BLOCKS = b"".join(struct.pack("<I", len(block)) + block for block in _a_block_each())


def _blocks(number: int) -> bytes:
    return _BLOCKS
