"""Data files of Iceberg's snapshots: which a snapshot added or removed, and two columns of their rows, by pyiceberg.

Internal functions of pyiceberg are used where the public ones hold all rows of a file: its versions are bounded in
pyproject.toml.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Or,
    Reference,
)
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _read_deletes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import TimestampNanoType, TimestamptzNanoType

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.iceberg_tables import TIMESTAMPS
from taps.kernel import UNSET_MS
from taps.tables.arrow_rows import MAX_ROWS, comparable_ids, row_hashes
from taps.tables.row_groups import unpacked_bytes

MAX_REPLACED: Final = 10_000_000
"""Rows that a snapshot can replace and still be compared with what it added: 80 MB of their hashes."""

ALL: Final[BooleanExpression] = AlwaysTrue()
_POSITIONS: Final = {2147483546: "file_path", 2147483545: "pos"}
"""Columns of a file of deletes by position, by their ids, as the format has them."""
_FIELD_ID: Final = b"PARQUET:field_id"


class TooManyReplaced(Exception):
    """A snapshot replaced more rows than can be compared."""


class SnapshotFiles:
    """The files of a table's snapshots, and ids and event times of their rows.

    Args:
        columns: schema of id and event time.
    """

    def __init__(self, table: Table, spec: TableSpec, columns: Schema) -> None:
        self._table, self._io, self._spec = table, table.io, spec
        self._columns = columns
        self._event_time = columns.fields[-1]
        self._all_rows = ArrowScan(table.metadata, table.io, columns, ALL)
        self._manifests: tuple[int, list[ManifestFile]] = 0, []
        """The snapshot whose own entries were read last, and its manifests."""

    def since(self, from_ms: int) -> BooleanExpression:
        """Return the filter of rows that are to be read where those with event times before some moment (epoch ms) are
        left out; all, if the column is not a timestamp. Times that were never set can be of any moment."""
        kind, name = self._event_time.field_type, self._event_time.name
        if not isinstance(kind, TIMESTAMPS):
            return ALL
        unit = 1_000_000 if isinstance(kind, (TimestampNanoType, TimestamptzNanoType)) else 1_000
        is_recent = GreaterThanOrEqual(term=Reference(name), value=from_ms * unit)
        is_unset = LessThan(term=Reference(name), value=UNSET_MS * unit)
        return Or(IsNull(term=Reference(name)), is_recent, is_unset)

    def added(self, snapshot: Snapshot, wanted: BooleanExpression) -> list[DataFile]:
        """Return the data files that a snapshot added and that can have wanted rows, in a fixed order."""
        return self._changed(snapshot, ManifestEntryStatus.ADDED, wanted)

    def removed(self, snapshot: Snapshot, wanted: BooleanExpression) -> list[DataFile]:
        """Return the data files that a snapshot removed and that can have wanted rows."""
        return self._changed(snapshot, ManifestEntryStatus.DELETED, wanted)

    def live(self, snapshot: Snapshot, wanted: BooleanExpression, after: int = 0) -> list[DataFile]:
        """Return the data files of a snapshot that can have wanted rows, of commits after one of this sequence number:
        the newest first, in a fixed order."""
        manifests = [manifest for manifest in snapshot.manifests(self._io) if manifest.content == ManifestContent.DATA]
        numbers: dict[str, int] = {}

        def is_newer(entry: ManifestEntry) -> bool:
            # of a file of rewritten rows: that of the commit before it was rewritten
            number = numbers[entry.data_file.file_path] = entry.sequence_number or 0
            return not after or number > after

        planner = ManifestGroupPlanner(self._table.metadata, self._io, wanted)
        files = [task.file for task in planner.plan_files(manifests, is_newer)]
        return sorted(files, key=lambda file: -numbers[file.file_path])

    def replaced_rows(self, snapshot: Snapshot, wanted: BooleanExpression) -> npt.NDArray[np.uint64]:
        """Return sorted hashes of rows that a snapshot replaced: those of removed files, and those at positions that it
        marked as deleted. Files that are gone, since the snapshot before has expired, are left out.

        Raises:
            TooManyReplaced
        """
        batches = chain(
            chain.from_iterable(_if_there(self.rows(file, wanted)) for file in self.removed(snapshot, wanted)),
            chain.from_iterable(_if_there(self._at(*marked)) for marked in self._deleted_positions(snapshot)),
        )
        return _hashes_of(_counted(batches))

    def live_rows(self, snapshot: Snapshot, wanted: BooleanExpression) -> npt.NDArray[np.uint64]:
        """Return sorted hashes of the rows of a snapshot's files. Raises TooManyReplaced."""
        files = self.live(snapshot, wanted)
        return _hashes_of(_counted(chain.from_iterable(_if_there(self.rows(file, wanted)) for file in files)))

    def upserted_rows(self, snapshot: Snapshot, wanted: BooleanExpression) -> npt.NDArray[np.uint64]:
        """Return sorted hashes of rows before a snapshot with ids that it added, too, if it deletes by equality: such
        deletes are written for each row, whether there was one before or not. Only rows of the same event times are
        compared.

        Raises:
            TooManyReplaced
        """
        if DataFileContent.EQUALITY_DELETES not in {file.content for file in self._own_deletes(snapshot)}:
            return np.empty(0, np.uint64)
        added = self.added(snapshot, wanted)
        batches = list(_counted(chain.from_iterable(self.rows(file, wanted) for file in added)))
        if not batches:
            return np.empty(0, np.uint64)
        ids = pa.chunked_array([comparable_ids(batch.column(0)) for batch in batches]).unique()
        around = And(wanted, self._times_of(batches))
        own = {file.file_path for file in added}
        earlier = (file for file in self.live(snapshot, around) if file.file_path not in own)
        rows = _counted(chain.from_iterable(_if_there(self.rows(file, around)) for file in earlier))
        return _hashes_of(batch.filter(pc.is_in(comparable_ids(batch.column(0)), ids)) for batch in rows)

    def unseen_rows(self, snapshot: Snapshot) -> Mapping[str, npt.NDArray[np.int64]]:
        """Return the positions, by files that a snapshot added, of rows that it marked as deleted itself: some writers
        do so with rows that they replace before they show."""
        marked = dict(self._marked(snapshot))
        own = {file.file_path for file in self.added(snapshot, ALL)} if marked else set()
        return {path: positions for path, positions in marked.items() if path in own}

    def rows(
        self, file: DataFile, wanted: BooleanExpression = ALL, without: npt.NDArray[np.int64] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield ids and event times of the wanted rows of a file in their order, also of those that were deleted later,
        in batches of up to `MAX_ROWS`; without those at some positions."""
        scan = self._all_rows if wanted is ALL else ArrowScan(self._table.metadata, self._io, self._columns, wanted)
        marked = {} if without is None else {file.file_path: [pa.chunked_array([pa.array(without)])]}
        for batch in scanned(scan, FileScanTask(file), marked, self._spec):
            for start in range(0, batch.num_rows, MAX_ROWS):
                yield batch.slice(start, MAX_ROWS)

    def _deleted_positions(self, snapshot: Snapshot) -> Iterator[tuple[DataFile, npt.NDArray[np.int64]]]:
        """Yield the data files in which a snapshot marked rows as deleted, and the rows' positions. Rows that it added
        itself are left out: another one with the same id can be left."""
        own = {file.file_path for file in self.added(snapshot, ALL)}
        for path, positions in self._marked(snapshot):
            if path not in own:
                yield _file_at(path), positions

    def _marked(self, snapshot: Snapshot) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Yield paths of data files, and sorted positions that a snapshot marked as deleted there."""
        marked: defaultdict[str, list[npt.NDArray[np.int64]]] = defaultdict(list)
        deletes = {file.file_path: file for file in self._own_deletes(snapshot)}
        for delete in deletes.values():
            if delete.content == DataFileContent.POSITION_DELETES:
                for path, positions in deleted_positions(self._io, delete, self._spec).items():
                    marked[path].append(positions.to_numpy())
        for path, parts in marked.items():
            yield path, np.unique(np.concatenate(parts))

    def _own_deletes(self, snapshot: Snapshot) -> Iterator[DataFile]:
        """Yield the files of deletes that a snapshot added."""
        for entry in self._own_entries(snapshot, ManifestContent.DELETES):
            if entry.status == ManifestEntryStatus.ADDED:
                yield entry.data_file

    def _times_of(self, batches: Sequence[pa.RecordBatch]) -> BooleanExpression:
        """Return the filter of rows within the event times of some; all, if the column is not a timestamp."""
        if not isinstance(self._event_time.field_type, TIMESTAMPS):
            return ALL
        times = pa.chunked_array([batch.column(batch.num_columns - 1) for batch in batches])
        bounds = pc.min_max(times)
        if not bounds["min"].is_valid:
            return ALL
        name = Reference(self._event_time.name)
        within = And(
            GreaterThanOrEqual(term=name, value=bounds["min"].value),
            LessThanOrEqual(term=name, value=bounds["max"].value),
        )
        return Or(IsNull(term=name), within) if times.null_count else within

    def _at(self, file: DataFile, positions: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file at these positions, in ascending order."""
        start = 0
        for batch in self.rows(file):
            end = start + batch.num_rows
            first, last = np.searchsorted(positions, [start, end])
            if last > first:
                yield batch.take(pa.array(positions[first:last] - start))
            start = end

    def _changed(self, snapshot: Snapshot, status: ManifestEntryStatus, wanted: BooleanExpression) -> list[DataFile]:
        files = [
            entry.data_file
            for entry in self._own_entries(snapshot, ManifestContent.DATA)
            if entry.status == status and entry.snapshot_id == snapshot.snapshot_id
        ]
        if wanted is ALL:
            return files
        can_have = _InclusiveMetricsEvaluator(self._table.schema(), wanted).eval
        return [file for file in files if can_have(file)]

    def _own_entries(self, snapshot: Snapshot, content: ManifestContent) -> Iterator[ManifestEntry]:
        """Yield the entries of manifests that a snapshot wrote, in their order."""
        if self._manifests[0] != snapshot.snapshot_id:
            self._manifests = snapshot.snapshot_id, snapshot.manifests(self._io)
        for manifest in self._manifests[1]:
            if manifest.content == content and manifest.added_snapshot_id == snapshot.snapshot_id:
                yield from manifest.fetch_manifest_entry(self._io, discard_deleted=False)


def scanned(
    scan: ArrowScan, task: FileScanTask, marked: dict[str, list[pa.ChunkedArray]], spec: TableSpec
) -> Iterator[pa.RecordBatch]:
    """Yield what a scan finds in a file, without the rows at marked positions. Raises TableUnreadable if a column is
    too large (see `unpacked_bytes`)."""
    schema = scan._table_metadata.schema()
    read = {number: schema.find_column_name(number) for number in scan._projected_field_ids}
    _check_columns(scan._io, task.file, spec, read)
    yield from scan._record_batches_from_scan_tasks_and_deletes([task], marked)


def deleted_positions(io: FileIO, file: DataFile, spec: TableSpec) -> dict[str, pa.ChunkedArray]:
    """Return the positions that a file marks as deleted, by paths of data files. Raises TableUnreadable if a column is
    too large."""
    _check_columns(io, file, spec, _POSITIONS)
    return _read_deletes(io, file)


def _check_columns(io: FileIO, file: DataFile, spec: TableSpec, read: Mapping[int, str | None]) -> None:
    """Raise TableUnreadable if a column that is read is too large; without an id, it is known by its name."""
    if file.file_format != FileFormat.PARQUET:
        return
    with io.new_input(file.file_path).open() as content:
        metadata = pq.read_metadata(content)
    ids = {field.name: (field.metadata or {}).get(_FIELD_ID) for field in metadata.schema.to_arrow_schema()}
    names = {name for name, id_ in ids.items() if (name in read.values() if id_ is None else int(id_) in read)}
    for index in range(metadata.num_row_groups):
        unpacked_bytes(metadata.row_group(index), names, spec, file.file_path)


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches. Raises TooManyReplaced."""
    count = 0
    for batch in batches:
        count += batch.num_rows
        if count > MAX_REPLACED:
            raise TooManyReplaced
        yield batch


def _hashes_of(batches: Iterable[pa.RecordBatch]) -> npt.NDArray[np.uint64]:
    return np.unique(np.concatenate([np.empty(0, np.uint64), *map(row_hashes, batches)]))


def _if_there(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file, none if there is no such file any more."""
    with suppress(FileNotFoundError):
        yield from batches


def _file_at(path: str) -> DataFile:
    """Return a data file of which only the path is of use."""
    suffix = path.rpartition(".")[2].upper()
    kind = FileFormat[suffix] if suffix in FileFormat.__members__ else FileFormat.PARQUET
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=kind,
        partition=Record(),
        record_count=0,
        file_size_in_bytes=0,
    )
    file.spec_id = -1  # of none: its columns are in the file
    return file
