"""Tables of Iceberg, read so that no row is missed: by their snapshots, which are complete and ordered.

A read loads the table from its catalog and reads the rows of the snapshots that are new, a file at a time. Which rows
are new follows from what a snapshot did:

    append             all rows of the files that it added
    overwrite, delete  rows of the files that it added, less those, by their ids, that it removed or, if it deletes by
                       equality, that were there before
    replace            none: rows were rewritten, as by a compaction

Some writers, pyiceberg among them, overwrite by a delete and an append: an append's rows are also compared with what
the snapshots just before it removed. A row that is deleted later was delivered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from lagloss.wire.format import RETENTION_MS
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.iceberg_tables import catalog_of, columns_of, load_table, naming, open_catalog
from taps.tables.arrow_rows import MAX_ROWS, ArrowRows, PlacedBatch, row_hashes
from taps.tables.iceberg_files import ALL, SnapshotFiles, TooManyReplaced
from taps.tables.iceberg_history import IcebergPosition, PartRead, SnapshotStep, history_since
from taps.tables.iceberg_rows import SnapshotRows, id_kind
from taps.tables.reading import MissingRows, SeenRow, TableRead, TableVersion, closed_on_error

INTERVAL_S: Final = 5.0
"""Between two looks: each loads the table's metadata, and writers commit every few seconds at the most."""
TURN_S: Final = 10.0
"""After which a read ends that comes upon few rows."""
REACH_ROWS: Final = 500_000
"""Rows of the newest files with which a read begins if the snapshots before have expired."""
LATE_MS: Final = 3_600_000
"""How much older than the look before a row can be that was missed, since it was deleted: writers commit minutes after
its event. Rows that are left out can be of any time."""
BEHIND_S: Final = 120.0
"""For how long a catalog that answers with an earlier state is taken for one that is behind, and nothing is read. Then
it was restored, and is read as it is."""
_MINUTE_MS: Final = 60_000
_NONE: Final = np.empty(0, np.uint64)


@dataclass(slots=True)
class _SnapshotChunk:
    """Rows, the position after them, and why rows before them can be missing (empty: none is), how late ones."""

    position: IcebergPosition
    rows: PlacedBatch | None = None
    break_: str = ""
    late_ms: int = 0


@dataclass(slots=True)
class _Scan:
    """What is new of a version of a table, which was loaded at a moment (epoch ms), read as far as `position`."""

    position: IcebergPosition
    version: TableVersion
    at_ms: int
    chunks: Iterator[_SnapshotChunk]


class IcebergTable:
    """Reads one table of a catalog. What is left of a scan is kept for the next read."""

    interval_s = INTERVAL_S

    def __init__(self, spec: TableSpec, limit: int = MAX_ROWS) -> None:
        self._spec = spec
        self._limit = limit
        self._catalog: Catalog | None = None
        self._scan: _Scan | None = None
        self._behind_since: float | None = None
        """Since when the catalog has answered with an earlier state than before (monotonic s)."""

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position. Raises TableUnreadable."""
        before = msgspec.convert(dict(position), IcebergPosition)
        with closed_on_error(self), naming(self._spec):
            if self._scan is None or self._scan.position != before:
                self._scan = self._begin(before, since_ms)
            if self._scan is None:
                now_ms = time.time_ns() // 1_000_000
                return TableRead(ArrowRows(()), position, now_ms, now_ms, is_complete=False)
            return self._read(self._scan)

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        """Return which of these rows the current snapshot does not have. Raises TableUnreadable."""
        with closed_on_error(self), naming(self._spec):
            table = self._load()
            columns = columns_of(table, self._spec)
            missing = SnapshotRows(table, self._spec, columns).missing(rows)
            return MissingRows(missing, self._version(table, columns))

    def close(self) -> None:
        self._scan = None
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _begin(self, before: IcebergPosition, since_ms: int) -> _Scan | None:
        """Begin a scan; None while the catalog may be one that is behind."""
        at_ms = time.time_ns() // 1_000_000
        table = self._load()
        columns = columns_of(table, self._spec)
        version = self._version(table, columns)
        if version.at >= before.at or before.table != version.table:
            self._behind_since = None
        else:
            self._behind_since = self._behind_since or time.monotonic()
            if time.monotonic() - self._behind_since < BEHIND_S:
                return None
        version = msgspec.structs.replace(version, at=max(version.at, before.at))
        chunks = _Changes(table, SnapshotFiles(table, self._spec, columns), before, since_ms).chunks()
        return _Scan(before, version, at_ms, chunks)

    def _load(self) -> Table:
        if self._catalog is None:
            self._catalog = open_catalog(self._spec.database)
        return load_table(self._catalog, self._spec)

    def _version(self, table: Table, columns: Schema) -> TableVersion:
        """Return the version of a table as it was loaded. Its commits are numbered; what comes before their numbers
        tells tables apart that had the same name one after the other."""
        metadata = table.metadata
        times = [entry.timestamp_ms for entry in metadata.metadata_log[:1]] or [metadata.last_updated_ms]
        number = getattr(metadata, "last_sequence_number", 0)  # format 1 has none
        at = times[0] // _MINUTE_MS, number, metadata.last_updated_ms
        return TableVersion(catalog_of(self._spec.database), id_kind(columns.fields[0]), at, str(metadata.table_uuid))

    def _read(self, scan: _Scan) -> TableRead:
        rows: list[PlacedBatch] = []
        count, break_, late_ms, deadline = 0, "", 0, time.monotonic() + TURN_S
        is_complete = True
        for chunk in scan.chunks:
            scan.position = msgspec.structs.replace(chunk.position, at=scan.version.at)
            break_, late_ms = break_ or chunk.break_, max(late_ms, chunk.late_ms)
            if chunk.rows is not None:
                rows.append(chunk.rows)
                count += chunk.rows.columns.num_rows
            if count >= self._limit or time.monotonic() > deadline:
                is_complete = False
                break
        if is_complete:
            self._scan = None
        return TableRead(
            ArrowRows(rows),
            msgspec.to_builtins(scan.position),
            scan.at_ms,
            time.time_ns() // 1_000_000,
            scan.at_ms if is_complete else 0,
            is_complete,
            break_,
            late_ms,
            scan.version,
        )


class _Changes:
    """What is new of a table since a position."""

    def __init__(self, table: Table, files: SnapshotFiles, before: IcebergPosition, since_ms: int) -> None:
        self._files = files
        self._since_ms = since_ms
        self._snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        self._history = history_since(before, table.metadata, since_ms)

    def chunks(self) -> Iterator[_SnapshotChunk]:
        """Yield it in order; the last position is that of the table as a whole."""
        position, steps = self._history.start, self._history.steps
        half, break_ = position.reading, self._history.break_
        if half is not None and (not steps or steps[0].snapshot.snapshot_id != half.snapshot):
            half = None
        position = msgspec.structs.replace(position, reading=None)
        if break_:
            yield _SnapshotChunk(position, break_=break_, late_ms=LATE_MS)
        for step in steps:
            yield from self._step(step, position, half)
            half = None
            snapshot = step.snapshot
            position = IcebergPosition(self._history.end.table, snapshot.snapshot_id, snapshot.sequence_number or 0)
            yield _SnapshotChunk(position)
        yield _SnapshotChunk(self._history.end)

    def _step(self, step: SnapshotStep, position: IcebergPosition, half: PartRead | None) -> Iterator[_SnapshotChunk]:
        """Yield the rows of one snapshot, as far as they were not read before."""
        snapshot = step.snapshot
        if step.part == "added" and _operation(snapshot) == Operation.REPLACE:
            return
        oldest_ms = time.time_ns() // 1_000_000 - RETENTION_MS
        from_ms = half.from_ms if half is not None else max(self._since_ms, oldest_ms)
        reading = half or PartRead(snapshot.snapshot_id, step.part, from_ms)
        recent = self._files.since(from_ms)
        wanted = ALL if step.part == "added" and _operation(snapshot) == Operation.APPEND else recent
        if step.part == "files":
            files, is_cut = _newest(self._files.live(snapshot, wanted, position.sequence))
            if is_cut and half is None:
                break_ = f"it begins with the newest {REACH_ROWS} rows of its files"
                at_start = msgspec.structs.replace(position, reading=reading)
                yield _SnapshotChunk(at_start, break_=break_, late_ms=RETENTION_MS)
        elif step.instead_of is not None:
            kept = {file.file_path for file in self._files.live(step.instead_of, wanted)}
            files = [file for file in self._files.live(snapshot, wanted) if file.file_path not in kept]
        else:
            files = self._files.added(snapshot, wanted)
        try:
            replaced = self._replaced_by(step, recent) if files else _NONE
        except TooManyReplaced:
            break_ = "a commit replaced more rows than can be compared"
            yield _SnapshotChunk(position, break_=break_, late_ms=RETENTION_MS)
            return
        unseen = self._files.unseen_rows(snapshot) if step.part == "added" else {}
        for file, skipped in _from(files, half):
            rows = 0
            for batch in self._files.rows(file, wanted, unseen.get(file.file_path)):
                rows += batch.num_rows
                if rows <= skipped:
                    continue
                new = batch.slice(max(0, skipped - rows + batch.num_rows))
                if replaced.size:
                    new = new.filter(pa.array(~np.isin(row_hashes(new), replaced)))
                reading = msgspec.structs.replace(reading, file=file.file_path, rows=rows)
                after = msgspec.structs.replace(position, reading=reading)
                yield _SnapshotChunk(after, PlacedBatch(snapshot.snapshot_id, new))

    def _replaced_by(self, step: SnapshotStep, recent: BooleanExpression) -> npt.NDArray[np.uint64]:
        """Return hashes of the rows with which a snapshot's are compared. Raises TooManyReplaced."""
        if step.part == "files":
            return _NONE
        if step.instead_of is not None:  # what it replaced itself can be of snapshots between, which are not read
            return self._files.live_rows(step.instead_of, recent)
        if _operation(step.snapshot) != Operation.APPEND:
            replaced = self._files.replaced_rows(step.snapshot, recent)
            return np.union1d(replaced, self._files.upserted_rows(step.snapshot, recent))
        replaced = _NONE
        for snapshot in self._overwritten_before(step.snapshot):
            replaced = np.union1d(replaced, self._files.replaced_rows(snapshot, recent))
        return replaced

    def _overwritten_before(self, snapshot: Snapshot) -> Iterator[Snapshot]:
        """Yield the snapshots that an append may complete: an overwrite or delete just before, and a delete before
        that, of whole files."""
        for operations in ((Operation.DELETE, Operation.OVERWRITE), (Operation.DELETE,)):
            parent = self._snapshots.get(snapshot.parent_snapshot_id or 0)
            if parent is None or _operation(parent) not in operations:
                return
            yield parent
            snapshot = parent


def _operation(snapshot: Snapshot) -> Operation | None:
    return snapshot.summary.operation if snapshot.summary is not None else None


def _newest(files: Sequence[DataFile]) -> tuple[Sequence[DataFile], bool]:
    """Return as many of these files as hold `REACH_ROWS` rows, one at least, and whether that leaves some out."""
    rows = 0
    for index, file in enumerate(files):
        if index and rows + file.record_count > REACH_ROWS:
            return files[:index], True
        rows += file.record_count
    return files, False


def _from(files: Sequence[DataFile], half: PartRead | None) -> Iterator[tuple[DataFile, int]]:
    """Yield files and how many of their rows are read, from the one on that was read in part."""
    paths = [file.file_path for file in files]
    first = paths.index(half.file) if half is not None and half.file in paths else 0
    for index in range(first, len(files)):
        yield files[index], half.rows if half is not None and paths[index] == half.file else 0
