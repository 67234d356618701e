"""Tapped folders of Parquet on S3: their objects, whole and by version, through boto3.

pyarrow and boto3 are of extras: importing this raises ArrowMissing without the first, a client Boto3Missing without the
second.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from lagloss.errors import BadSetting, LaglossError
from lagloss_server.base.errors import ArrowMissing, TableUnreadable
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.aws import boto3_clients, status_of
from lagloss_server.net.table_urls import refuse_cursor, unreadable, url_of, variable_of

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    raise ArrowMissing from error

SUFFIX: Final = ".parquet"
MAX_FILES: Final = 200_000
"""Of a folder: a look holds all of them, and takes a request for each 1,000."""
WHOLE_BYTES: Final = 4_000_000
"""Of a file that is read by one request, where there are two or more to read footer and columns."""
_HIDDEN: Final = ("_", ".")
"""How names begin that readers of folders leave out, as Spark does: what is being written is below `_temporary`."""
_PATIENCE: Final = {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 3}}


class Folder(NamedTuple):
    """A folder; `prefix` ends with a slash."""

    bucket: str
    prefix: str


@dataclass(frozen=True, slots=True)
class ParquetFile:
    """A version of an object, whole: S3 shows none in part. `modified_ms`: as S3 has it; of an upload in parts, that of
    its beginning."""

    key: str
    etag: str
    size: int
    modified_ms: int


def folder_of(spec: TableSpec) -> Folder:
    """Return the folder of a table: the URL of its database, and below it a level for each of its names. Of a URL
    without a bucket, the first name is the bucket.

    Raises:
        TableUnreadable: the table has a cursor.
        BadSetting: see `url_of`; or the URL has more than bucket and prefix.
    """
    refuse_cursor(spec)
    parts = urlsplit(url_of(spec.database))
    if parts.query or parts.fragment or parts.username:
        problem = "is not s3://BUCKET/PREFIX; credentials, region and endpoint are those of boto3's environment"
        raise BadSetting(variable=variable_of(spec.database), problem=problem)
    bucket, *levels = [name for name in (parts.netloc, *parts.path.split("/"), *spec.parts) if name]
    return Folder(bucket, "".join(f"{level}/" for level in levels))


def s3_client() -> Any:
    """Return a client of S3. Raises Boto3Missing."""
    return boto3_clients(**_PATIENCE)("s3", None)


@contextmanager
def naming(spec: TableSpec) -> Iterator[None]:
    """Raise what goes wrong with a folder as TableUnreadable."""
    try:
        yield
    except TableUnreadable:
        raise
    except LaglossError as error:
        raise unreadable(spec, str(error)) from error
    except (OSError, pa.ArrowException) as error:
        raise unreadable(spec, f"{type(error).__name__}: {error}") from error
    except Exception as error:
        from botocore.exceptions import BotoCoreError, ClientError

        if not isinstance(error, (BotoCoreError, ClientError)):
            raise
        if status_of(error) in (404, 412):
            raise unreadable(spec, f"a file was deleted or overwritten while it was read ({error})") from error
        raise unreadable(spec, str(error)) from error


def list_files(s3: Any, folder: Folder, spec: TableSpec) -> list[ParquetFile]:
    """Return the files of a folder and of those below it. All that were there when this began are among them, since
    listings of S3 are consistent. Raises errors of botocore's, and TableUnreadable for more than `MAX_FILES`."""
    files: list[ParquetFile] = []
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=folder.bucket, Prefix=folder.prefix):
        for item in page.get("Contents", ()):
            key = item["Key"]
            names = key.removeprefix(folder.prefix).split("/")
            if key.endswith(SUFFIX) and not any(name.startswith(_HIDDEN) for name in names):
                modified_ms = int(item["LastModified"].timestamp() * 1_000)
                files.append(ParquetFile(key, item["ETag"], item["Size"], modified_ms))
        if len(files) > MAX_FILES:
            problem = f"it has more than {MAX_FILES:,} files; delete or archive old ones, or tap a folder below"
            raise unreadable(spec, problem)
    return files


def open_file(s3: Any, folder: Folder, file: ParquetFile) -> pq.ParquetFile:
    """Return a version of an object to read from. Raises errors of botocore's and ArrowException."""
    content = _S3Object(s3, folder.bucket, file)
    if file.size <= WHOLE_BYTES:
        return pq.ParquetFile(pa.BufferReader(content.read()))
    return pq.ParquetFile(pa.PythonFile(content, mode="r"), pre_buffer=True)


def check_columns(file: pq.ParquetFile, spec: TableSpec, key: str) -> None:
    """Raise TableUnreadable if a file has no column of the id or of the event time, or of no type that is one."""
    for name, expected, kinds in (
        (spec.id, "text, an integer or a uuid", _ID_KINDS),
        (spec.event_time, "a timestamp, a number or text", _TIME_KINDS),
    ):
        position = file.schema_arrow.get_field_index(name)
        if position < 0:
            raise unreadable(spec, f"{key} has no column {name}; remove the file, or tap another folder")
        kind = file.schema_arrow.field(position).type
        if not any(is_kind(kind) for is_kind in kinds):
            raise unreadable(spec, f"expected {name} to be {expected}, found {kind} in {key}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_uuid(kind: pa.DataType) -> bool:
    storage = getattr(kind, "storage_type", kind)
    return bool(pa.types.is_fixed_size_binary(storage) and storage.byte_width == 16)


_ID_KINDS: Final = (_is_text, pa.types.is_integer, _is_uuid)
_TIME_KINDS: Final = (_is_text, pa.types.is_integer, pa.types.is_floating, pa.types.is_timestamp)


class _S3Object(io.RawIOBase):
    """The bytes of a version of an object, requested as they are read. A version that is gone is an error: bytes of
    another one are never returned."""

    def __init__(self, s3: Any, bucket: str, file: ParquetFile) -> None:
        self._s3, self._bucket, self._file = s3, bucket, file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        end = self._file.size if size is None or size < 0 else min(self._position + size, self._file.size)
        if end <= self._position:
            return b""
        answer = self._s3.get_object(
            Bucket=self._bucket,
            Key=self._file.key,
            Range=f"bytes={self._position}-{end - 1}",
            IfMatch=self._file.etag,
        )
        content: bytes = answer["Body"].read()
        self._position += len(content)
        return content
