"""Folders of Parquet with many files, or large rows, take no more memory than others."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec
from lagloss_server.net import parquet_folders
from lagloss_server.net.table_urls import variable_of
from taps.tables import parquet, row_groups
from taps.tables.parquet import ParquetFolder
from taps.tables.reading import SeenRow

NOW = datetime.now(UTC)
SPEC = TableSpec(database="landing", table="raw.orders", id="id", event_time="at")


class ObjectsInMemory:
    """What the tap asks of a client of S3, 3 objects on a page."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self._objects = {f"raw/orders/{name}": content for name, content in objects.items()}
        self.meta = SimpleNamespace(endpoint_url="http://s3")

    def get_paginator(self, _name: str) -> ObjectsInMemory:
        return self

    def paginate(self, **_where: str) -> Iterator[dict[str, Any]]:
        items = [
            {"Key": key, "ETag": f"{hash(content)}", "Size": len(content), "LastModified": NOW}
            for key, content in self._objects.items()
        ]
        return ({"Contents": items[start : start + 3]} for start in range(0, len(items), 3))

    def get_object(self, Key: str, Range: str, **_where: str) -> dict[str, Any]:  # noqa: N803 - as boto3 has it
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self._objects[Key][first : last + 1])}

    def close(self) -> None:
        """Hold nothing."""


def file_of(ids: Sequence[str], **options: Any) -> bytes:
    content = io.BytesIO()
    pq.write_table(pa.table({"id": ids, "at": ["x" * 300] * len(ids)}), content, **{"use_dictionary": False, **options})
    return content.getvalue()


@pytest.fixture(autouse=True)
def _url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable_of("landing"), "s3://bucket")


def folder_with(objects: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch) -> ParquetFolder:
    monkeypatch.setattr(parquet, "s3_client", lambda: ObjectsInMemory(objects))
    return ParquetFolder(SPEC)


def test_a_folder_has_so_many_files_at_most_and_others_of_its_objects_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_folders, "MAX_FILES", 4)
    files = {f"{number}.parquet": file_of([str(number)]) for number in range(4)}
    others = {"_SUCCESS": b"", "notes.txt": b"", ".5.parquet": b"", "_temporary/6.parquet": b""}
    assert len(folder_with(files | others, monkeypatch).read({}, 0).rows) == 4
    too_many = folder_with(files | {"5.parquet": file_of(["5"])}, monkeypatch)
    for look in (lambda: too_many.read({}, 0), lambda: too_many.missing([SeenRow(0, "1", 0)])):
        with pytest.raises(TableUnreadable, match="it has more than 4 files; delete or archive old ones, or tap"):
            look()


def test_of_large_rows_few_are_held_at_a_time_and_a_plan_gets_no_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "READ_BYTES", 5_000)
    ids = [f"{number:02}{'x' * 1_000}" for number in range(20)]
    folder = folder_with({"a.parquet": file_of(ids), "b.parquet": file_of(["short"])}, monkeypatch)
    position: Mapping[str, Any] = {}
    documents: list[dict[str, str]] = []
    is_complete, reads = False, 0
    while not is_complete:
        read = folder.read(position, 0)
        position, is_complete, reads = read.position, read.is_complete, reads + 1
        assert len(read.rows) <= 6
        documents += [json.loads(row.document) for row in read.rows]
    assert reads >= 4
    assert [document["id"] for document in documents] == [*(id_[:256] for id_ in ids), "short"]
    assert {document["eventTime"] for document in documents} == {"x" * 256}
    assert folder.missing([SeenRow(0, id_, 0) for id_ in ("short", "gone")]).ids == {"gone"}


@pytest.mark.parametrize("column", ["id", "at"])
@pytest.mark.parametrize("use_dictionary", [True, False])
def test_a_column_that_unpacks_to_more_than_its_limit_is_not_read(
    column: str, use_dictionary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_id = "x" * (1 << 20 if column == "id" else 1)
    file = file_of([long_id], use_dictionary=use_dictionary, compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert len(file) < 20_000
    group = pq.ParquetFile(io.BytesIO(file)).metadata.row_group(0)
    (size,) = (group.column(at).total_uncompressed_size for at in (0, 1) if group.column(at).path_in_schema == column)
    looks = [lambda folder: folder.read({}, 0).rows]
    if column == "id":
        looks.append(lambda folder: folder.missing([SeenRow(0, "gone", 0)]).ids)
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size)
    for look in looks:
        assert len(look(folder_with({"a.parquet": file}, monkeypatch))) == 1
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size - 1)
    problem = f"expected up to {size - 1:,} bytes of {column} in a row group, found {size:,} in raw/orders/a.parquet"
    for look in looks:
        with pytest.raises(TableUnreadable, match=problem):
            look(folder_with({"a.parquet": file}, monkeypatch))
