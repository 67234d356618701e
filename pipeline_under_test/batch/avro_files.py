"""Avro container files of events: the writer's schema is in the file, and is resolved to the reader's.

What the writer knows of the bytes (their number and digest) goes with the object as metadata, so that a file which was
cut short or changed on its way is found out before a row of it is written.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro

from pipeline_under_test.batch.events import ScoreEvent

CODEC: Final = "deflate"
NAME: Final = "scores.Event"
_FOLDER: Final = Path(__file__).with_name("schemas")


class BadFile(ValueError):
    """A file that cannot be imported, however often it is retried; the class name is the reason."""


class EmptyFile(BadFile):
    """Expected an Avro file, found an empty file."""


class TruncatedFile(BadFile):
    """Expected all stored bytes, found fewer."""


class CorruptFile(BadFile):
    """Expected the stored bytes as valid Avro, found different or invalid ones."""


class OverwrittenFile(BadFile):
    """Expected the announced version of the object, found a different one."""


class UnknownSchema(BadFile):
    """Expected a schema that the reader's schema can resolve, found an incompatible one."""


@cache
def schema(version: int) -> Any:
    """Return a version of the schema of events."""
    return fastavro.parse_schema(json.loads((_FOLDER / f"event_v{version}.avsc").read_text()))


def encode(events: Iterable[ScoreEvent], version: int = 2) -> bytes:
    """Return a file of events, written with a version of the schema; fields it does not have are left out."""
    out = io.BytesIO()
    fastavro.writer(out, schema(version), map(asdict, events), codec=CODEC)
    return out.getvalue()


def encode_receipts(ids: Iterable[str]) -> bytes:
    """Return a file of records of another schema, which no version can be resolved from."""
    out = io.BytesIO()
    fields = [{"name": "receipt", "type": "string"}]
    other = fastavro.parse_schema({"type": "record", "name": "Receipt", "namespace": "scores", "fields": fields})
    fastavro.writer(out, other, ({"receipt": name} for name in ids), codec=CODEC)
    return out.getvalue()


def decode(body: bytes, version: int = 2) -> list[ScoreEvent]:
    """Return the events in a file, as a version of the schema reads them.

    Raises:
        BadFile: one of its kinds.
    """
    if not body:
        raise EmptyFile("no bytes")
    try:
        reader: Any = fastavro.reader(io.BytesIO(body), schema(version))
        named, rows = reader.writer_schema, list(reader)
    except fastavro.read.SchemaResolutionError as error:
        raise UnknownSchema(str(error)) from error
    except Exception as error:  # fastavro raises whatever the bytes lead it to
        raise CorruptFile(f"{type(error).__name__}: {error}") from error
    if named["name"] != NAME:
        raise UnknownSchema(f"expected {NAME}, found {named['name']}")
    return [ScoreEvent(**row) for row in rows]


def metadata_of(body: bytes) -> dict[str, str]:
    """Return the metadata that an object is stored with."""
    return {"bytes": str(len(body)), "sha256": hashlib.sha256(body).hexdigest()}


def check(body: bytes, metadata: Mapping[str, str]) -> None:
    """Compare a body with its metadata; an object without any passes.

    Raises:
        BadFile: one of its kinds.
    """
    if not body:
        raise EmptyFile("no bytes")
    if "bytes" in metadata and len(body) < int(metadata["bytes"]):
        raise TruncatedFile(f"expected {metadata['bytes']} bytes, found {len(body)}")
    if "sha256" in metadata and hashlib.sha256(body).hexdigest() != metadata["sha256"]:
        raise CorruptFile("expected the stored bytes, found different ones")
