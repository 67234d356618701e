"""Bulk writes: rows copied into a table, or into a staging table of the transaction and merged from there by one
statement.

A tenth of the time of one statement a row, which is what a server and a driver spend on parsing, binding and replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from json import JSONEncoder
from typing import Any, Final

from psycopg.types.json import Jsonb
from sqlalchemy import Connection, MetaData, Table, delete, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import Insert, insert

_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
_ENCODER: Final = JSONEncoder(separators=(",", ":"))
"""Made once: to make one takes longer than to encode a short list."""


def copy(connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Copy rows into a table."""
    listed = ", ".join(f'"{name}"' for name in columns)
    driver = connection.connection.driver_connection
    assert driver is not None
    with (
        driver.cursor() as cursor,
        cursor.copy(f'COPY "{table.name}" ({listed}) FROM STDIN (FORMAT BINARY)') as copying,
    ):
        copying.set_types([table.c[name].type.compile(_DIALECT).lower() for name in columns])
        for row in rows:
            copying.write_row(row)


def stage(connection: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Insert:
    """Copy rows into the table's staging table; return the insert of these into the table, to be given a conflict
    clause and passed to `merge`.

    The staging table belongs to this connection, and is empty outside a transaction.
    """
    staged = _staged(table)
    connection.execute(
        text(f'CREATE TEMP TABLE IF NOT EXISTS "{staged.name}" (LIKE "{table.name}") ON COMMIT DELETE ROWS')
    )
    copy(connection, staged, columns, rows)
    return insert(table).from_select(list(columns), select(*(staged.c[name] for name in columns)))


def merge(connection: Connection, statement: Insert) -> None:
    """Run the insert that `stage` returned, and empty its staging table."""
    connection.execute(statement)
    assert isinstance(statement.table, Table)
    connection.execute(delete(_staged(statement.table)))


def as_json(value: Any) -> Jsonb:
    """Return a value of a column of type jsonb, for `stage`."""
    return Jsonb(value, _ENCODER.encode)


@cache
def _staged(table: Table) -> Table:
    return table.to_metadata(MetaData(), name=f"staged_{table.name}")
