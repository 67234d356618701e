"""Tables of Iceberg, and writers of them, which write files and commit them, rewrite, compact and expire."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files, schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _OverwriteFiles
from pyiceberg.typedef import EMPTY_DICT, Record

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import variable_of

LAKE: Final = "lake"
SCHEMA: Final = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC")), ("state", pa.string())])


def now_us() -> int:
    return time.time_ns() // 1_000


def orders(ids: Iterable[str | None], at_us: int | None = None, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Rows of these ids, of this moment or now."""
    ids = list(ids)
    columns = {"id": ids, "at": [at_us or now_us()] * len(ids), "state": ["new"] * len(ids)}
    return pa.table({name: pa.array(columns[name]).cast(schema.field(name).type) for name in schema.names})


class _Rewrite(_OverwriteFiles):
    """A commit that says of itself that no row is new, as a compaction's."""

    def _summary(self, snapshot_properties: Mapping[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)


class _DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A commit of new files and of files that mark rows as deleted, as Flink's: pyiceberg has none."""

    deletes: Sequence[DataFile] = ()

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        codec: Any = "null"
        writer = _DeleteManifestWriter(
            metadata.spec(), self.schema(), self.new_manifest_output(), self._snapshot_id, codec
        )
        with writer:
            for file in self.deletes:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
        return [*super()._manifests(), writer.to_manifest_file()]


class LakeTable:
    """A table as its writers see it."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.spec = TableSpec(database=LAKE, table=".".join(table.name()), id="id", event_time="at")

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write files that are in no snapshot yet."""
        return list(_dataframe_to_data_files(self.table.metadata, rows, self.table.io))

    def commit(self, files: Sequence[DataFile]) -> None:
        """Append files, also such that are in the table already."""
        with self.table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for file in files:
                append.append_data_file(file)

    def append(self, *ids: str | None, at_us: int | None = None) -> None:
        self.commit(self.write(orders(ids, at_us)))

    def write_equality_deletes(self, rows: pa.Table) -> DataFile:
        """Write a file of deletes by these columns, that is in no snapshot yet."""
        fields = [self.table.schema().find_field(name) for name in rows.column_names]
        schema = schema_to_pyarrow(Schema(*fields))
        return self._write_deletes(
            rows.cast(schema), DataFileContent.EQUALITY_DELETES, equality_ids=[field.field_id for field in fields]
        )

    def write_position_deletes(self, file: DataFile, *positions: int) -> DataFile:
        """Write marks of rows of a file, that are in no snapshot yet."""
        rows = pa.table({"file_path": [file.file_path] * len(positions), "pos": pa.array(positions, pa.int64())})
        fields = [
            field.with_metadata({b"PARQUET:field_id": number})
            for field, number in zip(rows.schema, (b"2147483546", b"2147483545"), strict=True)
        ]
        return self._write_deletes(rows.cast(pa.schema(fields)), DataFileContent.POSITION_DELETES)

    def _write_deletes(self, rows: pa.Table, content: DataFileContent, **arguments: Any) -> DataFile:
        path = self.table.location_provider().new_data_location(f"{uuid.uuid4()}-deletes.parquet")
        output = self.table.io.new_output(path)
        with output.create() as stream:
            pq.write_table(rows, stream)
        file = DataFile.from_args(
            content=content,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=rows.num_rows,
            file_size_in_bytes=len(output),
            **arguments,
        )
        file.spec_id = self.table.spec().spec_id
        return file

    def commit_delta(self, added: Sequence[DataFile], deletes: Sequence[DataFile]) -> None:
        """Commit new files and files of deletes together."""
        operation = Operation.OVERWRITE if added else Operation.DELETE
        with self.table.transaction() as transaction, _RowDelta(operation, transaction, self.table.io) as delta:
            delta.deletes = deletes
            for file in added:
                delta.append_data_file(file)

    def upsert(self, *ids: str, at_us: int | None = None) -> None:
        """Write rows, and delete by equality those that had the ids before, as Flink does."""
        self.commit_delta(self.write(orders(ids, at_us)), [self.write_equality_deletes(pa.table({"id": ids}))])

    def files(self) -> list[DataFile]:
        """The data files of the table now."""
        snapshot = self.table.refresh().current_snapshot()
        manifests = snapshot.manifests(self.table.io) if snapshot is not None else []
        return [
            entry.data_file
            for manifest in manifests
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(self.table.io)
        ]

    def rows_of(self, file: DataFile) -> pa.Table:
        with self.table.io.new_input(file.file_path).open() as stream:
            return pq.read_table(stream).cast(SCHEMA)

    def replace(self, removed: Sequence[DataFile], added: Sequence[DataFile], *, is_compaction: bool = False) -> None:
        """Commit an overwrite, or a compaction, of files by others."""
        with self.table.transaction() as transaction:
            kind = _Rewrite if is_compaction else _OverwriteFiles
            operation = Operation.OVERWRITE
            with kind(operation, transaction, self.table.io) as overwrite:
                for file in removed:
                    overwrite.delete_data_file(file)
                for file in added:
                    overwrite.append_data_file(file)

    def compact(self) -> None:
        """Rewrite all files as one."""
        files = self.files()
        if len(files) > 1:
            rows = pa.concat_tables([self.rows_of(file) for file in files])
            self.replace(files, self.write(rows), is_compaction=True)

    def merge(self, file: DataFile, *ids: str) -> None:
        """Rewrite a file with other states of its rows, and with rows that are new."""
        changed = self.rows_of(file).drop(["state"])
        rows = changed.append_column("state", pa.array(["changed"] * changed.num_rows, pa.string()))
        self.replace([file], self.write(pa.concat_tables([rows, orders(ids)])))

    def remove(self, *ids: str) -> None:
        """Delete rows, by rewriting files."""
        self.table.delete("id in (" + ", ".join(f"'{message_id}'" for message_id in ids) + ")")

    def expire(self) -> None:
        """Forget all snapshots but the newest."""
        current = self.table.refresh().metadata.current_snapshot_id
        old = [each.snapshot_id for each in self.table.metadata.snapshots if each.snapshot_id != current]
        if old:
            self.table.maintenance.expire_snapshots().by_ids(old).commit()

    def roll_back(self, commits: int) -> None:
        snapshot = self.table.current_snapshot()
        for _ in range(commits):
            assert snapshot is not None
            snapshot = self.table.snapshot_by_id(snapshot.parent_snapshot_id or 0)
        assert snapshot is not None
        self.table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()


class Lake:
    """A catalog and its tables."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        catalog.create_namespace_if_not_exists("raw")

    def table(self, name: str = "orders", schema: pa.Schema = SCHEMA, **properties: Any) -> LakeTable:
        return LakeTable(self.catalog.create_table(f"raw.{name}", schema, properties=properties))


@contextmanager
def lake_at(uri: str, warehouse: str, patch: pytest.MonkeyPatch, **properties: str) -> Iterator[Lake]:
    """A catalog, named by the environment."""
    catalog = load_catalog(LAKE, uri=uri, warehouse=warehouse, **properties)
    query = urlencode({"warehouse": warehouse, **properties})
    patch.setenv(variable_of(LAKE), f"iceberg+{uri}{'&' if '?' in uri else '?'}{query}")
    try:
        yield Lake(catalog)
    finally:
        catalog.close()


@contextmanager
def lake_on_disk(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A catalog and a warehouse that need no server."""
    with lake_at(f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse", patch) as lake:
        yield lake
