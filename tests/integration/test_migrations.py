"""The migrations and the models tell the same tables."""

from __future__ import annotations

from pathlib import Path

import alembic.command
import alembic.config
from sqlalchemy import text

from lagloss.store import Store, ensure_days


def config(database_url: str) -> alembic.config.Config:
    found = alembic.config.Config()
    found.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations"))
    found.attributes["url"] = database_url.replace("postgresql://", "postgresql+psycopg://", 1)
    return found


def test_migrations_lead_to_the_models_tables(database_url: str, store: Store) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [1_780_000_020])  # day partitions are no difference
    alembic.command.check(config(database_url))


def test_the_way_down_and_up_again_works(database_url: str, store: Store) -> None:
    alembic.command.downgrade(config(database_url), "base")
    with store.engine.connect() as connection:
        left = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
        assert set(left) == {"alembic_version"}
    alembic.command.upgrade(config(database_url), "head")
    alembic.command.check(config(database_url))
