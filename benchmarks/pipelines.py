"""Ten thousand small pipelines in one minute: how long closing all their windows takes, proven and read, and rolling up
their hours."""

from __future__ import annotations

import os
import time

import numpy as np
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import delete, select

from aggregator.closing.window_store import mark_hours
from aggregator.kernel.spark_reader import AGGREGATOR_JOB
from aggregator.maintenance import rollups
from aggregator.set_aside import SetAside
from benchmarks.database import copied_s, fresh_database, fresh_servers
from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.timing import Stopwatch
from benchmarks.traffic import chain, emitter_of
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import (
    WINDOW_S,
    BeaconBlock,
    EmitterReport,
    OffsetRange,
    Progress,
    Tally,
    block_key,
    encode_block,
    encode_report,
    partitions_of,
)
from lagloss.wire.sketch import Sketch
from lagloss_server.ops.spark_session import start_session
from lagloss_server.store.schema.core import RollupDirtyRow, WindowRow, table_of
from lagloss_server.sums.rollup import PERIOD_S, period_of
from tests.support.closers import driven

PIPELINES = 10_000
CLOSED_S = 40.0
"""For a minute of all pipelines, asked for."""
MESSAGES = 60
HOURS = 400
PARTITIONS = 8
NODES = ("src", "snk")


def run(pipelines: int = PIPELINES) -> list[Figure]:
    """Print and return how long it takes to close a minute of all pipelines: one in which nothing is lost, and one in
    which each lost a message."""
    figures = []
    with fresh_servers(PARTITIONS) as servers:
        store, names = servers.store, [f"small-{number:05}" for number in range(pipelines)]
        for name in names:
            store.apply(chain(name, NODES), 0)
        start = int(time.time()) // WINDOW_S * WINDOW_S - 300
        traffic = Traffic(servers.kafka.bootstrap)
        minutes = (("proven", start, 0, "ok"), ("read, cold", start + 60, 1, "loss"), ("read", start + 120, 1, "loss"))
        for _, window_s, lost, _ in minutes:
            traffic.send(names, window_s, lost)
        with (
            start_session(AGGREGATOR_JOB, "local[2]", "2g", servers.folder / "spark") as spark,
            driven(spark, servers.kafka.bootstrap, store, BEACONS, REPORTS) as aggregator,
        ):
            aggregator.follow_all()
            print(f"{pipelines:,} pipelines of {MESSAGES} messages a minute")
            for label, window_s, _, verdict in minutes:
                jobs = _jobs(spark)
                with Stopwatch(os.getpid()) as spent:
                    windows = [(name, window_s) for name in names]
                    for index in range(0, pipelines, 4_000):
                        aggregator.closer.close_windows(windows[index : index + 4_000], int(time.time() * 1000))
                (window,) = store.windows(names[-1], window_s, window_s + 60)
                if window.verdict != verdict:
                    raise SystemExit(f"expected {verdict}: {window}")
                bare_s = copied_s(store, f'SELECT * FROM "window" WHERE window_start = {window_s}', "window")
                print(
                    f"one minute of all, {label}: {spent.wall_s:.1f} s, {spent.wall_s / pipelines * 1e3:.2f} ms a"
                    f" window, {_jobs(spark) - jobs} Spark jobs (asked for: {CLOSED_S:.0f} s, few jobs);"
                    f" CPU {spent.own_s:.1f} s of the closer, {spent.servers_s:.1f} s with Spark, broker and"
                    f" PostgreSQL; a bare COPY of the same rows of `window` {bare_s:.1f} s",
                    flush=True,
                )
                goal = None if "cold" in label else CLOSED_S
                what = f"a minute of {pipelines:,} pipelines, {label}"
                figures.append(Figure(what, spent.wall_s, "s", goal, bare_s, "bare COPY of the rows"))
    return figures


def run_rollups() -> list[Figure]:
    """Print and return what rolling up an hour of a pipeline costs, beside a bare SELECT of its windows."""
    with fresh_database() as (_, postgres, store):
        names = [f"small-{number:05}" for number in range(HOURS)]
        last_s = fill(store, names, nodes=3, minutes_days=2 / 24, rollup_days=0)
        hour = period_of("hour", last_s) - PERIOD_S["hour"]
        with store.engine.begin() as connection:
            connection.execute(delete(table_of(RollupDirtyRow)))
            mark_hours(connection, [(name, hour) for name in names], 0)
        server = postgres.processes[0].pid
        done, failures = 0, SetAside(store.engine)
        with Stopwatch(server) as spent:
            while done < HOURS:
                done += rollups.roll_up(store.engine, (hour + PERIOD_S["hour"]) * 1_000, failures)[0]
        window = table_of(WindowRow)
        with Stopwatch() as bare, store.engine.connect() as connection:
            within = window.c.window_start.between(hour, hour + PERIOD_S["hour"] - 1)
            rows = connection.execute(select(window.c.document, window.c.facts).where(within)).all()
    took_ms, own_ms, server_ms, bare_ms = (
        seconds / HOURS * 1e3 for seconds in (spent.wall_s, spent.own_s, spent.servers_s, bare.wall_s)
    )
    print(
        f"{HOURS} hours of 3 nodes rolled up: {took_ms:.1f} ms an hour, CPU {own_ms:.1f} + {server_ms:.1f} ms of"
        f" PostgreSQL; a bare SELECT of the {len(rows):,} windows {bare_ms:.1f} ms."
        f" {PIPELINES:,} pipelines: {took_ms * PIPELINES / 60e3:.1f} s of each minute",
        flush=True,
    )
    return [Figure("an hour rolled up", took_ms, "ms", None, bare_ms, "bare SELECT of its windows")]


def _jobs(spark: SparkSession) -> int:
    """Return how many jobs Spark has run so far."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


class Traffic:
    """Sends blocks and reports, as an emitter a node would."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
        self._rng = np.random.default_rng(1)
        self._seq = 0
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def send(self, names: list[str], start_s: int, lost: int) -> None:
        for name in names:
            ids = self._rng.integers(0, 2**64, MESSAGES, dtype=np.uint64)
            for node in NODES:
                sent_ids = ids if node == "src" else ids[lost:]
                tallies = tuple(self._block(name, f"{node}.{side}", sent_ids, start_s) for side in ("in", "out"))
                self._report(name, node, tallies)
        self._producer.flush(120)

    def _block(self, name: str, checkpoint: str, ids: np.typing.NDArray[np.uint64], start_s: int) -> Tally:
        emitter, lags = emitter_of(name, checkpoint.split(".")[0]), np.full(ids.size, 20, np.float32)
        where, ranges = partitions_of(ids, PARTITIONS), []
        for partition in np.unique(where).tolist():
            rows = np.flatnonzero(where == partition)
            offsets = np.full(rows.size, 30_000, np.uint16) if checkpoint == "src.in" else None
            block = BeaconBlock(
                name,
                checkpoint,
                emitter,
                self._seq,
                start_s,
                PARTITIONS,
                ids[rows],
                lags[rows],
                event_offset_ms=offsets,
            )
            self._seq += 1
            self._producer.produce(BEACONS, encode_block(block), block_key(name, start_s), partition=partition)
            self._producer.poll(0)
            ranges.append(OffsetRange(partition, self._next[partition], self._next[partition]))
            self._next[partition] += 1
        id_sum = int(ids.sum(dtype=np.uint64))
        return Tally(checkpoint, start_s, ids.size, id_sum, Sketch.of(lags), tuple(ranges))

    def _report(self, name: str, node: str, tallies: tuple[Tally, ...]) -> None:
        emitter, now_ms = emitter_of(name, node), int(time.time() * 1_000)
        self._seq += 1
        progress = (Progress(f"{node}.in", "topic/0", now_ms), Progress(f"{node}.out", "", now_ms))
        report = EmitterReport(
            name, node, emitter, "bench", self._seq, 0, now_ms, False, now_ms // 1000, progress, tallies
        )
        self._producer.produce(REPORTS, encode_report(report), emitter)
