"""The catalogue: pipelines as their newest definitions say, each read for itself, so that one that cannot be read
keeps no other from being watched."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import select

from lagloss_server.model.definition import Definition, StoredPipeline
from lagloss_server.store.schema.core import PipelineRow, is_any, table_of
from lagloss_server.store.store import Store, names_not_deleted


class Catalogue:
    """Definitions are read again only when there is a new version. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, StoredPipeline] = {}

    def versions(self) -> dict[str, int]:
        """Return the newest versions of all pipelines that are not deleted, by name, including those with unreadable
        definitions."""
        newest = names_not_deleted().add_columns(PipelineRow.version).order_by(PipelineRow.name)
        with self._store.engine.connect() as connection:
            return {row.name: row.version for row in connection.execute(newest)}

    def current(self, names: Iterable[str]) -> list[StoredPipeline]:
        """Return those of these pipelines whose newest version has been found before."""
        table = table_of(PipelineRow)
        newest = (
            select(table.c.name, table.c.version, table.c.deleted_at)
            .distinct(table.c.name)
            .where(is_any(table.c.name, names))
            .order_by(table.c.name, table.c.version.desc())
        )
        with self._store.engine.connect() as connection:
            rows = connection.execute(newest).all()
        known = [(self._known.get(row.name), row) for row in rows if row.deleted_at is None]
        return [one for one, row in known if one is not None and one.version == row.version]

    def find(self, name: str) -> StoredPipeline | None:
        """Return a pipeline as it is now; None if it is deleted.

        Raises:
            ValidationError: its newest definition is none that this version of lagloss understands.
        """
        table = table_of(PipelineRow)
        newest = select(table.c.version, table.c.deleted_at).where(table.c.name == name)
        with self._store.engine.connect() as connection:
            row = connection.execute(newest.order_by(table.c.version.desc()).limit(1)).one_or_none()
            if row is None or row.deleted_at is not None:
                self._known.pop(name, None)
                return None
            known = self._known.get(name)
            if known is None or known.version != row.version:
                is_newest = (table.c.name == name) & (table.c.version == row.version)
                found = connection.execute(select(table).where(is_newest)).one()
                definition = Definition.model_validate(found.definition)
                known = self._known[name] = StoredPipeline(name, found.version, found.applied_at, definition)
        return known
