"""The table in which the last node stores its messages, if a database for it is named: lagloss then taps it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Self

import psycopg
from psycopg import sql

from lagloss_server.base.database_url import PATIENCE, connection_options
from lagloss_server.model.canary import TABLE, TABLE_DATABASE
from lagloss_server.net.table_urls import is_named, url_of, variable_of

KEPT: Final = "1 hour"
"""For how long rows stay."""
TIMEOUT: Final = "2s"
"""Of a statement: a minute that waits for longer is not sent as planned."""

_TABLE: Final = sql.Identifier(*TABLE.split("."))
_CREATE: Final = sql.SQL(
    "CREATE TABLE {table} (id text PRIMARY KEY, event_time timestamptz NOT NULL,"
    " seen xid8 NOT NULL DEFAULT pg_current_xact_id()); CREATE INDEX ON {table} (seen)"
).format(table=_TABLE)
_INSERT: Final = sql.SQL(
    "INSERT INTO {} (id, event_time) VALUES (%s, timestamptz 'epoch' + %s * interval '1 millisecond')"
).format(_TABLE)
_PRUNE: Final = sql.SQL("DELETE FROM {} WHERE event_time < now() - %s::interval").format(_TABLE)


class CanaryTable:
    """Stores rows over one connection, which is made anew after an error."""

    def __init__(self, url: str) -> None:
        variable = variable_of(TABLE_DATABASE)
        self._options = {"application_name": "lagloss canary", **connection_options(url, variable, **PATIENCE)}
        self._connection: psycopg.Connection[Any] | None = None

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return the table, None if no database is named. Raises BadSetting."""
        return cls(url_of(TABLE_DATABASE)) if is_named(TABLE_DATABASE) else None

    def store(self, rows: Sequence[tuple[str, int]]) -> None:
        """Store messages, by id and event time (epoch ms), in one transaction, and delete old ones.

        Raises:
            psycopg.Error: the database does not take them.
        """
        try:
            if self._connection is None:
                self._connection = self._connect()
            with self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.executemany(_INSERT, rows)
                cursor.execute(_PRUNE, (KEPT,))
        except psycopg.Error:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(**self._options, autocommit=True)
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (TIMEOUT,))
        if connection.execute("SELECT to_regclass(%s)", (TABLE,)).fetchone() == (None,):
            connection.execute(_CREATE)
        return connection
