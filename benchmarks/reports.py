"""Following reports: CPU a report of the consumer and PostgreSQL, beside a bare decode of the same reports and a bare
COPY of the same rows."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import numpy as np
from sqlalchemy import Engine, text

from aggregator.reports.batch import Checkpoints, ReportRecord
from aggregator.reports.consumer import ReportConsumer
from aggregator.reports.feed import without_collections
from benchmarks.database import fresh_database
from benchmarks.figures import Figure
from benchmarks.timing import Stopwatch
from benchmarks.traffic import chain
from lagloss.broker.topics import REPORTS
from lagloss.wire.format import REPORT_SCHEMA, WINDOW_S, EmitterReport, OffsetRange, Progress, Tally, encode_report
from lagloss.wire.sketch import Sketch
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres

EMITTERS: Final = 10_000
PIPELINES: Final = 40
NODES: Final = ("src", "norm", "route", "conn", "sink")
"""A pipeline has five services of 50 pods."""
A_SECOND: Final = 10
"""Messages a second at each emitter."""
PARTITIONS: Final = 8
ROUNDS: Final = 6
"""Batches that are measured, after one that makes all rows."""
TARGET_US: Final = 80.0


def pipeline_name(number: int) -> str:
    return f"service-{number:02}"


@dataclass(frozen=True, slots=True)
class Fleet:
    """Emitters that report each second at two checkpoints. `window_s`: the one that they observe; epoch s."""

    window_s: int
    emitters: int = EMITTERS

    def reports(self, second: int, sent_ms: int) -> list[bytes]:
        """Return the report of each emitter after so many seconds of the window, as encoded."""
        lags = np.random.default_rng(1).lognormal(4, 0.5, (second + 1) * A_SECOND)
        sketch, reports = Sketch.of(lags), []
        ranges = tuple(OffsetRange(partition, 0, second) for partition in range(PARTITIONS))
        for number in range(self.emitters):
            node = NODES[number // PIPELINES % len(NODES)]
            tallies = tuple(
                Tally(f"{node}.{side}", self.window_s, lags.size, number + second, sketch, ranges)
                for side in ("in", "out")
            )
            progress = (Progress(f"{node}.in", f"topic/{number}", sent_ms), Progress(f"{node}.out", "", sent_ms))
            report = EmitterReport(
                pipeline_name(number % PIPELINES),
                node,
                self.name(number),
                "pod",
                second,
                self.window_s * 1000,
                sent_ms,
                False,
                self.window_s,
                progress,
                tallies,
            )
            reports.append(encode_report(report))
        return reports

    @staticmethod
    def name(number: int) -> bytes:
        return number.to_bytes(16, "big")


def run(emitters: int = EMITTERS) -> list[Figure]:
    """Print what a report costs, by where it is spent, and return it."""
    with fresh_database() as (_, postgres, store):
        for number in range(PIPELINES):
            store.apply(chain(pipeline_name(number), NODES), 0)
        checkpoints = {name: frozenset(chain(name, NODES).graph.checkpoints) for name in store.names()}
        consumer = ReportConsumer(store.engine, REPORTS, "bench")
        now_ms = int(time.time() * 1000)
        fleet = Fleet(now_ms // 60_000 * WINDOW_S, emitters)
        prices: dict[str, list[Price]] = {"followed": [], "bare decode": [], "bare COPY": []}
        wal: list[float] = []
        for second in range(ROUNDS + 1):
            values = fleet.reports(second * 8, now_ms + second * 1000)
            records = [
                ReportRecord(number % 8, second * emitters + number, now_ms + second * 1000, value)
                for number, value in enumerate(values)
            ]
            written = _wal_bytes(store.engine)
            followed = _price(lambda: _follow(consumer, records, checkpoints), postgres, emitters)  # noqa: B023
            if second:
                wal.append((_wal_bytes(store.engine) - written) / emitters)
                prices["followed"].append(followed)
                prices["bare decode"].append(_price(lambda: _decode(values), postgres, emitters))  # noqa: B023
                prices["bare COPY"].append(_price(lambda: _copy(store.engine), postgres, emitters))
        sums = {}
        for name, price in prices.items():
            ours, server = (statistics.median(rates) for rates in zip(*price, strict=True))
            print(f"{name:12} {ours + server:6.1f} us a report: {ours:6.1f} here, {server:6.1f} in PostgreSQL")
            sums[name] = ours + server
        print(f"WAL: {statistics.median(wal):.0f} bytes a report; a report has {len(values[0])} bytes")
        bare = sums["bare decode"] + sums["bare COPY"]
        return [Figure("a report followed, CPU", sums["followed"], "us", TARGET_US, bare, "bare decode and COPY")]


def _follow(consumer: ReportConsumer, records: list[ReportRecord], checkpoints: Checkpoints) -> None:
    with without_collections():
        consumer.follow(records, checkpoints)


Price = tuple[float, float]


def _price(work: Callable[[], object], postgres: EmbeddedPostgres, reports: int) -> Price:
    """Return the CPU time that a report takes in this process and in PostgreSQL, in us."""
    with Stopwatch(postgres.processes[0].pid) as spent:
        work()
    return spent.own_s / reports * 1e6, spent.servers_s / reports * 1e6


def _wal_bytes(engine: Engine) -> int:
    """Return how much WAL the server has written so far."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_current_wal_lsn() - '0/0'")).scalar_one())


def _decode(values: Sequence[bytes]) -> None:
    for value in values:
        fastavro.schemaless_reader(io.BytesIO(value[10:]), REPORT_SCHEMA.parsed, None)


def _copy(engine: Engine) -> None:
    """Copy the rows that the reports have left into tables of the same columns without an index."""
    tables = ("emitter", "progress", "tally")
    with engine.begin() as connection:
        raw: Any = connection.connection.driver_connection
        with raw.cursor() as cursor:
            data = []
            for table in tables:
                cursor.execute(f"CREATE TEMP TABLE bare_{table} (LIKE {table}) ON COMMIT DROP")
                with cursor.copy(f"COPY (SELECT * FROM {table}) TO STDOUT (FORMAT BINARY)") as copy:
                    data.append(b"".join(bytes(part) for part in copy))
            for table, rows in zip(tables, data, strict=True):
                with cursor.copy(f"COPY bare_{table} FROM STDIN (FORMAT BINARY)") as copy:
                    copy.write(rows)
