"""Migrations: the revision of a database's tables, and bringing them up to this version's."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

import alembic.command
import alembic.config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from lagloss_server.base.errors import NotUnicode, TablesBehind, TablesUnknown

_PACKAGED: Final = Path(__file__).with_name("migrations")
MIGRATIONS: Final = _PACKAGED if _PACKAGED.is_dir() else Path(__file__).resolve().parents[2] / "migrations"
"""Alembic's scripts: in the wheel beside this module, in a checkout at its top."""


def migrate(database_url: str) -> None:
    """Run the migrations that the database has not had; wait while another process does.

    Raises:
        TablesUnknown: a newer version of lagloss has migrated it.
        NotUnicode: it cannot hold every text.
    """
    config = alembic.config.Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["url"] = database_url
    config.attributes["before"] = _demand_usable
    alembic.command.upgrade(config, "head")


@cache
def revisions() -> tuple[str, ...]:
    """Return the revisions that this version knows, newest first."""
    return tuple(script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions())


def demand_newest(engine: Engine) -> None:
    """Check that the tables are those of this version, before a service uses them.

    Raises:
        TablesUnknown, TablesBehind: they are of another.
    """
    with engine.connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
    _demand_known(revision)
    if revision != revisions()[0]:
        raise TablesBehind(found=revision or "none", newest=revisions()[0])


def _demand_usable(connection: Connection) -> None:
    encoding = connection.execute(text("SHOW server_encoding")).scalar_one()
    if encoding != "UTF8":
        raise NotUnicode(encoding=encoding)
    _demand_known(MigrationContext.configure(connection).get_current_revision())


def _demand_known(revision: str | None) -> None:
    if revision is not None and revision not in revisions():
        raise TablesUnknown(found=revision, newest=revisions()[0])
