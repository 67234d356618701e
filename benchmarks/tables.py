"""Reads of table taps beside bare ones of the same columns: a SELECT in PostgreSQL, Arrow's scans of the same files."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import boto3
import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import load_catalog

from benchmarks.database import fresh_database
from benchmarks.figures import Figure
from benchmarks.timing import Stopwatch
from lagloss.wire.format import SAMPLE_ALL
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.net.table_urls import variable_of
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from taps.kernel import BlockMaker
from taps.tables.iceberg import IcebergTable
from taps.tables.parquet import ParquetFolder
from taps.tables.postgres import PostgresTable
from taps.tables.reading import TablePlan, TableRead, TableReader, pack_rows, span_of

ROWS: Final = 1_000_000
FILES: Final = 10
ROUNDS: Final = 7
GOAL: Final = 1.1
"""Of a read, as a multiple of the bare one."""
BENCH: Final = "bench"


def run() -> list[Figure]:
    """Return what a million rows cost to read, each kind beside its bare read, and to make beacons of."""
    return [*_of_iceberg(), *_of_parquet(), *_of_postgresql()]


def _orders(seed: int, rows: int) -> pa.Table:
    now_us = time.time_ns() // 1_000
    ids = [f"{seed:08x}-5a1c-4b6e-9d2f-{row:012x}" for row in range(rows)]
    return pa.table(
        {
            "id": ids,
            "at": pa.array([now_us - row for row in range(rows)], pa.timestamp("us", "UTC")),
            "customer": [f"customer-{row % 9_973:06d}" for row in range(rows)],
            "amount": pa.array([row % 1_000 / 7 for row in range(rows)]),
        }
    )


def _read_all(reader: TableReader, position: Mapping[str, Any]) -> list[TableRead]:
    """Return the reads from a position on, until nothing is left."""
    reads: list[TableRead] = []
    while not reads or not reads[-1].is_complete:
        reads.append(reader.read(position, 0))
        position = reads[-1].position
    rows = sum(len(read.rows) for read in reads)
    if rows != ROWS:
        raise SystemExit(f"{rows} of {ROWS} rows were read")
    return reads


def _in_turns(
    kind: str, bare_name: str, bare: Callable[[], object], read: Callable[[], list[TableRead]], spec: TableSpec
) -> Iterator[Figure]:
    """Yield the CPU and the wall time of a read beside a bare one, measured in turns, and the CPU of what follows. Of
    each the least of its rounds: what else the machine does only adds to it."""
    watches: dict[str, list[Stopwatch]] = {"bare": [], "read": []}
    reads: list[TableRead] = []
    for _ in range(ROUNDS + 1):
        for name, work in (("bare", bare), ("read", read)):
            with Stopwatch() as watch:
                reads = work() or reads  # type: ignore[assignment]
            watches[name].append(watch)
    cpu_s, wall_s = (
        {name: min(getattr(watch, kind_of) for watch in own[1:]) for name, own in watches.items()}
        for kind_of in ("own_s", "wall_s")
    )
    goal = GOAL if kind == "Iceberg" else None
    for what, seconds, bound in (("CPU", cpu_s, goal), ("time", wall_s, None)):
        yield Figure(
            f"{kind}: {what} of a read of a million rows",
            seconds["read"],
            "s",
            None if bound is None else bound * seconds["bare"],
            seconds["bare"],
            bare_name,
        )
    with Stopwatch() as watch:
        _make_beacons(reads, spec)
    yield Figure(f"{kind}: CPU of their plans and beacons", watch.own_s, "s")


def _make_beacons(reads: Sequence[TableRead], spec: TableSpec) -> None:
    tap = TableTap(BENCH, "sink", spec, ("out",), first=False)
    maker = BlockMaker(tap, bytes(16), 0, Extractor(tap.extraction))
    beacons = 0
    for number, read in enumerate(reads):
        rows = pack_rows(read.rows)
        spans = (span_of(read.rows, read.at_ms, read.by_ms),) if rows else ()
        plan = TablePlan(number, read.by_ms, 8, SAMPLE_ALL, spans, rows=rows)
        blocks = maker.make(plan, plan.read())
        beacons += sum(block.increment.beacons for block in blocks.blocks)
    if beacons != ROWS:
        raise SystemExit(f"{beacons} beacons were made of {ROWS} rows")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    with patch.dict(os.environ, variables):
        yield


def _of_iceberg() -> Iterator[Figure]:
    """Yield figures of a catalog and files on disk: the cost of a store comes on top of both."""
    with tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder:
        uri, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
        with (
            closing(load_catalog(BENCH, uri=uri, warehouse=warehouse)) as catalog,
            _environment({variable_of(BENCH): f"iceberg+{uri}?warehouse={warehouse}"}),
        ):
            catalog.create_namespace("raw")
            table = catalog.create_table("raw.orders", _orders(0, 1).schema)
            spec = TableSpec(database=BENCH, table="raw.orders", id="id", event_time="at")
            reader = IcebergTable(spec)
            start = reader.read({}, 0).position
            for index in range(FILES):
                table.append(_orders(index, ROWS // FILES))

            def bare() -> None:
                loaded = catalog.load_table("raw.orders")
                scan = loaded.incremental_append_scan(selected_fields=("id", "at"))
                for _batch in scan.to_arrow_batch_reader():
                    pass

            yield from _in_turns("Iceberg", "pyiceberg's Arrow scan", bare, lambda: _read_all(reader, start), spec)
            reader.close()


def _of_parquet() -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedLocalStack(Path(folder)) as emulator,
        _environment({**emulator.variables, variable_of(BENCH): "s3://landing"}),
    ):
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="landing")
        spec = TableSpec(database=BENCH, table="raw.orders", id="id", event_time="at")
        reader = ParquetFolder(spec)
        start = reader.read({}, 0).position
        keys = [f"raw/orders/{index}.parquet" for index in range(FILES)]
        for index, key in enumerate(keys):
            pq.write_table(_orders(index, ROWS // FILES), f"{folder}/file")
            s3.upload_file(f"{folder}/file", "landing", key)
        s3.close()
        store = S3FileSystem(endpoint_override=emulator.url, region="us-east-1")

        def bare() -> None:
            dataset = ds.dataset([f"landing/{key}" for key in keys], format="parquet", filesystem=store)
            for _batch in dataset.scanner(columns=["id", "at"]).to_batches():
                pass

        yield from _in_turns("Parquet on S3", "Arrow's scan", bare, lambda: _read_all(reader, start), spec)
        reader.close()


def _of_postgresql() -> Iterator[Figure]:
    with fresh_database() as (_, postgres, _store):
        url = postgres.create_database("shop")
        spec = TableSpec(database=BENCH, table="public.orders", id="id", event_time="at", cursor="n")
        with closing(psycopg.connect(url, autocommit=True)) as owner, _environment({variable_of(BENCH): url}):
            owner.execute("CREATE TABLE orders (id text, at timestamptz, customer text, n bigserial PRIMARY KEY)")
            reader = PostgresTable(spec)
            start = reader.read({}, 0).position
            owner.execute(
                "INSERT INTO orders SELECT gen_random_uuid(), now(), 'customer-' || n % 9973 FROM"
                f" generate_series(1, {ROWS}) n"
            )
            owner.execute("VACUUM ANALYZE orders")

            def bare() -> None:
                with owner.cursor(name="bare") as rows, owner.transaction():
                    rows.itersize = 20_000
                    rows.execute("SELECT id, at, n FROM orders ORDER BY n")
                    for _row in rows:
                        pass

            yield from _in_turns("PostgreSQL", "SELECT", bare, lambda: _read_all(reader, start), spec)
            reader.close()
