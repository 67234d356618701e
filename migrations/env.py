"""Alembic's environment: runs the migrations on the URL that `lagloss_server.store.migrate` or `-x url=` names."""

from alembic import context
from sqlalchemy import text

from lagloss_server.store.engine import engine_for
from lagloss_server.store.schema import (  # noqa: F401  # their tables are registered
    alerting,
    audit,
    canary,
    dashboard,
    ownership,
    repair,
    runs,
    taps,
)
from lagloss_server.store.schema.core import PARTITIONED, Base

LOCK = 0x1A6_1056
"""The advisory lock of PostgreSQL that the one process holds that migrates."""


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    """Leave the day partitions out of comparisons: they are made as rows come in."""
    days = tuple(f"{table.name}_2" for table in PARTITIONED)
    return not (kind == "table" and name is not None and name.startswith(days))


url = context.config.attributes.get("url") or context.get_x_argument(as_dictionary=True)["url"]
engine = engine_for(url)
try:
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK})
        connection.commit()
        if "before" in context.config.attributes:
            context.config.attributes["before"](connection)
            connection.commit()
        context.configure(
            connection=connection, target_metadata=Base.metadata, include_name=is_ours, compare_server_default=True
        )
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()
finally:
    engine.dispose()
