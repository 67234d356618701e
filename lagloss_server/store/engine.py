"""Connections to PostgreSQL, and the channels of its NOTIFY."""

from __future__ import annotations

import json
from typing import Final

from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, TimeoutError

from lagloss_server.database_url import SECRET_OPTIONS, connection_options

WINDOWS_CHANNEL = "lagloss_windows"
"""NOTIFY channel: the payload `PIPELINE/WINDOW_START` follows each committed closing."""
ALERTS_CHANNEL = "lagloss_alerts"
"""NOTIFY channel: an incident was acknowledged, a silence set, or a test requested."""

AWAY: Final = (OperationalError, InterfaceError, InternalError, TimeoutError)
"""Errors of a database that does not answer now and can later. InternalError: it is a standby; TimeoutError: no
connection of the pool was free in time. Any other, such as of a value that it cannot hold, recurs with the query."""

_PATIENCE: Final = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
"""Detects a vanished host within half a minute, unless the URL sets other values."""


def engine_for(database_url: str) -> Engine:
    """Return an engine on psycopg 3 for a database. Its `url` has no password, so it may be printed."""
    options = connection_options(database_url, **_PATIENCE)
    shown = {name: str(value) for name, value in options.items() if name not in (*SECRET_OPTIONS, "user", "dbname")}
    url = URL.create("postgresql+psycopg", options.get("user"), database=options.get("dbname"), query=shown)
    return create_engine(
        url,
        connect_args=options,
        pool_pre_ping=True,
        json_serializer=lambda value: json.dumps(value, separators=(",", ":")),
    )
