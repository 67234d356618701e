"""Bring the database's tables up to this version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import alembic.command
import alembic.config

_PACKAGED: Final = Path(__file__).with_name("migrations")
MIGRATIONS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2] / "migrations"
"""Alembic's scripts: in the wheel beside this module, in a checkout at its top."""


def migrate(database_url: str) -> None:
    """Run the migrations that the database has not had."""
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = database_url.replace("postgresql://", "postgresql+psycopg://", 1)
    alembic.command.upgrade(config, "head")
