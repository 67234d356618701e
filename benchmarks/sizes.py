"""Size: what a beacon costs in windows of 1 M to 100 M beacons, and how much memory a task takes; what a window costs
that tallies prove, at any size; and the bytes of windows in PostgreSQL."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import psutil
from sqlalchemy import insert, select, text

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.closing.window_store import NAMES_PER_WINDOW
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.set_aside import SetAside
from benchmarks.closing import everything, read_plan
from benchmarks.database import fresh_database
from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.traffic import NODES, chain, send
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.wire.format import EmitterReport, OffsetRange, Tally, encode_report, hash_id, signed64
from lagloss.wire.sketch import Sketch
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.spark_session import start_session
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.migrate import migrate
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

START_S = (int(time.time()) - 3_600) // 60 * 60
"""Recent: blocks of windows older than 7 days are set aside."""
SIZES = (100_000_000, 10_000_000, 1_000_000)
"""The largest first: the JVM is warm for the small ones then."""
PROVEN_SIZES = (1_000, 100_000, 10_000_000)
A_SECOND = 1_666
"""Messages a second of a window with a million beacons at ten checkpoints."""
PARTITIONS = 8
KEPT_PIPELINES, KEPT_DAYS = 10_000, 35


def run(sizes: Sequence[int] = SIZES) -> list[Figure]:
    """Print the cost of a beacon and the memory of a task by size, and the cost of a proven window by size, and return
    them."""
    return [*_read_sizes(sizes), *_proven_sizes()]


def _read_sizes(sizes: Sequence[int]) -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        spark = start_session(AGGREGATOR_JOB, "local[2]", "4g", Path(folder) / "spark")
        try:
            for size in sizes:
                with EmbeddedKafka(Path(folder) / f"kafka-{size}", heap_mb=1024) as kafka:
                    create_topics(kafka.bootstrap, PARTITIONS)
                    factor = size // 1_000_000
                    sent = send(kafka.bootstrap, [START_S], A_SECOND * factor, PARTITIONS, steps=60 * factor)
                    reader = BlockReader(spark, kafka.bootstrap, BEACONS, PARTITIONS)
                    ranges, plan = everything(kafka.bootstrap), read_plan([START_S])
                    reader.read(ranges, plan)
                    seconds = []
                    with _peak_memory() as peak:
                        for _ in range(5 if size < 100_000_000 else 3):
                            began = time.perf_counter()
                            reader.read(ranges, plan)
                            seconds.append(time.perf_counter() - began)
                    took = statistics.median(seconds)
                    print(
                        f"{sent.beacons:>11,} beacons: {took:6.2f} s, {took / sent.beacons * 1e9:5.0f} ns a beacon,"
                        f" {sent.beacons / took / 1e6:.1f} M/s, a task's memory {max(peak) / 2**20:.0f} MiB",
                        flush=True,
                    )
                    figures.append(
                        Figure(f"a read of {sent.beacons:,} beacons", took / sent.beacons * 1e9, "ns/beacon")
                    )
        finally:
            spark.stop()
    return figures


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield the largest resident set (bytes) of any of Spark's Python workers, looked at ten times a second."""
    found, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "aggregator.kernel.worker_daemon" in process.cmdline():  # the JVM names it, too
                        found.append(process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _proven_sizes(windows: int = 200) -> list[Figure]:
    figures = []
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedKafka(Path(folder) / "kafka") as kafka,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
    ):
        create_topics(kafka.bootstrap)
        migrate(postgres.url)
        store = Store(postgres.url)
        beacons = BeaconLog(kafka.bootstrap, BEACONS)
        now_ms = int(time.time() * 1000)
        first_s = now_ms // 60_000 * 60 - 60 * (windows * len(PROVEN_SIZES) + 5)
        store.apply(chain(), 0)
        follower = ReportConsumer(store.engine, REPORTS, "bench")
        for at, size in enumerate(PROVEN_SIZES):
            _follow(follower, size // 10, first_s + 60 * windows * at, windows, now_ms)
        # no Spark: what tallies prove is never read
        reader = BlockReader(None, kafka.bootstrap, BEACONS, PARTITIONS)  # type: ignore[arg-type]
        metrics = AggregatorMetrics()
        watch = DefinitionRegistry(store.engine, store, metrics)
        closer = Closer(store.engine, watch, reader, beacons, metrics, SetAside(store.engine))
        watch.refresh()
        for at, size in enumerate(PROVEN_SIZES):
            mine = [("bench", first_s + 60 * (windows * at + minute)) for minute in range(windows)]
            began = time.perf_counter()
            closer.close_windows(mine, now_ms)
            took = time.perf_counter() - began
            (found,) = store.windows("bench", mine[0][1], mine[0][1] + 60)
            if (found.proof, found.verdict, found.messages) != ("tallies", "ok", size // 10):
                raise SystemExit(f"not proven: {found}")
            bins = _lags(size // 10).keys.size
            print(
                f"a proven window of {size:>10,} beacons: {took / windows * 1000:.2f} ms, {bins} bins a sketch",
                flush=True,
            )
            figures.append(Figure(f"a proven window of {size:,} beacons", took / windows * 1000, "ms"))
        beacons.close()
        store.close()
    return figures


def _follow(follower: ReportConsumer, messages: int, first_s: int, windows: int, now_ms: int) -> None:
    """Follow reports of five nodes that were all final in these windows, with this many messages each."""
    lags, positions = _lags(messages), follower.positions()
    for number, node in enumerate(NODES):
        offset = positions.get(number, 0)
        tallies = tuple(
            Tally(f"{node}.{side}", first_s + 60 * minute, messages, 12_345, lags, (OffsetRange(0, 1, 9),))
            for minute in range(windows)
            for side in ("in", "out")
        )
        report = EmitterReport(
            "bench",
            node,
            uuid.UUID(int=number).bytes,
            "bench",
            offset + 1,
            0,
            now_ms,
            False,
            now_ms // 1000,
            (),
            tallies,
        )
        follower.follow([ReportRecord(number, offset, now_ms, encode_report(report))], {})


def _lags(messages: int) -> Sketch:
    """Return the sketch of this many lags; of over 100,000 the shape does not change any more."""
    sketch = Sketch.of(np.random.default_rng(1).exponential(100, min(messages, 100_000)))
    return Sketch(sketch.keys, sketch.counts * (messages // sketch.count))


def run_stored() -> list[Figure]:
    """Print the bytes that PostgreSQL takes for a quiet window and for a busy one, indexes included, and what quiet
    ones of many pipelines come to."""
    quiet = _stored_bytes("quiet", nodes=3, lossy=0, named=0)
    busy = _stored_bytes("busy", nodes=10, lossy=1, named=NAMES_PER_WINDOW)
    print(
        f"{KEPT_PIPELINES:,} pipelines for {KEPT_DAYS} days: {quiet * KEPT_PIPELINES * KEPT_DAYS * 1_440 / 1e12:.2f} TB"
    )
    return [
        Figure("a quiet window in PostgreSQL", quiet, "bytes", 2_000.0),
        Figure("a busy window in PostgreSQL, its names included", busy, "bytes"),
    ]


def _stored_bytes(kind: str, nodes: int, lossy: int, named: int) -> float:
    """Print and return the bytes of a window of 1,000 to 4,000 messages."""
    names = [f"pipeline-{number:05}" for number in range(1 if named else 4)]
    days = 1 / 24 if named else 1
    window, missing = tables.table_of(tables.WindowRow), tables.table_of(tables.MissingMessageRow)
    with fresh_database() as (_, _, store):
        fill(store, names, nodes, days, 0, lossy=lossy)
        with store.engine.begin() as connection:
            windows = connection.execute(select(window.c.pipeline, window.c.window_start)).tuples().all()
            for pipeline, start_s in windows if named else ():
                connection.execute(insert(missing), _named(pipeline, start_s, named))
            found = {of.name: connection.execute(text(_BYTES), {"table": of.name}).one() for of in (window, missing)}
    each = {name: [size / len(windows) for size in sizes] for name, sizes in found.items()}
    total = sum(map(sum, each.values()))
    print(f"a {kind} window of {nodes} nodes and {named:,} named messages: {total:,.0f} bytes")
    for name, (heap, toast, index) in each.items():
        print(f"  {name}: {heap:,.0f} in rows, {toast:,.0f} beside them, {index:,.0f} in indexes", flush=True)
    return total


_BYTES: Final = """
SELECT CAST(sum(pg_relation_size(oid)) AS bigint),
    CAST(sum(coalesce(pg_total_relation_size(nullif(reltoastrelid, 0)), 0)) AS bigint),
    CAST(sum(pg_indexes_size(oid)) AS bigint)
FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = CAST(:table AS regclass)
"""


def _named(pipeline: str, start_s: int, count: int) -> list[dict[str, object]]:
    """Return rows of lost messages whose names are UUIDs."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    return [
        {
            "pipeline": pipeline, "window_start": start_s, "id_hash": signed64(hash_id(name)), "message_id": name,
            "pattern": "fff", "kind": "lost", "places": ["link node-5->node-6"], "last_checkpoint": "node-5.out",
            "last_seen_ms": start_s * 1_000.0, "emitter": uuid.UUID(int=5).bytes,
        }
        for name in ids
    ]  # fmt: skip
