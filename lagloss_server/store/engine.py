"""Connections to PostgreSQL, and the channels of its NOTIFY."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

from lagloss_server.database_url import PATIENCE, SECRET_OPTIONS, connection_options

WINDOWS_CHANNEL = "lagloss_windows"
"""NOTIFY channel: the payload `PIPELINE/WINDOW_START` follows each committed closing."""
ALERTS_CHANNEL = "lagloss_alerts"
"""NOTIFY channel: an incident was acknowledged, a silence set, or a test requested."""


def engine_for(database_url: str, **session: str) -> Engine:
    """Return an engine on psycopg 3 for a database. Its `url` has no password, so it may be printed.

    Args:
        database_url: hosts that vanish are noticed by PATIENCE, unless it sets other values.
        session: settings of each connection, such as `statement_timeout="60s"`.
    """
    options = connection_options(database_url, **PATIENCE)
    shown = {name: str(value) for name, value in options.items() if name not in (*SECRET_OPTIONS, "user", "dbname")}
    url = URL.create("postgresql+psycopg", options.get("user"), database=options.get("dbname"), query=shown)
    engine = create_engine(
        url,
        connect_args=options,
        pool_pre_ping=True,
        json_serializer=lambda value: json.dumps(value, separators=(",", ":")),
    )

    @event.listens_for(engine, "connect")
    def set_up(connection: Any, _record: object) -> None:  # not as an option of the connection: pgbouncer refuses it
        for name, value in session.items():
            connection.execute(f"SET {name} = '{value}'")
        connection.commit()

    return engine
