"""Checks of tapped tables: they can be read so that no row is missed, and at a low cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Final

from psycopg import sql

from lagloss.errors import LaglossError
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.net import postgres_tables
from lagloss_server.net.table_urls import TableKind, kind_of
from lagloss_server.ops.checks import Check

MANY_FILES: Final = 100_000
"""Of a folder, beyond which a listing takes 100 requests."""
SINKS: Final = "see docs/sinks.md (what a table needs)"


def check_tables(taps: Iterable[TableTap]) -> Iterator[Check]:
    """Check each tapped table once. Raises nothing: a failure is a finding."""
    longest_last = sorted(taps, key=lambda tap: tap.recheck_ms)
    tables = {(tap.table.database, tap.table.table, tap.table.cursor): tap.table for tap in longest_last}
    for spec in tables.values():
        name = f"table {spec.table} of {spec.database}"
        try:
            yield _CHECKS[kind_of(spec.database)](name, spec)
        except TableUnreadable as error:
            yield Check(name, "fail", str(error.facts["detail"]), SINKS)
        except LaglossError as error:
            yield Check(name, "fail", str(error), SINKS)


def _check_postgresql(name: str, spec: TableSpec) -> Check:
    with postgres_tables.naming(spec), closing(postgres_tables.connect(spec.database)) as connection:
        facts = postgres_tables.read_facts(connection, spec)
        columns = [sql.Identifier(column) for column in (spec.id, spec.event_time, spec.cursor or "")]
        rows = sql.SQL("SELECT {} FROM {} LIMIT 0").format(sql.SQL(", ").join(columns), sql.Identifier(*spec.parts))
        connection.execute(rows)
    if not facts.is_indexed:
        return _without_index(name, spec, spec.cursor or "", "each read is one of the whole table")
    if spec.recheck and not facts.is_id_indexed:
        cost = "for a row that is not at its cursor any more, `recheck` reads the whole table"
        return _without_index(name, spec, spec.id, cost)
    kind = {"xid8": "transaction ids", "sequence": "a sequence", "clock": "times"}[facts.kind]
    return Check(name, "ok", f"read by {spec.cursor}, {kind}{', on a stand-by' if facts.is_standby else ''}")


def _without_index(name: str, spec: TableSpec, column: str, cost: str) -> Check:
    schema, table = spec.parts
    index = f'CREATE INDEX CONCURRENTLY ON "{schema}"."{table}" ("{column}")'
    return Check(name, "warn", f"no index begins with {column}: {cost}", index)


def _check_iceberg(name: str, spec: TableSpec) -> Check:
    from lagloss_server.net import iceberg_tables

    with iceberg_tables.naming(spec), closing(iceberg_tables.open_catalog(spec.database)) as catalog:
        table = iceberg_tables.load_table(catalog, spec)
        iceberg_tables.columns_of(table, spec)
        iceberg_tables.check_files(table)
    return Check(name, "ok", f"read by its snapshots, {len(table.metadata.snapshots)} of them")


def _check_parquet(name: str, spec: TableSpec) -> Check:
    from lagloss_server.net import parquet_folders

    with parquet_folders.naming(spec), closing(parquet_folders.s3_client()) as s3:
        folder = parquet_folders.folder_of(spec)
        files = parquet_folders.list_files(s3, folder, spec)
        if not files:
            address = f"s3://{folder.bucket}/{folder.prefix}"
            return Check(name, "warn", f"{address} has no *{parquet_folders.SUFFIX}", "is the sink writing elsewhere?")
        newest = max(files, key=lambda file: file.modified_ms)
        with parquet_folders.open_file(s3, folder, newest) as parquet:
            parquet_folders.check_columns(parquet, spec, newest.key)
    if len(files) > MANY_FILES:
        what_to_do = "delete or archive old files, or tap a folder below"
        return Check(name, "warn", f"it has {len(files):,} files, which each look lists", what_to_do)
    return Check(name, "ok", f"read by its files, {len(files):,} of them")


_CHECKS: Final[Mapping[TableKind, Callable[[str, TableSpec], Check]]] = {
    "postgresql": _check_postgresql,
    "iceberg": _check_iceberg,
    "parquet": _check_parquet,
}
