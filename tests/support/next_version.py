"""The migrations of a next version: this one's and one more, which adds a column and fills it in rows that exist."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import alembic.command
import alembic.config
import pytest

from lagloss_server.store import migrate

REVISION: Final = "9998"
_SCRIPT: Final = '''
"""a column that the next version has"""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{newest}"


def upgrade() -> None:
    op.add_column("window", sa.Column("losses", sa.Text()))
    op.execute("UPDATE \\"window\\" SET losses = pipeline || ' lost ' || lost_min")
    op.alter_column("window", "losses", nullable=False)


def downgrade() -> None:
    op.drop_column("window", "losses")
'''


@contextmanager
def next_version(folder: Path) -> Iterator[None]:
    """Let this process know the migrations of the next version, written below `folder`, for as long as the block
    lasts."""
    scripts = folder / "migrations"
    shutil.copytree(migrate.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    script = _SCRIPT.format(revision=REVISION, newest=migrate.revisions()[0])
    (scripts / "versions" / f"{REVISION}_next.py").write_text(script)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "MIGRATIONS", scripts)
        migrate.revisions.cache_clear()
        try:
            yield
        finally:
            migrate.revisions.cache_clear()


def config(database_url: str) -> alembic.config.Config:
    """Return the configuration of Alembic for the migrations that this process knows."""
    found = alembic.config.Config()
    found.set_main_option("script_location", str(migrate.MIGRATIONS))
    found.attributes["url"] = database_url
    return found


def go_back(database_url: str) -> None:
    """Undo the newest migration."""
    alembic.command.downgrade(config(database_url), "-1")
