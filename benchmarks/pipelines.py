"""Ten thousand small pipelines in one minute: how long closing all their windows takes, proven and read."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
from confluent_kafka import Producer

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.kernel.session import start_session
from aggregator.kernel.spark_reader import BlockReader
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.batch import ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.set_aside import SetAside
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
from lagloss_server.model.graph import Graph
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.queries.beacon_log import BeaconLog
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store

PIPELINES = 10_000
MESSAGES = 60
PARTITIONS = 8
NODES = ("src", "snk")


def run(pipelines: int = PIPELINES) -> None:
    """Print how long it takes to close a minute of all pipelines: one in which nothing is lost, and one in which each
    lost a message."""
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
        traffic.send(names, start, lost=0)
        traffic.send(names, start + 60, lost=1)
        spark = start_session("local[2]", "2g", Path(folder) / "spark")
        try:
            reader = BlockReader(spark, kafka.bootstrap, BEACONS, PARTITIONS)
            metrics = AggregatorMetrics()
            watch = DefinitionRegistry(store.engine, store, metrics)
            closer = Closer(store.engine, watch, reader, beacons, metrics, SetAside(store.engine))
            began = time.perf_counter()
            watch.refresh()
            print(f"{pipelines:,} pipelines of {MESSAGES} messages a minute; first sight {_since(began)}")
            for label, window_s, verdict in (("proven", start, "ok"), ("read", start + 60, "loss")):
                jobs = _jobs(spark)
                began = time.perf_counter()
                windows = [(name, window_s) for name in names]
                for at in range(0, pipelines, 4_000):
                    closer.close_windows(windows[at : at + 4_000], now_ms)
                took = time.perf_counter() - began
                (found,) = store.windows(names[-1], window_s, window_s + 60)
                if found["verdict"] != verdict:
                    raise SystemExit(f"expected {verdict}: {found}")
                print(
                    f"one minute of all, {label}: {took:.1f} s, {took / pipelines * 1000:.2f} ms a window,"
                    f" {_jobs(spark) - jobs} Spark jobs (asked for: 60 s, few jobs)",
                    flush=True,
                )
        finally:
            spark.stop()
            beacons.close()
            store.close()


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
        records, known = [], {name: frozenset(Graph(_definition(name)).checkpoints) for name in names}
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
