"""Definitions of all pipelines as they change: a look reads the versions that are new, and those whose row was
changed."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.store import Store
from lagloss_server.store.unreadable import UnreadableRow

READ: Final = 500
"""Versions that are parsed at a time: one takes up to 0.2 MB, until `extend` keeps less of it."""
T = TypeVar("T")
Extend = Callable[[T | None, Sequence[StoredPipeline], Sequence[UnreadableRow]], T]
"""Returns what is kept of a pipeline, from what was kept so far, and later versions: readable and unreadable ones."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    stamps: Mapping[int, int]
    """Of the versions that were read; see `Store.version_stamps`."""
    value: T
    unreadable: tuple[UnreadableRow, ...]

    @property
    def waits_for(self) -> UnreadableRow | None:
        """The newest version, if it is unreadable."""
        return next((row for row in self.unreadable if int(row.name) == max(self.stamps)), None)

    def precedes(self, stamps: Mapping[int, int]) -> bool:
        """Return whether its versions are as they were, and only later ones have come."""
        newest = max(self.stamps)
        return {number: stamp for number, stamp in stamps.items() if number <= newest} == self.stamps


class DefinitionFeed(Generic[T]):
    """What `extend` keeps of each pipeline. A pipeline whose newest version is unreadable waits until that version is
    readable, deleted, or followed by a readable one. `look` may be called by several threads.

    Attributes, each replaced whole:
        pipelines: what is kept of each pipeline that does not wait.
        waiting: the unreadable newest version of each that does.
        kept_of_waiting: what is kept of these, of their readable versions.
        unreadable: all unreadable versions, old ones too.
    """

    def __init__(self, store: Store, extend: Extend[T]) -> None:
        self.pipelines: Mapping[str, T] = {}
        self.waiting: Mapping[str, UnreadableRow] = {}
        self.kept_of_waiting: Mapping[str, T] = {}
        self.unreadable: Sequence[UnreadableRow] = ()
        self._store = store
        self._extend = extend
        self._entries: Mapping[str, _Entry[T]] = {}
        self._changes: int | None = None
        self._looking = threading.Lock()

    def look(self) -> bool:
        """Read what has changed; return whether anything has."""
        with self._looking:
            changes = self._store.count_changes()  # first: what changes meanwhile is found by the next look
            if changes == self._changes:
                return False
            stamps = self._store.version_stamps()
            entries = {name: entry for name, entry in self._entries.items() if entry.precedes(stamps.get(name, {}))}
            keys = [
                (name, number)
                for name, numbers in stamps.items()
                for number in numbers
                if name not in entries or number not in entries[name].stamps
            ]
            for start in range(0, len(keys), READ):
                self._add(entries, stamps, keys[start : start + READ])
            self._publish(entries)
            self._changes = changes
        return True

    def _add(
        self,
        entries: dict[str, _Entry[T]],
        stamps: Mapping[str, Mapping[int, int]],
        keys: Sequence[tuple[str, int]],
    ) -> None:
        """Read these versions, and add what is kept of them."""
        read = self._store.versions_at(keys)
        added: defaultdict[str, tuple[list[StoredPipeline], list[UnreadableRow]]] = defaultdict(lambda: ([], []))
        for stored in read:
            added[stored.name][0].append(stored)
        for row in read.unreadable:
            added[row.pipeline][1].append(row)
        for name, (stored_versions, unreadable) in added.items():
            before = entries.get(name)
            value = self._extend(None if before is None else before.value, stored_versions, unreadable)
            entries[name] = _Entry(stamps[name], value, (*(before.unreadable if before else ()), *unreadable))

    def _publish(self, entries: Mapping[str, _Entry[T]]) -> None:
        waiting = {name: row for name, entry in entries.items() if (row := entry.waits_for) is not None}
        self._entries = entries
        self.unreadable = [row for entry in entries.values() for row in entry.unreadable]
        self.kept_of_waiting = {name: entries[name].value for name in waiting}
        self.waiting = waiting
        self.pipelines = {name: entry.value for name, entry in entries.items() if name not in waiting}
