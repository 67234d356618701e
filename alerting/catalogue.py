"""The catalogue: pipelines as their newest definitions say. One whose definition is unreadable is set aside: its
incidents stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import select

from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.schema.core import PipelineRow, is_any, table_of
from lagloss_server.store.store import Store, names_not_deleted
from lagloss_server.store.unreadable import UnreadableRow


class Catalogue:
    """Definitions are read again only when there is a new version. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, StoredPipeline] = {}
        self.unreadable: Mapping[str, UnreadableRow] = {}
        """The newest definitions that are set aside, by pipeline, as they were last found; replaced whole."""

    def versions(self) -> dict[str, int]:
        """Return the newest versions of all pipelines that are not deleted, by name, including those with unreadable
        definitions."""
        newest = names_not_deleted().add_columns(PipelineRow.version).order_by(PipelineRow.name)
        with self._store.engine.connect() as connection:
            versions = {row.name: row.version for row in connection.execute(newest)}
        is_newest = {name: str(versions.get(name)) == row.name for name, row in self.unreadable.items()}
        self.unreadable = {name: row for name, row in self.unreadable.items() if is_newest[name]}
        return versions

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
        """Return a pipeline as it is now; None if it is deleted, or its newest definition is unreadable."""
        table = table_of(PipelineRow)
        newest = select(table.c.version, table.c.deleted_at).where(table.c.name == name)
        with self._store.engine.connect() as connection:
            row = connection.execute(newest.order_by(table.c.version.desc()).limit(1)).one_or_none()
        if row is None or row.deleted_at is not None:
            self._known.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known.version != row.version:
            found = self._store.versions_at([(name, row.version)])
            others = {other: unreadable for other, unreadable in self.unreadable.items() if other != name}
            self.unreadable = others | {unreadable.pipeline: unreadable for unreadable in found.unreadable}
            if not found:
                return None
            known = self._known[name] = found[0]
        return known
