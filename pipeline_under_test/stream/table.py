"""The table in which the warehouse stores clicks: created, written, and read as the ledger's other half.

What is in it is what is delivered there, whatever the warehouse's processes noted before they were killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from lagloss_server.base.format import datetime_of
from pipeline_under_test.harness.ledger import LedgerEntry, place_of_table
from pipeline_under_test.stream.settings import ReferenceSettings
from pipeline_under_test.stream.topology import TABLE

LATE_ROWS: Final = 10_000
"""Numbers of the sequence that are read again: a transaction can commit after a later one."""
Click = tuple[str, int, str]
"""Id, event time (epoch ms), and URL."""

_CREATE: Final = """
    CREATE SCHEMA IF NOT EXISTS {schema};
    CREATE TABLE IF NOT EXISTS {table} (
        n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id text NOT NULL UNIQUE,
        at timestamptz NOT NULL,
        url text NOT NULL
    )"""
_INSERT: Final = "INSERT INTO {table} (id, at, url) VALUES (%s, %s, %s) ON CONFLICT (id) DO NOTHING"
_READ: Final = "SELECT n, id, (extract(epoch FROM at) * 1000)::bigint FROM {table} WHERE n > %s ORDER BY n"


def create_table(database_url: str, pipeline: str) -> None:
    """Create the table of a pipeline, in a schema of its name, if it is missing. Raises psycopg.Error."""
    with psycopg.connect(database_url) as connection:
        connection.execute(_statement(_CREATE, pipeline))


def store_clicks(connection: psycopg.Connection[Any], pipeline: str, clicks: Sequence[Click]) -> None:
    """Store clicks in one transaction, each id once. Raises psycopg.Error: none of them is stored."""
    rows = [(click_id, datetime_of(event_time_ms / 1_000), url) for click_id, event_time_ms, url in clicks]
    with connection.transaction(), connection.cursor() as cursor:
        cursor.executemany(_statement(_INSERT, pipeline), rows)


class StoredRows:
    """Reader of the table as it grows: `new_entries` continues where the last call stopped."""

    def __init__(self, database_url: str, pipeline: str) -> None:
        self._url, self._pipeline = database_url, pipeline
        self._connection: psycopg.Connection[Any] | None = None
        self._last = 0
        self._seen: set[str] = set()

    def new_entries(self) -> list[LedgerEntry]:
        """Return a delivery for each row since the last call. Raises psycopg.Error: the next call returns them all."""
        if not self._url:
            return []
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._url, autocommit=True)
        rows = self._connection.execute(_statement(_READ, self._pipeline), (self._last - LATE_ROWS,)).fetchall()
        fresh = [(click_id, event_time_ms) for _, click_id, event_time_ms in rows if click_id not in self._seen]
        self._seen.update(click_id for click_id, _ in fresh)
        self._last = max((n for n, *_ in rows), default=self._last)
        return [LedgerEntry("delivered", *row, place_of_table(TABLE)) for row in fresh]

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def stored_rows(settings: ReferenceSettings) -> StoredRows:
    """Return a reader of a pipeline's table, which has no rows if the pipeline has no database."""
    return StoredRows(settings.database_url, settings.pipeline)


def _statement(text: str, pipeline: str) -> sql.Composed:
    return sql.SQL(text).format(schema=sql.Identifier(pipeline), table=sql.Identifier(pipeline, TABLE))
