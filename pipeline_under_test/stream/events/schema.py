"""The schema of events: Avro that may grow, so that producers and consumers need not be deployed together.

A body is ``C3 01``, the 8-byte CRC-64-AVRO fingerprint of the schema it was *written* with, and the Avro body (single-
object encoding). A reader resolves it to its own schema: fields it does not know are skipped, fields that the writer
did not know get their defaults. Schemas that a reader has never seen it learns from a compacted topic (see
`pipeline_under_test.stream.events.schema`), in which each producer puts its own before its first event.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastavro
import fastavro.utils
import fastavro.validation

from pipeline_under_test.stream.events.table_topic import TableTopic
from pipeline_under_test.stream.topology import schemas_topic

PATH: Final = Path(__file__).parent / "schemas" / "click.avsc"
_MARK: Final = b"\xc3\x01"
_HEAD: Final = len(_MARK) + 8
SAMPLES: Final = 100
"""Number of events made up to try a schema: enough to have each branch of a union."""
WAIT_S: Final = 5.0
"""How long a reader waits for a schema that it has not seen: it is written before the first event that needs it."""
LOOK_EVERY_S: Final = 0.05

Content = Mapping[str, Any]
"""An event's fields, by the schema's names."""


class Unreadable(ValueError):
    """An unreadable body: it is not Avro, or its schema is unknown."""


class NotReadable(ValueError):
    """A schema whose events cannot be read with the packaged one; the message gives the next step."""


class Schema:
    """One version of the schema of events."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        raw = json.loads(text)
        self.parsed: Final[Any] = fastavro.parse_schema(raw)
        canonical = fastavro.schema.to_parsing_canonical_form(raw)
        self.fingerprint: Final = bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))

    def encode(self, content: Content) -> bytes:
        """Return the body of an event.

        Raises:
            ValueError: for content that the schema does not allow.
        """
        try:
            fastavro.validation.validate(dict(content), self.parsed)
        except fastavro.validation.ValidationError as error:
            raise ValueError(f"expected an event as in {self.parsed['name']}: {error}") from error
        out = io.BytesIO()
        out.write(_MARK + self.fingerprint)
        fastavro.schemaless_writer(out, self.parsed, dict(content))
        return out.getvalue()


Lookup = Callable[[bytes], "Schema | None"]
"""Finds the schema with a fingerprint."""


class SchemaReader:
    """Reads bodies written with any version of the schema, as one version of it."""

    def __init__(self, schema: Schema, lookup: Lookup = lambda fingerprint: None) -> None:
        self.schema: Final = schema
        self._lookup = lookup
        self._known = {schema.fingerprint: schema}

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the fields of a body.

        Raises:
            Unreadable: if it is none.
        """
        head, rest = body[:_HEAD], io.BytesIO(body[_HEAD:])
        if len(head) < _HEAD or not head.startswith(_MARK):
            raise Unreadable("not Avro")
        writer = self._writer(head[len(_MARK) :])
        try:
            content = fastavro.schemaless_reader(rest, writer.parsed, self.schema.parsed)
        except Exception as error:  # fastavro raises whatever the bytes lead it to
            raise Unreadable(f"broken: {type(error).__name__}") from error
        if not isinstance(content, dict) or rest.read(1):
            raise Unreadable("broken: more bytes than the schema describes")
        return content

    def _writer(self, fingerprint: bytes) -> Schema:
        if fingerprint not in self._known:
            writer = self._lookup(fingerprint)
            if writer is None:
                raise Unreadable(f"unknown schema {fingerprint.hex()}")
            self._known[fingerprint] = writer
        return self._known[fingerprint]


@cache
def packaged() -> Schema:
    """Return the version of the schema that this code was written for."""
    return Schema(PATH.read_text())


def producers_schema(path: Path | None) -> Schema:
    """Return the schema that col-service writes with: the one in this file, by default the packaged one.

    Raises:
        NotReadable: if the file holds none, or one whose events older readers cannot read: they would be dead.
    """
    if path is None:
        return packaged()
    try:
        schema = Schema(path.read_text())
        samples = list(fastavro.utils.generate_many(schema.parsed, SAMPLES))
    except (OSError, ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
        raise NotReadable(f"expected an Avro schema in {path}: {error}") from error
    reader = SchemaReader(packaged(), lambda fingerprint: schema)
    try:
        for sample in samples:
            reader.decode(schema.encode(sample))
    except ValueError as error:
        problem = f"expected a schema whose events {PATH.name} can read, found {path}: {error.__cause__ or error}"
        raise NotReadable(
            f"{problem}; only add fields, each with a default, and leave the other fields unchanged"
        ) from error
    return schema


class SchemaTopic:
    """Finds schemas by fingerprint, and makes one known."""

    def __init__(self, bootstrap: str, pipeline: str) -> None:
        self._table = TableTopic(bootstrap, schemas_topic(pipeline))
        self._schemas: dict[bytes, Schema] = {}

    def find(self, fingerprint: bytes) -> Schema | None:
        """Return the schema with this fingerprint; None if it was not published within WAIT_S."""
        deadline = time.monotonic() + WAIT_S
        while fingerprint not in self._schemas:
            for _, text in self._table.changes():
                if text is not None:
                    schema = Schema(text.decode())
                    self._schemas[schema.fingerprint] = schema
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_EVERY_S)
        return self._schemas.get(fingerprint)

    def publish(self, schema: Schema) -> None:
        """Publish a schema. Call it before the first event that is written with it."""
        self._table.write(schema.fingerprint.hex(), schema.text.encode())


def reader_of(bootstrap: str, pipeline: str) -> SchemaReader:
    """Read events of this pipeline as the packaged schema has them, whatever schema they were written with."""
    return SchemaReader(packaged(), SchemaTopic(bootstrap, pipeline).find)
