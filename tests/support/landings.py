"""Folders of Parquet on S3, and those who write into them."""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import variable_of
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from taps.tables.parquet import ParquetFolder
from tests.support.tapped_tables import Reading

LANDING: Final = "landing"
FOLDER: Final = "landing/raw/orders"
HOUR_MS: Final = 3_600_000


@dataclass
class Upload:
    """Of a file in parts, not complete yet."""

    name: str
    id: str
    etag: str


@dataclass
class Landing:
    """A folder of a bucket, as those who write into it see it."""

    s3: Any
    bucket: str
    spec: TableSpec

    def put(self, name: str, rows: pa.Table | bytes, folder: str = FOLDER) -> None:
        self.s3.put_object(Bucket=self.bucket, Key=f"{folder}/{name}", Body=self._content(rows))

    def delete(self, name: str) -> None:
        self.s3.delete_object(Bucket=self.bucket, Key=f"{FOLDER}/{name}")

    def begin(self, name: str, rows: pa.Table) -> Upload:
        """Upload the only part of a file."""
        key = {"Bucket": self.bucket, "Key": f"{FOLDER}/{name}"}
        upload = self.s3.create_multipart_upload(**key)["UploadId"]
        part = self.s3.upload_part(**key, UploadId=upload, PartNumber=1, Body=self._content(rows))
        return Upload(name, upload, part["ETag"])

    def complete(self, upload: Upload) -> None:
        key = {"Bucket": self.bucket, "Key": f"{FOLDER}/{upload.name}"}
        parts = {"Parts": [{"PartNumber": 1, "ETag": upload.etag}]}
        self.s3.complete_multipart_upload(**key, UploadId=upload.id, MultipartUpload=parts)

    def _content(self, rows: pa.Table | bytes) -> bytes:
        if isinstance(rows, bytes):
            return rows
        content = io.BytesIO()
        pq.write_table(rows, content, row_group_size=4)
        return content.getvalue()

    def reading(self, limit: int = 20_000) -> Reading:
        return Reading(ParquetFolder(self.spec, limit), time.time_ns() // 1_000_000 - HOUR_MS)


@contextmanager
def landing_on(emulator: EmbeddedLocalStack, patch: pytest.MonkeyPatch) -> Iterator[Landing]:
    """A folder in a bucket of its own, named by the environment."""
    for name, value in emulator.variables.items():
        patch.setenv(name, value)
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    patch.setenv(variable_of(LANDING), f"s3://{bucket}/landing")
    with closing(boto3.client("s3")) as s3:
        s3.create_bucket(Bucket=bucket)
        yield Landing(s3, bucket, TableSpec(database=LANDING, table="raw.orders", id="id", event_time="at"))
