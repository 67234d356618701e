"""Connections to PostgreSQL, and the channels of its NOTIFY."""

from __future__ import annotations

import json

from sqlalchemy import Engine, create_engine, make_url

WINDOWS_CHANNEL = "lagloss_windows"
"""NOTIFY channel: the payload `PIPELINE/WINDOW_START` follows each committed closing."""
ALERTS_CHANNEL = "lagloss_alerts"
"""NOTIFY channel: an incident was acknowledged, a silence set, or a test requested."""

_PATIENCE = {"connect_timeout": "10", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
"""Detects a vanished host within half a minute, unless the URL sets other values."""


def engine_for(database_url: str) -> Engine:
    """Return an engine on psycopg 3 for a plain `postgresql://` URL."""
    url = make_url(database_url.replace("postgresql://", "postgresql+psycopg://", 1))
    return create_engine(
        url.update_query_dict({**_PATIENCE, **url.query}),
        pool_pre_ping=True,
        json_serializer=lambda value: json.dumps(value, separators=(",", ":")),
    )
