"""Checks of tapped tables: they can be read so that no row is missed, and by an index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing

from psycopg import sql

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.net.postgres_tables import connect, naming, read_facts
from lagloss_server.ops.checks import Check


def check_tables(taps: Iterable[TableTap]) -> Iterator[Check]:
    """Check each tapped table once. Raises nothing: a failure is a finding."""
    tables = {(tap.table.database, tap.table.table, tap.table.cursor): tap.table for tap in taps}
    for spec in tables.values():
        yield _check_table(spec)


def _check_table(spec: TableSpec) -> Check:
    name = f"table {spec.table} of {spec.database}"
    try:
        with naming(spec), closing(connect(spec.database)) as connection:
            facts = read_facts(connection, spec)
            columns = [sql.Identifier(column) for column in (spec.id, spec.event_time, spec.cursor or "")]
            rows = sql.SQL("SELECT {} FROM {} LIMIT 0").format(sql.SQL(", ").join(columns), sql.Identifier(*spec.parts))
            connection.execute(rows)
    except TableUnreadable as error:
        return Check(name, "fail", str(error.facts["detail"]), "see docs/sinks.md (what a table needs)")
    if not facts.is_indexed:
        schema, table = spec.parts
        index = f'CREATE INDEX CONCURRENTLY ON "{schema}"."{table}" ("{spec.cursor}")'
        return Check(name, "warn", f"no index begins with {spec.cursor}: each read is one of the whole table", index)
    kind = {"xid8": "transaction ids", "sequence": "a sequence", "clock": "times"}[facts.kind]
    return Check(name, "ok", f"read by {spec.cursor}, {kind}{', on a stand-by' if facts.is_standby else ''}")
