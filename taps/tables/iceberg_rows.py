"""Which of some messages have a row in a snapshot of Iceberg: rows that delete files mark are not there.

Positions, deletion vectors and deletes by equality are applied as the format says; the last by own code, since
pyiceberg refuses tables that have them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    Reference,
)
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestampNanoType, TimestamptzNanoType

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.iceberg_tables import TIMESTAMPS
from lagloss_server.net.table_urls import unreadable
from taps.tables.arrow_rows import SCAN_S, WantedIds, id_values, typed_ids
from taps.tables.iceberg_files import deleted_positions, scanned
from taps.tables.reading import SeenRow

MAX_DELETES: Final = 10_000_000
"""Deletes by equality that are compared with the rows."""
_FEW: Final = 200
"""Ids beyond which pyiceberg does not compare a list of them with the bounds of files."""


class _Match(NamedTuple):
    """A row with a wanted id: its commit's sequence number, its partition, and its columns by their field ids."""

    id: str
    sequence: int
    partition: tuple[int, Any]
    values: Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class _EqualityDeletes:
    """A file of them. `partition`: None: of all."""

    file: DataFile
    sequence: int
    partition: tuple[int, Any] | None

    def can_mark(self, match: _Match) -> bool:
        return self.sequence > match.sequence and self.partition in (None, match.partition)


class SnapshotRows:
    """The rows of a table as a snapshot shows them.

    Args:
        columns: schema of id and event time.
    """

    def __init__(self, table: Table, spec: TableSpec, columns: Schema) -> None:
        self._table, self._io, self._spec = table, table.io, spec
        self._id, self._event_time = columns.fields[0], columns.fields[-1]
        self._read_positions = lru_cache(maxsize=8)(lambda file: deleted_positions(self._io, file, spec))
        self._deadline = time.monotonic() + SCAN_S

    def missing(self, rows: Sequence[SeenRow]) -> frozenset[str]:
        """Return the ids of those of these rows that the current snapshot does not have: among rows of their event
        times, nor in the whole table.

        Raises:
            TableUnreadable: that takes too long, or there are too many deletes by equality.
            Exception: see `lagloss_server.net.iceberg_tables.naming`.
        """
        wanted = {row.id for row in rows}
        snapshot = self._table.current_snapshot()
        if snapshot is None or not wanted:
            return frozenset(wanted)
        deletes = list(self._equality_deletes(snapshot))
        if isinstance(self._event_time.field_type, TIMESTAMPS):
            times = [row.event_ms for row in rows]
            wanted -= self._present(snapshot, wanted, self._between(min(times), max(times)), deletes)
        if wanted:  # elsewhere: the event time was changed
            wanted -= self._present(snapshot, wanted, AlwaysTrue(), deletes)
        return frozenset(wanted)

    def _present(
        self,
        snapshot: Snapshot,
        ids: Collection[str],
        condition: BooleanExpression,
        deletes: Sequence[_EqualityDeletes],
    ) -> set[str]:
        """Return those of these ids that rows with a condition have."""
        keys = sorted({key for delete in deletes for key in delete.file.equality_ids or ()})
        fields = {self._id.field_id: self._id, **{key: self._table.schema().find_field(key) for key in keys}}
        scan = ArrowScan(self._table.metadata, self._io, Schema(*fields.values()), condition)
        wanted, matches = WantedIds(ids), []
        for task, sequence in self._tasks(snapshot, And(condition, self._bounds(ids))):
            partition = _partition_of(task.file)
            for batch in scanned(scan, task, self._positions(task), self._spec):
                self._check_time()
                rows = batch.filter(wanted.are_in(batch.column(0)))
                columns = {key: column.to_pylist() for key, column in zip(fields, rows.columns, strict=True)}
                for index, message_id in enumerate(map(str, id_values(rows.column(0)))):
                    values = {key: column[index] for key, column in columns.items()}
                    matches.append(_Match(message_id, sequence, partition, values))
        return {match.id for match in self._undeleted(matches, deletes)} & {*ids}

    def _tasks(self, snapshot: Snapshot, condition: BooleanExpression) -> Iterator[tuple[FileScanTask, int]]:
        """Yield the files that can have rows with a condition, each with its sequence number."""
        entries: dict[int, ManifestEntry] = {}

        def is_wanted(entry: ManifestEntry) -> bool:
            entries[id(entry.data_file)] = entry  # not by its path, which can be there twice
            return entry.data_file.content != DataFileContent.EQUALITY_DELETES

        planner = ManifestGroupPlanner(self._table.metadata, self._io, condition)
        for task in planner.plan_files(snapshot.manifests(self._io), is_wanted):
            yield task, entries[id(task.file)].sequence_number or 0

    def _positions(self, task: FileScanTask) -> dict[str, list[pa.ChunkedArray]]:
        """Return the positions of a file's rows that are marked as deleted."""
        path = task.file.file_path
        marked = (self._read_positions(file) for file in task.delete_files)
        return {path: [positions[path] for positions in marked if path in positions]}

    def _equality_deletes(self, snapshot: Snapshot) -> Iterator[_EqualityDeletes]:
        count = 0
        for manifest in snapshot.manifests(self._io):
            if manifest.content != ManifestContent.DELETES:
                continue
            for entry in manifest.fetch_manifest_entry(self._io):
                file = entry.data_file
                if file.content != DataFileContent.EQUALITY_DELETES or entry.status == ManifestEntryStatus.DELETED:
                    continue
                count += file.record_count
                if count > MAX_DELETES:
                    problem = f"it has more than {MAX_DELETES:,} deletes by equality: compact it (rewrite_data_files)"
                    raise unreadable(self._spec, problem)
                is_global = self._table.specs()[file.spec_id].is_unpartitioned()
                yield _EqualityDeletes(file, entry.sequence_number or 0, None if is_global else _partition_of(file))

    def _undeleted(self, matches: Sequence[_Match], deletes: Sequence[_EqualityDeletes]) -> list[_Match]:
        """Return the rows that no delete by equality marks."""
        remaining = list(matches)
        for delete in deletes:
            candidates = [match for match in remaining if delete.can_mark(match)]
            if not candidates:
                continue
            keys = list(delete.file.equality_ids or ())
            deleted = self._keys_of(delete.file, keys, {_key(match, keys) for match in candidates})
            remaining = [match for match in remaining if not delete.can_mark(match) or _key(match, keys) not in deleted]
        return remaining

    def _keys_of(self, file: DataFile, keys: Sequence[int], wanted: set[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
        """Return those of some keys that a file of deletes by equality has."""
        schema = Schema(*(self._table.schema().find_field(key) for key in keys))
        scan = ArrowScan(self._table.metadata, self._io, schema, AlwaysTrue())
        deleted: set[tuple[Any, ...]] = set()
        for batch in scanned(scan, FileScanTask(file), {}, self._spec):
            self._check_time()
            deleted |= wanted.intersection(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        return deleted

    def _between(self, first_ms: int, last_ms: int) -> BooleanExpression:
        nanos = isinstance(self._event_time.field_type, (TimestampNanoType, TimestamptzNanoType))
        unit, name = 1_000_000 if nanos else 1_000, Reference(self._event_time.name)
        first, last = first_ms * unit, (last_ms + 1) * unit
        return And(GreaterThanOrEqual(term=name, value=first), LessThanOrEqual(term=name, value=last))

    def _bounds(self, ids: Collection[str]) -> BooleanExpression:
        """Return a filter of files that can have one of some ids, by partitions and bounds of columns."""
        values = _typed(self._id, ids)
        if values is None:
            return AlwaysTrue()
        name = Reference(self._id.name)
        if len(values) <= _FEW:
            return In(term=name, literals=values)
        return And(GreaterThanOrEqual(term=name, value=min(values)), LessThanOrEqual(term=name, value=max(values)))

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise unreadable(
                self._spec, f"looking for rows that are not where they were takes more than {SCAN_S:.0f} s"
            )


def id_kind(field: NestedField) -> str:
    """Return how ids of a column are written: of another column, or of another kind, equal ones can differ."""
    is_integer = isinstance(field.field_type, (IntegerType, LongType))
    return f"{'integer' if is_integer else field.field_type} {field.field_id}"


def _typed(field: NestedField, ids: Collection[str]) -> set[Any] | None:
    """Return ids as values of a column; None: of such columns, files are not compared by their bounds."""
    if isinstance(field.field_type, (StringType, IntegerType, LongType)):
        return set(typed_ids(ids, schema_to_pyarrow(field.field_type)).to_pylist())
    return None


def _partition_of(file: DataFile) -> tuple[int, Any]:
    return file.spec_id, file.partition


def _key(match: _Match, keys: Sequence[int]) -> tuple[Any, ...]:
    return tuple(match.values[key] for key in keys)
