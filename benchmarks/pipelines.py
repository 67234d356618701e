"""Ten thousand small pipelines in one minute: how long closing all their windows takes, proven and read, and rolling up
their hours."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer
from sqlalchemy import delete, select, text

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.window_store import mark_hours
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from aggregator.maintenance import rollups
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.set_aside import SetAside
from benchmarks.cpu import cpu_s
from benchmarks.database import fresh_database
from benchmarks.figures import Figure
from benchmarks.generated import fill
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.wire.format import (
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
from lagloss_server.model.definition import Definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.spark_session import start_session
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.migrate import migrate
from lagloss_server.store.schema.core import RollupDirtyRow, WindowRow, table_of
from lagloss_server.store.store import Store
from lagloss_server.sums.rollup import PERIOD_S, period_of

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
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedKafka(Path(folder) / "kafka") as kafka,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
    ):
        create_topics(kafka.bootstrap, PARTITIONS)
        migrate(postgres.url)
        store, beacons = Store(postgres.url), BeaconLog(kafka.bootstrap, BEACONS)
        names = [f"small-{number:05}" for number in range(pipelines)]
        for name in names:
            store.apply(_definition(name), 0)
        now_ms = int(time.time() * 1000)
        start = now_ms // 60_000 * 60 - 300
        follower = ReportConsumer(store.engine, REPORTS, "bench")
        traffic = Traffic(kafka.bootstrap, follower, now_ms)
        minutes = (("proven", start, 0, "ok"), ("read, cold", start + 60, 1, "loss"), ("read", start + 120, 1, "loss"))
        for _, window_s, lost, _ in minutes:
            traffic.send(names, window_s, lost)
        spark = start_session(AGGREGATOR_JOB, "local[2]", "2g", Path(folder) / "spark")
        try:
            reader = BlockReader(spark, kafka.bootstrap, BEACONS, PARTITIONS)
            metrics = AggregatorMetrics()
            watch = DefinitionRegistry(store.engine, store, metrics)
            closer = Closer(store.engine, watch, reader, beacons, metrics, SetAside(store.engine))
            began = time.perf_counter()
            watch.refresh()
            print(f"{pipelines:,} pipelines of {MESSAGES} messages a minute; first sight {_since(began)}")
            for label, window_s, _, verdict in minutes:
                jobs = _jobs(spark)
                began, mine, whole = time.perf_counter(), time.process_time(), cpu_s(os.getpid())
                windows = [(name, window_s) for name in names]
                for at in range(0, pipelines, 4_000):
                    closer.close_windows(windows[at : at + 4_000], now_ms)
                took, mine, whole = time.perf_counter() - began, time.process_time() - mine, cpu_s(os.getpid()) - whole
                (found,) = store.windows(names[-1], window_s, window_s + 60)
                if found.verdict != verdict:
                    raise SystemExit(f"expected {verdict}: {found}")
                print(
                    f"one minute of all, {label}: {took:.1f} s, {took / pipelines * 1000:.2f} ms a window,"
                    f" {_jobs(spark) - jobs} Spark jobs (asked for: {CLOSED_S:.0f} s, few jobs);"
                    f" CPU {mine:.1f} s of the closer, {whole:.1f} s with Spark, broker and PostgreSQL;"
                    f" a bare COPY of the same rows of `window` {(bare := _bare_copy_s(store, window_s)):.1f} s",
                    flush=True,
                )
                what = f"a minute of {pipelines:,} pipelines, {label}"
                figures.append(
                    Figure(what, took, "s", None if "cold" in label else CLOSED_S, bare, "bare COPY of the rows")
                )
        finally:
            spark.stop()
            beacons.close()
            store.close()
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
        began, mine, servers = time.perf_counter(), time.process_time(), cpu_s(server)
        done, failures = 0, SetAside(store.engine)
        while done < HOURS:
            done += rollups.roll_up(store.engine, (hour + PERIOD_S["hour"]) * 1_000, failures)[0]
        took, mine, servers = time.perf_counter() - began, time.process_time() - mine, cpu_s(server) - servers
        window, began = table_of(WindowRow), time.perf_counter()
        with store.engine.connect() as connection:
            within = window.c.window_start.between(hour, hour + PERIOD_S["hour"] - 1)
            rows = connection.execute(select(window.c.document, window.c.facts).where(within)).all()
        bare = time.perf_counter() - began
        print(
            f"{HOURS} hours of 3 nodes rolled up: {took / HOURS * 1e3:.1f} ms an hour,"
            f" CPU {mine / HOURS * 1e3:.1f} + {servers / HOURS * 1e3:.1f} ms of PostgreSQL;"
            f" a bare SELECT of the {len(rows):,} windows {bare / HOURS * 1e3:.1f} ms."
            f" {PIPELINES:,} pipelines: {took / HOURS * PIPELINES / 60:.1f} s of each minute",
            flush=True,
        )
    return [
        Figure("an hour rolled up", took / HOURS * 1e3, "ms", None, bare / HOURS * 1e3, "bare SELECT of its windows")
    ]


def _bare_copy_s(store: Store, window_s: int) -> float:
    """Return how long a bare COPY of a minute's rows into a table with the same indexes takes, commit included."""
    with store.engine.begin() as connection:
        connection.execute(text('CREATE TABLE bare (LIKE "window" INCLUDING ALL)'))
        driver: Any = connection.connection.driver_connection
        asked = f'SELECT * FROM "window" WHERE window_start = {window_s}'
        with driver.cursor() as cursor, cursor.copy(f"COPY ({asked}) TO STDOUT (FORMAT BINARY)") as copy:
            rows = [bytes(row) for row in copy]
    began = time.perf_counter()
    with store.engine.begin() as connection:
        driver = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy("COPY bare FROM STDIN (FORMAT BINARY)") as copy:
            for row in rows:
                copy.write(row)
    took = time.perf_counter() - began
    with store.engine.begin() as connection:
        connection.execute(text("DROP TABLE bare"))
    return took


def _jobs(spark: object) -> int:
    """Return how many jobs Spark has run so far."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))  # type: ignore[attr-defined]


def _since(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"


def _definition(name: str) -> Definition:
    nodes = [{"name": "src", "to": ["snk"]}, {"name": "snk"}]
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": name}, "spec": {"nodes": nodes}}
    return Definition.model_validate(document)


class Traffic:
    """Sends blocks to the broker and gives reports to the follower, as an emitter a node would."""

    def __init__(self, bootstrap: str, follower: ReportConsumer, now_ms: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 1_000_000})
        self._follower = follower
        self._now_ms = now_ms
        self._rng = np.random.default_rng(1)
        self._seq = 0
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    def send(self, names: list[str], start_s: int, lost: int) -> None:
        records, known = [], {name: frozenset(_definition(name).graph.checkpoints) for name in names}
        for name in names:
            ids = self._rng.integers(0, 2**64, MESSAGES, dtype=np.uint64)
            for node in NODES:
                here = ids if node == "src" else ids[lost:]
                tallies = tuple(self._block(name, f"{node}.{side}", here, start_s) for side in ("in", "out"))
                records.append(self._report(name, node, start_s, tallies))
        self._producer.flush(120)
        for at in range(0, len(records), 1_000):
            self._follower.follow(records[at : at + 1_000], known)

    def _block(self, name: str, checkpoint: str, ids: np.typing.NDArray[np.uint64], start_s: int) -> Tally:
        emitter, lags = _emitter(name, checkpoint.split(".")[0]), np.full(ids.size, 20, np.float32)
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

    def _report(self, name: str, node: str, start_s: int, tallies: tuple[Tally, ...]) -> ReportRecord:
        emitter, offset = _emitter(name, node), self._seq
        self._seq += 1
        progress = (Progress(f"{node}.in", "topic/0", self._now_ms), Progress(f"{node}.out", "", self._now_ms))
        report = EmitterReport(
            name, node, emitter, "bench", offset, 0, self._now_ms, False, self._now_ms // 1000, progress, tallies
        )
        return ReportRecord(0, offset, self._now_ms, encode_report(report))


def _emitter(name: str, node: str) -> bytes:
    return uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}/{node}").bytes
