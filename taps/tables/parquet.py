"""Folders of Parquet on S3, read so that no row is missed: by their files, which are whole once they are there.

A read lists the folder and reads the files that are new, by key and ETag. S3 shows no order in which files came: the
time of an upload in parts is that of its beginning. So the position has all files that are read: marks of the newest
ones, and the number and the sum of the marks of older ones. Another process goes on from it if that sum is still right,
else files can have come among them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from operator import xor
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from lagloss.wire.format import RETENTION_MS
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.parquet_folders import (
    Folder,
    ParquetFile,
    check_columns,
    folder_of,
    list_files,
    naming,
    open_file,
    s3_client,
)
from lagloss_server.net.table_urls import unreadable
from taps.kernel import UNSET_MS
from taps.tables.arrow_rows import MAX_ROWS, SCAN_S, ArrowRows, PlacedBatch, WantedIds, id_values
from taps.tables.reading import MissingRows, SeenRow, TableRead, TableVersion, closed_on_error
from taps.tables.row_groups import unpacked_bytes

INTERVAL_S: Final = 15.0
"""Between two looks, each of which lists the folder: a request for each 1,000 files."""
SHARE: Final = 10
"""A look takes at most one part in this of the time."""
TURN_S: Final = 10.0
"""After which a read ends that comes upon few rows."""
NEWEST: Final = 2_000
"""Files that a position marks, and more of the same second."""
FIRST: Final = 5_000
"""Newest files with which a tap begins."""
LONGEST_INTERVAL_S: Final = 50.0
"""A tap that reports nothing for a minute is silent."""
READ_BYTES: Final = 64 << 20
"""Of ids and times that are held at a time: where rows are large, a read has fewer."""
LATE_MS: Final = 3_600_000
"""How much older than the look before a row can be that was missed while it was read. A file of which nothing is known
can have been uploaded for days."""


class HalfRead(msgspec.Struct, frozen=True):
    """A file of which so many rows are read."""

    key: str
    etag: str
    rows: int


class FolderPosition(msgspec.Struct, frozen=True):
    """Which files are read.

    Attributes:
        from_ms: when the oldest file was modified of those that are marked; None: begin.
        marked: marks of files modified since then.
        older, sum: number of files from before, and the sum of their marks.
        reading: the file that is read in part.
    """

    from_ms: int | None = None
    marked: str = ""
    older: int = 0
    sum: str = ""
    reading: HalfRead | None = None


@dataclass(slots=True)
class _FileChunk:
    """Rows of a file, and how far it is read; neither: it is read."""

    file: ParquetFile
    reading: HalfRead | None = None
    rows: PlacedBatch | None = None


@dataclass(slots=True)
class _Look:
    """The folder as it was at a moment (epoch ms).

    Attributes:
        files: all of it.
        read: marks of those that are read.
        chunks: what is left of the others.
        position: after what was read of it.
        break_: why rows before can be missing; empty: none is.
        late_ms: how much older than the look before these can be.
    """

    at_ms: int
    files: Sequence[ParquetFile]
    read: set[int]
    chunks: Iterator[_FileChunk]
    position: FolderPosition
    break_: str
    late_ms: int


class ParquetFolder:
    """Reads one folder. What is left of a look is kept for the next read."""

    def __init__(self, spec: TableSpec, limit: int = MAX_ROWS) -> None:
        self.interval_s = INTERVAL_S
        self._spec = spec
        self._limit = limit
        self._s3: Any = None
        self._look: _Look | None = None
        self._read_by: tuple[FolderPosition, set[int]] | None = None
        """Marks of all files that are read, by the position that says so."""

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position. Raises TableUnreadable."""
        before = msgspec.convert(dict(position), FolderPosition)
        with closed_on_error(self), naming(self._spec):
            if self._look is None or self._look.position != before:
                self._look = self._begin(before, since_ms)
            return self._go_on(self._look)

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        """Return which of these rows no file has: first of the files that were modified when theirs were, then of all.
        Raises TableUnreadable."""
        with closed_on_error(self), naming(self._spec):
            folder = folder_of(self._spec)
            self._s3 = self._s3 or s3_client()
            places = {row.place for row in rows}
            files = sorted(list_files(self._s3, folder, self._spec), key=lambda file: file.modified_ms not in places)
            missing, deadline = {row.id for row in rows}, time.monotonic() + SCAN_S
            for file in files:
                if not missing:
                    break
                missing -= self._present(folder, file, missing, deadline)
            return MissingRows(frozenset(missing), self._version(folder))

    def close(self) -> None:
        self._look = None
        if self._s3 is not None:
            self._s3.close()
            self._s3 = None

    def _begin(self, before: FolderPosition, since_ms: int) -> _Look:
        folder = folder_of(self._spec)
        self._s3 = self._s3 or s3_client()
        at_ms, began = time.time_ns() // 1_000_000, time.monotonic()
        files = list_files(self._s3, folder, self._spec)
        self.interval_s = min(max(INTERVAL_S, SHARE * (time.monotonic() - began)), LONGEST_INTERVAL_S)
        if self._read_by is not None and self._read_by[0] == before:
            read, break_ = self._read_by[1], ""
        else:
            read, break_ = _read_at(before, files)
        late_ms = RETENTION_MS if break_ else LATE_MS
        marks = {_mark(file): file for file in files}
        half = before.reading
        if half is not None and not any(_is_half(half, file) for file in files):
            break_ = break_ or f"{half.key} was deleted or overwritten while it was read"
        new = sorted((file for mark, file in marks.items() if mark not in read), key=_age)
        if half is not None:  # before all others, as it was begun
            new.sort(key=lambda file: not _is_half(half, file))
        chunks = self._chunks(folder, new, half, since_ms)
        return _Look(at_ms, files, read & marks.keys(), chunks, before, break_, late_ms)

    def _go_on(self, look: _Look) -> TableRead:
        rows: list[PlacedBatch] = []
        count, size, deadline = 0, 0, time.monotonic() + TURN_S
        reading, is_complete = look.position.reading, True
        for chunk in look.chunks:
            reading = chunk.reading
            if reading is None:
                look.read.add(_mark(chunk.file))
            if chunk.rows is not None:
                rows.append(chunk.rows)
                count += chunk.rows.columns.num_rows
                size += chunk.rows.columns.nbytes
            if count >= self._limit or size >= READ_BYTES or time.monotonic() > deadline:
                is_complete = False
                break
        break_, look.break_ = look.break_, ""
        look.position = _position(look.files, look.read, None if is_complete else reading)
        self._read_by = look.position, set(look.read)
        if is_complete:
            self._look = None
        return TableRead(
            ArrowRows(rows),
            msgspec.to_builtins(look.position),
            look.at_ms,
            time.time_ns() // 1_000_000,
            look.at_ms if is_complete else 0,
            is_complete,
            break_,
            look.late_ms if break_ else 0,
            self._version(folder_of(self._spec)),
        )

    def _version(self, folder: Folder) -> TableVersion:
        """Return what is read: listings of S3 are consistent, so that a later one is never behind."""
        return TableVersion(f"{self._s3.meta.endpoint_url} {folder.bucket} {folder.prefix}")

    def _present(self, folder: Folder, file: ParquetFile, ids: Collection[str], deadline: float) -> set[str]:
        """Return those of these ids that rows of a file have. Raises TableUnreadable, also after a deadline."""
        present: set[str] = set()
        wanted = WantedIds(ids)
        with _naming_file(self._spec, file), open_file(self._s3, folder, file) as parquet:
            check_columns(parquet, self._spec, file.key)
            bounds = wanted.bounds(parquet.schema_arrow.field(self._spec.id).type)
            for group in range(parquet.num_row_groups):
                about = parquet.metadata.row_group(group)
                if _can_have(about, self._spec.id, bounds):
                    at_once = _rows_at_once(about, unpacked_bytes(about, [self._spec.id], self._spec, file.key))
                    for batch in parquet.iter_batches(at_once, row_groups=[group], columns=[self._spec.id]):
                        column = batch.column(0)
                        present.update(map(str, id_values(column.filter(wanted.are_in(column)))))
                if time.monotonic() > deadline:
                    problem = f"looking for rows that are not where they were takes more than {SCAN_S:.0f} s"
                    raise unreadable(self._spec, problem)
        return present

    def _chunks(
        self, folder: Folder, files: Sequence[ParquetFile], half: HalfRead | None, since_ms: int
    ) -> Iterator[_FileChunk]:
        """Yield the rows of files in their order, as far as they were not read before."""
        names = list(dict.fromkeys((self._spec.id, self._spec.event_time)))
        for file in files:
            skipped, end = half.rows if half is not None and _is_half(half, file) else 0, 0
            with _naming_file(self._spec, file), open_file(self._s3, folder, file) as parquet:
                check_columns(parquet, self._spec, file.key)
                for group in range(parquet.num_row_groups):
                    about = parquet.metadata.row_group(group)
                    if end + about.num_rows <= skipped or _is_before(about, self._spec.event_time, since_ms):
                        end += about.num_rows
                        continue
                    at_once = _rows_at_once(about, unpacked_bytes(about, names, self._spec, file.key))
                    for batch in parquet.iter_batches(at_once, row_groups=[group], columns=names):
                        end += batch.num_rows
                        if end > skipped:
                            new = batch.select(names).slice(max(0, skipped - end + batch.num_rows))
                            reading = HalfRead(file.key, file.etag, end)
                            yield _FileChunk(file, reading, PlacedBatch(file.modified_ms, new))
            yield _FileChunk(file)


@contextmanager
def _naming_file(spec: TableSpec, file: ParquetFile) -> Iterator[None]:
    """Raise what is wrong with a file as TableUnreadable that names it."""
    try:
        yield
    except pa.ArrowException as error:
        problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise unreadable(spec, f"{file.key} is not a file of Parquet ({problem})") from error


def _read_at(position: FolderPosition, files: Sequence[ParquetFile]) -> tuple[set[int], str]:
    """Return marks of the files that are read by a position, and why others can have been missed; empty: none was."""
    if position.from_ms is None:
        left_out = {_mark(file) for file in sorted(files, key=_age)[: max(0, len(files) - FIRST)]}
        return left_out, f"it begins with its newest {FIRST} files" if left_out else ""
    older = {
        _mark(file) for file in files if file.modified_ms < position.from_ms and not _is_half(position.reading, file)
    }
    is_same = (len(older), _sum(older)) == (position.older, position.sum)
    marked = np.frombuffer(base64.b85decode(position.marked), np.uint64).tolist()
    return older.union(marked), "" if is_same else "older files came or went while no process was looking"


def _position(files: Sequence[ParquetFile], read: set[int], reading: HalfRead | None) -> FolderPosition:
    """Return the position at which these files are read."""
    done = sorted((file for file in files if _mark(file) in read), key=_age)
    from_ms = done[-NEWEST].modified_ms if len(done) > NEWEST else 0
    marked = np.array(sorted(_mark(file) for file in done if file.modified_ms >= from_ms), np.uint64)
    older = {_mark(file) for file in done if file.modified_ms < from_ms}
    return FolderPosition(from_ms, base64.b85encode(marked.tobytes()).decode(), len(older), _sum(older), reading)


def _is_half(half: HalfRead | None, file: ParquetFile) -> bool:
    """Return whether this is the file of which a part is read."""
    return half is not None and (file.key, file.etag) == (half.key, half.etag)


def _mark(file: ParquetFile) -> int:
    return xxhash.xxh3_64_intdigest(f"{file.key}\0{file.etag}".encode())


def _sum(marks: set[int]) -> str:
    return f"{reduce(xor, marks, 0):x}"


def _age(file: ParquetFile) -> tuple[int, str]:
    return file.modified_ms, file.key


def _rows_at_once(about: pq.RowGroupMetaData, size: int) -> int:
    """Return how many rows of a row group, which has this size, to read at a time: `MAX_ROWS`, or as many as have about
    `READ_BYTES`."""
    return max(1, min(MAX_ROWS, int(READ_BYTES * about.num_rows // max(1, size))))


def _can_have(about: pq.RowGroupMetaData, column: str, bounds: tuple[Any, Any] | None) -> bool:
    """Return whether a row group can have ids within bounds; None: they cannot be compared."""
    statistics = _statistics_of(about, column)
    if bounds is None or statistics is None or not statistics.has_min_max:
        return True
    try:
        return bool(statistics.min <= bounds[1] and bounds[0] <= statistics.max)
    except (TypeError, ValueError):
        return True


def _statistics_of(about: pq.RowGroupMetaData, name: str) -> Any:
    columns = (about.column(index) for index in range(about.num_columns))
    return next((column.statistics for column in columns if column.path_in_schema == name), None)


def _is_before(about: pq.RowGroupMetaData, event_time: str, since_ms: int) -> bool:
    """Return whether all rows of a row group have event times before a moment, and none that was never set."""
    statistics = _statistics_of(about, event_time)
    if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
        return False
    try:
        bounds = [_epoch_ms(bound) for bound in (statistics.min, statistics.max)]
    except (OverflowError, TypeError, ValueError):
        return False
    return bounds[0] >= UNSET_MS and bounds[1] < since_ms


def _epoch_ms(moment: Any) -> float:
    """Return a time. Raises TypeError: statistics of numbers and text have no times."""
    if not isinstance(moment, datetime):
        raise TypeError
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000
