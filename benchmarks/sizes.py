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
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from sqlalchemy import insert, select, text

from aggregator.closing.window_store import NAMES_PER_WINDOW
from aggregator.kernel.spark_reader import AGGREGATOR_JOB, BlockReader
from benchmarks.closing import everything, read_plan
from benchmarks.database import fresh_database, fresh_servers
from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.timing import timed_s
from benchmarks.traffic import NODES, chain, emitter_of, send
from lagloss.broker.topics import BEACONS, REPORTS, create_topics
from lagloss.wire.format import WINDOW_S, EmitterReport, OffsetRange, Tally, encode_report, hash_id, signed64
from lagloss.wire.sketch import Sketch
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.spark_session import start_session
from lagloss_server.store.schema import core as tables
from tests.support.closers import driven

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
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        start_session(AGGREGATOR_JOB, "local[2]", "4g", Path(folder) / "spark") as spark,
    ):
        return [_read_size(spark, size, Path(folder) / f"kafka-{size}") for size in sizes]


def _read_size(spark: SparkSession, size: int, folder: Path) -> Figure:
    with EmbeddedKafka(folder, heap_mb=1024) as kafka:
        create_topics(kafka.bootstrap, PARTITIONS)
        factor = size // 1_000_000
        sent = send(kafka.bootstrap, [START_S], A_SECOND * factor, PARTITIONS, steps=60 * factor)
        reader = BlockReader(spark, kafka.bootstrap, BEACONS, PARTITIONS)
        ranges, plan = everything(kafka.bootstrap), read_plan([START_S])
        reader.read(ranges, plan)
        with _peak_memory() as peak:
            rounds = 5 if size < 100_000_000 else 3
            took = statistics.median(timed_s(lambda: reader.read(ranges, plan)) for _ in range(rounds))
    print(
        f"{sent.beacons:>11,} beacons: {took:6.2f} s, {took / sent.beacons * 1e9:5.0f} ns a beacon,"
        f" {sent.beacons / took / 1e6:.1f} M/s, a task's memory {max(peak) / 2**20:.0f} MiB",
        flush=True,
    )
    return Figure(f"a read of {sent.beacons:,} beacons", took / sent.beacons * 1e9, "ns/beacon")


@contextmanager
def _peak_memory() -> Iterator[list[int]]:
    """Yield the largest resident set (bytes) of any of Spark's Python workers, looked at ten times a second."""
    samples, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                try:
                    if "aggregator.kernel.worker_daemon" in process.cmdline():  # the JVM names it, too
                        samples.append(process.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def _proven_sizes(windows: int = 200) -> list[Figure]:
    figures = []
    with fresh_servers(PARTITIONS) as servers:
        store = servers.store
        store.apply(chain(), 0)
        first_s = int(time.time()) // WINDOW_S * WINDOW_S - WINDOW_S * (windows * len(PROVEN_SIZES) + 5)
        producer = Producer({"bootstrap.servers": servers.kafka.bootstrap})
        starts_s = {
            size: range(first_s + WINDOW_S * windows * at, first_s + WINDOW_S * windows * (at + 1), WINDOW_S)
            for at, size in enumerate(PROVEN_SIZES)
        }
        for seq, (size, window_starts_s) in enumerate(starts_s.items()):
            for node in NODES:
                _report(producer, node, seq, size // 10, window_starts_s)
        producer.flush(120)
        # no Spark: what tallies prove is never read
        with driven(None, servers.kafka.bootstrap, store, BEACONS, REPORTS) as aggregator:  # type: ignore[arg-type]
            aggregator.follow_all()
            for size, window_starts_s in starts_s.items():
                mine = [("bench", start_s) for start_s in window_starts_s]
                took = timed_s(lambda: aggregator.closer.close_windows(mine, int(time.time() * 1_000)))  # noqa: B023
                (window,) = store.windows("bench", mine[0][1], mine[0][1] + WINDOW_S)
                if (window.proof, window.verdict, window.messages) != ("tallies", "ok", size // 10):
                    raise SystemExit(f"not proven: {window}")
                bins = _lags(size // 10).keys.size
                print(
                    f"a proven window of {size:>10,} beacons: {took / windows * 1000:.2f} ms, {bins} bins a sketch",
                    flush=True,
                )
                figures.append(Figure(f"a proven window of {size:,} beacons", took / windows * 1000, "ms"))
    return figures


def _report(producer: Producer, node: str, seq: int, messages: int, starts_s: range) -> None:
    """Send a report of a node, final in these windows, with this many messages each."""
    lags, now_ms = _lags(messages), int(time.time() * 1_000)
    tallies = tuple(
        Tally(f"{node}.{side}", start_s, messages, 12_345, lags, (OffsetRange(0, 1, 9),))
        for start_s in starts_s
        for side in ("in", "out")
    )
    emitter = emitter_of("bench", node)
    report = EmitterReport("bench", node, emitter, "bench", seq, 0, now_ms, False, now_ms // 1000, (), tallies)
    producer.produce(REPORTS, encode_report(report), emitter)


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
            windows = connection.execute(select(window.c.pipeline, window.c.window_start)).all()
            for pipeline, start_s in windows if named else ():
                connection.execute(insert(missing), _named(pipeline, start_s, named))
            found = {
                table.name: connection.execute(text(_BYTES), {"table": table.name}).one() for table in (window, missing)
            }
    means = {name: [size / len(windows) for size in sizes] for name, sizes in found.items()}
    total = sum(map(sum, means.values()))
    print(f"a {kind} window of {nodes} nodes and {named:,} named messages: {total:,.0f} bytes")
    for name, (heap, toast, index) in means.items():
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
            "last_seen_ms": start_s * 1_000.0, "seen_from_ms": start_s * 1_000.0, "seen_by_ms": start_s * 1_000.0,
            "emitter": uuid.UUID(int=5).bytes,
        }
        for name in ids
    ]  # fmt: skip
