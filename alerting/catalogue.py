"""The catalogue: pipelines as their newest definitions say. One whose definition is unreadable is set aside: its
incidents stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import UnreadableRow


class Catalogue:
    """Definitions are read again only when there is a new version, or its row was changed. Used by one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[tuple[int, int], StoredPipeline]] = {}
        self._newest: Mapping[str, tuple[int, int]] = {}
        """Version and stamp of the newest definition of each pipeline, as of the last look; replaced whole."""
        self.unreadable: Mapping[str, UnreadableRow] = {}
        """The newest definitions that are set aside, by pipeline, as they were last found; replaced whole."""

    def versions(self) -> dict[str, int]:
        """Return the newest versions of all pipelines that are not deleted, by name, including those with unreadable
        definitions."""
        before, self._newest = self._newest, self._store.newest_stamps(unlisted=True)
        self.unreadable = {name: row for name, row in self.unreadable.items() if name in self._newest}
        for name in self.unreadable.keys() | self._known.keys():
            if name in self._newest and before.get(name) != self._newest[name]:
                self.find(name)
        return {name: version for name, (version, _) in self._newest.items()}

    def current(self, names: Iterable[str]) -> list[StoredPipeline]:
        """Return those of these pipelines whose newest version has been found before."""
        newest = self._store.newest_stamps(names)
        entries = ((self._known.get(name), key) for name, key in newest.items())
        return [entry[1] for entry, key in entries if entry is not None and entry[0] == key]

    def find(self, name: str) -> StoredPipeline | None:
        """Return a pipeline as it is now; None if it is deleted, or its newest definition is unreadable."""
        key = self._store.newest_stamps([name]).get(name)
        entry = self._known.get(name)
        if key is not None and entry is not None and entry[0] == key:
            return entry[1]
        self._known.pop(name, None)
        read = self._store.versions_at([] if key is None else [(name, key[0])])
        others = {other: row for other, row in self.unreadable.items() if other != name}
        self.unreadable = others | {row.pipeline: row for row in read.unreadable}
        if key is None or not read:
            return None
        self._known[name] = key, read[0]
        return read[0]
