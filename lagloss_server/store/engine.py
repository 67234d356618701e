"""Connections to PostgreSQL, and the channels of its NOTIFY."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import psycopg
from sqlalchemy import URL, Engine, ExceptionContext, create_engine, event
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, TimeoutError

from lagloss_server.base.database_url import PATIENCE, SECRET_OPTIONS, connection_options

WINDOWS_CHANNEL = "lagloss_windows"
"""NOTIFY channel: the payload `PIPELINE/WINDOW_START` follows each committed closing."""
ALERTS_CHANNEL = "lagloss_alerts"
"""NOTIFY channel: an incident was acknowledged, a silence set, or a test requested."""

AWAY: Final = (OperationalError, InterfaceError, InternalError, TimeoutError)
"""Errors of a database that does not answer now and can later. InternalError: it is a standby, or has
ended a transaction that idled; TimeoutError: no connection of the pool was free in time. Any other, such as of a value
that it cannot hold, recurs with the query."""
_DATA_EXCEPTION: Final = "22"
"""Class of the error codes for values that their type does not allow."""


def engine_for(database_url: str, **session: str) -> Engine:
    """Return an engine on psycopg 3 for a database. Its `url` has no password and its errors have no values of rows, so
    they may be printed.

    Args:
        database_url: hosts that vanish are noticed by PATIENCE, unless it sets other values.
        session: settings of each connection, such as `statement_timeout="60s"`.
    """
    options = connection_options(database_url, **PATIENCE)
    shown = {name: str(value) for name, value in options.items() if name not in (*SECRET_OPTIONS, "user", "dbname")}
    url = URL.create("postgresql+psycopg", options.get("user"), database=options.get("dbname"), query=shown)
    engine = create_engine(
        url,
        hide_parameters=True,
        connect_args={**options, "client_encoding": "utf8"},  # else texts of a database in SQL_ASCII are bytes
        pool_pre_ping=True,
        json_serializer=lambda value: json.dumps(value, separators=(",", ":")),
    )
    event.listen(engine, "handle_error", _leave_out_values)

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:  # not as an option of the connection: pgbouncer refuses it
        for name, value in session.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.commit()

    return engine


def _leave_out_values(context: ExceptionContext) -> None:
    """Cut the text of PostgreSQL's error down to its message: the details quote the row or the key that was refused,
    and a message about bad data the datum."""
    error, raised = context.original_exception, context.sqlalchemy_exception
    if not isinstance(error, psycopg.Error) or raised is None or not (message := error.diag.message_primary):
        return
    if (error.sqlstate or "").startswith(_DATA_EXCEPTION):
        message = re.sub('".*"', '"…"', message, flags=re.DOTALL)
    error.args = (message,)
    raised.args = (f"({type(error).__module__}.{type(error).__qualname__}) {message}",)
