"""Bulk writes: rows copied into a table, or into a staging table of the transaction and merged from there by one
statement.

A tenth of the time of one statement a row, which is what a server and a driver spend on parsing, binding and replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

from psycopg.adapt import Dumper
from psycopg.postgres import types
from psycopg.pq import Format
from psycopg.types.string import BytesBinaryDumper
from pydantic_core import to_json
from sqlalchemy import Connection, MetaData, Table, delete, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert

_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
_JSONB_VERSION: Final = b"\1"


class _JsonbDumper(Dumper):
    """Dumper of what `as_json` returns."""

    format = Format.BINARY
    oid = types["jsonb"].oid

    def dump(self, obj: bytes) -> bytes:
        return obj


def copy(connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Copy rows into a table."""
    listed = ", ".join(f'"{name}"' for name in columns)
    driver = connection.connection.driver_connection
    assert driver is not None
    with (
        driver.cursor() as cursor,
        cursor.copy(f'COPY "{table.name}" ({listed}) FROM STDIN (FORMAT BINARY)') as copying,
    ):
        # psycopg's own for these types also takes objects of DB-API, and encodes JSON, in Python
        cursor.adapters.register_dumper(bytes, _JsonbDumper)
        cursor.adapters.register_dumper(bytes, BytesBinaryDumper)
        copying.set_types([table.c[name].type.compile(_DIALECT).lower() for name in columns])
        for row in rows:
            copying.write_row(row)


def stage(connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Insert:
    """Copy rows into the table's staging table, in place of what it held; return the insert of these into the table, to
    be given a conflict clause and executed.

    The staging table belongs to this connection, and is empty outside a transaction.
    """
    staged = _staged(table)
    connection.execute(
        text(f'CREATE TEMP TABLE IF NOT EXISTS "{staged.name}" (LIKE "{table.name}") ON COMMIT DELETE ROWS')
    )
    connection.execute(delete(staged))  # of an earlier call in this transaction
    copy(connection, staged, columns, rows)
    return insert(table).from_select(list(columns), select(*(staged.c[name] for name in columns)))


def as_json(value: Any) -> bytes:
    """Return a value of a column of type jsonb, for `copy` and `stage`."""
    return _JSONB_VERSION + to_json(value)


@cache
def _staged(table: Table) -> Table:
    return table.to_metadata(MetaData(), name=f"staged_{table.name}")
