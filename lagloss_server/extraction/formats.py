"""The formats of values and keys: which one a record is in, and its parts by that format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np

from lagloss.errors import UsageError
from lagloss_server.extraction.avro_format import SINGLE_OBJECT, AvroReader, BadAvroSchema
from lagloss_server.extraction.columns import I8, ByteColumn, PartColumn
from lagloss_server.extraction.json_format import JsonReader
from lagloss_server.extraction.protobuf_format import ProtobufReader
from lagloss_server.extraction.protobuf_schema import BadProtobufSchema, ProtobufFile
from lagloss_server.extraction.reasons import Reason
from lagloss_server.extraction.spec import Format
from lagloss_server.extraction.values import ABSENT, UnreadablePart
from lagloss_server.model.expressions import Path
from lagloss_server.net.schema_registry import RegisteredSchema

WIRE_HEADER: Final = 5
"""Bytes of Confluent's wire format before a record: a zero, and the schema's id."""
SINGLE_OBJECT_HEADER: Final = 10
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_JSON_SPACE: Final = b" \n\r\t"
_JSON_OPENINGS: Final = frozenset({b"{", b"[", b'"'})
MAX_INDEXES: Final = 30
MAX_INDEXES_BYTES: Final = 64
"""Of the message's type in Confluent's wire format: no type is nested that deep."""

Reader = Callable[[bytes], Sequence[object] | None]
"""Returns the part at each path of a record, None if it is not of the reader's format."""


class BadTapSchema(UsageError):
    """The schema given for a tap cannot be used: {problem}."""


class Schemas(Protocol):
    """A registry of schemas."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with this id, None if there is none."""


class FormatReader:
    """Reads the parts at some paths of one column, the values or the keys of records.

    Raises:
        BadTapSchema: the schema given cannot be used.
        ProtobufCompilerMissing: it is the text of a .proto, for which there is no compiler.
    """

    def __init__(
        self, paths: Sequence[Path], form: Format, schema: str | None, message: str | None, registry: Schemas | None
    ) -> None:
        self._paths = paths
        self._registry = registry
        self._json = JsonReader(paths).read
        self._registered: dict[int, tuple[Reader, Reason] | None] = {}
        self._unknown: set[int] = set()
        """Schemas that the registry did not know when it was asked for this batch."""
        try:
            self._read = self._reader(form, schema, message)
        except (BadAvroSchema, BadProtobufSchema) as error:
            raise BadTapSchema(problem=error) from error

    def read(self, column: ByteColumn) -> tuple[list[PartColumn], I8]:
        """Return the part at each path, and as [path, row] why it cannot be read: a code of `CODES`, or 0.

        A null has no parts.

        Raises:
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        self._unknown.clear()
        read, absent = self._read, [ABSENT] * len(self._paths)
        parts: list[list[object]] = [[] for _ in self._paths]
        for record in column.rows():  # no more than one record's values in a list: the garbage collector visits lists
            for part, value in zip(parts, absent if record is None else read(record), strict=True):
                part.append(value)
        codes = [[value.code if type(value) is UnreadablePart else 0 for value in part] for part in parts]
        return [PartColumn.of_values(part) for part in parts], np.array(codes, np.int8)

    def _reader(self, form: Format, schema: str | None, message: str | None) -> Callable[[bytes], Sequence[object]]:
        """Return how the parts of a record are read: those of one that is not of the format are `UnreadablePart`."""
        match form:
            case "text":
                return self._read_text
            case "json":
                return self._marked(lambda record: self._json(_without_wire_header(record)), "not_json")
            case "avro" if schema is not None:
                avro = AvroReader(schema, self._paths)
                return self._marked(lambda record: avro.read(record.removeprefix(avro.header)), "not_avro")
            case "protobuf" if schema is not None:
                descriptor = ProtobufFile.given(schema).message(message)
                return self._marked(ProtobufReader(descriptor, self._paths).read, "not_protobuf")
            case "avro":
                return lambda record: self._read_registered(record, "not_avro")
            case "protobuf":
                return lambda record: self._read_registered(record, "not_protobuf")
            case "auto":
                return self._read_any

    def _marked(self, read: Reader, reason: Reason) -> Callable[[bytes], Sequence[object]]:
        unreadable = self._unreadable(reason)

        def read_or_mark(record: bytes) -> Sequence[object]:
            parts = read(record)
            return unreadable if parts is None else parts

        return read_or_mark

    def _unreadable(self, reason: Reason) -> list[object]:
        return [UnreadablePart(reason)] * len(self._paths)

    def _read_any(self, record: bytes) -> Sequence[object]:
        if _looks_like_json(record):
            parts = self._json(record)
            return self._unreadable("not_json") if parts is None else parts
        if _is_wired(record):
            return self._read_registered(record, None)
        if record.startswith(SINGLE_OBJECT) and len(record) >= SINGLE_OBJECT_HEADER:
            return self._unreadable("unknown_schema")
        return [UnreadablePart("not_json") if path else record for path in self._paths]

    def _read_text(self, record: bytes) -> Sequence[object]:
        return [ABSENT if path else record for path in self._paths]

    def _read_registered(self, record: bytes, only: Reason | None) -> Sequence[object]:
        """Read a record in Confluent's wire format; `only`: the reason why those of other formats are unreadable."""
        if not _is_wired(record):
            return self._unreadable(only or "not_json")
        schema_id = int.from_bytes(record[1:WIRE_HEADER])
        registered = self._registered_reader(schema_id)
        if registered is None:
            return self._unreadable("unknown_schema")
        read, reason = registered
        if only is not None and reason != only:
            return self._unreadable(only)
        parts = read(record[WIRE_HEADER:])
        return self._unreadable(reason) if parts is None else parts

    def _registered_reader(self, schema_id: int) -> tuple[Reader, Reason] | None:
        """Return how records of a registered schema are read, None if it is unknown or cannot be used."""
        if schema_id in self._registered:
            return self._registered[schema_id]
        if schema_id in self._unknown:
            return None
        schema = self._registry.schema(schema_id) if self._registry is not None else None
        if schema is None:
            self._unknown.add(schema_id)
            return None
        try:
            self._registered[schema_id] = self._reader_by(schema)
        except (BadAvroSchema, BadProtobufSchema):
            self._registered[schema_id] = None
        return self._registered[schema_id]

    def _reader_by(self, schema: RegisteredSchema) -> tuple[Reader, Reason]:
        match schema.kind:
            case "AVRO":
                return AvroReader(schema.text, self._paths, schema.references).read, "not_avro"
            case "PROTOBUF":
                return _WiredProtobuf(ProtobufFile.registered(schema), self._paths).read, "not_protobuf"
            case "JSON":
                return self._json, "not_json"


class _WiredProtobuf:
    """Messages of a registered file, each after the indexes of its type (Confluent's wire format)."""

    def __init__(self, file: ProtobufFile, paths: Sequence[Path]) -> None:
        self._file = file
        self._paths = paths
        self._readers: dict[tuple[int, ...], ProtobufReader] = {}

    def read(self, body: bytes) -> Sequence[object] | None:
        indexes, size = message_indexes(body[:MAX_INDEXES_BYTES])
        if indexes is None:
            return None
        if indexes not in self._readers:
            try:
                self._readers[indexes] = ProtobufReader(self._file.nested(indexes), self._paths)
            except BadProtobufSchema:
                return None
        return self._readers[indexes].read(body[size:])


def message_indexes(head: Sequence[int]) -> tuple[tuple[int, ...] | None, int]:
    """Return the indexes of a message's type that a body begins with, None if they are invalid; and their bytes.

    A zigzag varint tells how many follow, themselves zigzag varints; 0 stands for the first message alone.
    """
    numbers: list[int] = []
    position = 0
    while not numbers or len(numbers) <= numbers[0]:
        value, shift = 0, 0
        while True:
            if position >= len(head) or shift > 28:
                return None, 0
            value |= (head[position] & 0x7F) << shift
            shift += 7
            position += 1
            if head[position - 1] < 0x80:
                break
        numbers.append(value >> 1 ^ -(value & 1))
        if numbers[-1] < 0 or numbers[0] > MAX_INDEXES:
            return None, 0
    return tuple(numbers[1:]) or (0,), position


def wire_schema_ids(column: ByteColumn) -> list[int]:
    """Return the ids of the schemas that rows in Confluent's wire format name, ascending."""
    return sorted({int.from_bytes(row[1:WIRE_HEADER]) for row in column.rows() if row is not None and _is_wired(row)})


def _is_wired(record: bytes) -> bool:
    return record[:1] == b"\0" and len(record) >= WIRE_HEADER


def _without_wire_header(record: bytes) -> bytes:
    """Return a record without Confluent's header: no JSON begins with a zero byte."""
    return record[WIRE_HEADER:] if _is_wired(record) else record


def _looks_like_json(record: bytes) -> bool:
    if record[:1] in _JSON_OPENINGS:
        return True
    text = record.removeprefix(_BYTE_ORDER_MARK).strip(_JSON_SPACE)
    return text[:1] in _JSON_OPENINGS or text == b"null"
