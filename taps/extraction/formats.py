"""The formats of values and keys: which one a record is in, and its parts by that format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from lagloss.errors import UsageError
from lagloss_server.model.expressions import Path
from lagloss_server.net.schema_registry import RegisteredSchema
from lagloss_server.packing.compiled import U8, Int, compiled_bare
from taps.extraction import kinds
from taps.extraction.avro_program import AvroProgram, BadAvroSchema
from taps.extraction.avro_walk import find_in_avro
from taps.extraction.columns import I8, I64, ByteColumn, PartColumn, PartTable
from taps.extraction.json_format import JsonFinder
from taps.extraction.protobuf_format import ProtobufFinder
from taps.extraction.protobuf_schema import BadProtobufSchema, ProtobufFile
from taps.extraction.reasons import CODES, Reason
from taps.extraction.spec import Format
from taps.extraction.text import mark_end, space_end

WIRE_HEADER: Final = 5
"""Bytes of Confluent's wire format before a record: a zero, and the schema's id."""
SINGLE_OBJECT_HEADER: Final = 10
_JSON, _TEXT, _WIRE, _SINGLE_OBJECT = range(4)


class BadTapSchema(UsageError):
    """The schema given for a tap cannot be used: {problem}."""


class Schemas(Protocol):
    """A registry of schemas."""

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema with this id, None if there is none."""


Finder = Callable[[ByteColumn, I64, PartTable], I64]
"""Puts the parts of these rows of a column into a table, and returns the rows that are not of its format."""


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
        self._format = form
        self._registry = registry
        self._json = JsonFinder(paths)
        self._whole = paths.index(()) if () in paths else -1
        self._registered: dict[int, tuple[Finder, Reason] | None] = {}
        self._avro: AvroProgram | None = None
        self._protobuf: ProtobufFinder | None = None
        try:
            if schema is not None and form == "avro":
                self._avro = AvroProgram.of(schema, paths)
            elif schema is not None:
                self._protobuf = ProtobufFinder(ProtobufFile.given(schema).message(message), paths)
        except (BadAvroSchema, BadProtobufSchema) as error:
            raise BadTapSchema(problem=error) from error

    def read(self, column: ByteColumn) -> tuple[list[PartColumn], I8]:
        """Return the part at each path, and as [path, row] why it cannot be read: a code of `CODES`, or 0.

        A null has no parts.

        Raises:
            RegistryUnreachable: a schema is wanted that the registry cannot be asked for.
        """
        table = PartTable.of(column.data, len(self._paths), len(column))
        codes = np.zeros(table.kinds.shape, np.int8)
        rows = np.flatnonzero(~column.is_null)
        match self._format:
            case "text":
                self._read_text(column, rows, table)
            case "json":
                starts = _without_wire_header(column, rows)
                self._mark(codes, table, "not_json", self._json.find(starts, rows, table))
            case "avro" if self._avro is not None:
                self._read_avro(column, rows, table, codes, self._avro)
            case "protobuf" if self._protobuf is not None:
                self._mark(codes, table, "not_protobuf", self._protobuf.find(column, rows, table))
            case "auto":
                self._read_any(column, rows, table, codes)
            case form:
                reason: Reason = "not_avro" if form == "avro" else "not_protobuf"
                is_wired = _forms(column)[rows] == _WIRE
                self._mark(codes, table, reason, rows[~is_wired])
                self._read_registered(column, rows[is_wired], table, codes, reason)
        return table.columns(), codes

    def _read_any(self, column: ByteColumn, rows: I64, table: PartTable, codes: I8) -> None:
        forms = _forms(column)[rows]
        json_rows = rows[forms == _JSON]
        if json_rows.size:
            self._mark(codes, table, "not_json", self._json.find(column, json_rows, table))
        if json_rows.size == rows.size:
            return
        texts = rows[forms == _TEXT]
        self._mark(codes, table, "not_json", texts)
        if self._whole >= 0:
            codes[self._whole, texts] = 0
            self._read_text(column, texts, table)
        self._mark(codes, table, "unknown_schema", rows[forms == _SINGLE_OBJECT])
        self._read_registered(column, rows[forms == _WIRE], table, codes, None)

    def _read_text(self, column: ByteColumn, rows: I64, table: PartTable) -> None:
        if self._whole >= 0:
            table.kinds[self._whole, rows] = kinds.BYTES
            table.starts[self._whole, rows] = column.starts[rows]
            table.sizes[self._whole, rows] = (column.ends - column.starts)[rows]

    def _read_avro(self, column: ByteColumn, rows: I64, table: PartTable, codes: I8, made: AvroProgram) -> None:
        """Read bare records, and those that the schema's fingerprint opens."""
        starts = column.starts.copy()
        _skip_header(column.data, starts, column.ends, np.frombuffer(made.header, np.uint8))
        bare = ByteColumn(column.data, starts, column.ends)
        self._mark(codes, table, "not_avro", rows[~find_in_avro(bare, rows, made, table)])

    def _read_registered(self, column: ByteColumn, rows: I64, table: PartTable, codes: I8, only: Reason | None) -> None:
        """Read records in Confluent's wire format. `only`: the reason why those of another format cannot be read."""
        if not rows.size:
            return
        ids = _schema_ids(column, rows)
        body = _shifted(column, rows, WIRE_HEADER)
        for schema_id in np.unique(ids).tolist():
            those = rows[ids == schema_id]
            found = self._finder(schema_id)
            if found is None:
                self._mark(codes, table, "unknown_schema", those)
            elif only is not None and found[1] != only:
                self._mark(codes, table, only, those)
            else:
                find, reason = found
                self._mark(codes, table, reason, find(body, those, table))

    def _finder(self, schema_id: int) -> tuple[Finder, Reason] | None:
        """Return how records of a registered schema are read, None if it is not known or cannot be used."""
        if schema_id in self._registered:
            return self._registered[schema_id]
        schema = self._registry.schema(schema_id) if self._registry is not None else None
        if schema is None:
            return None
        found: tuple[Finder, Reason] | None
        try:
            match schema.kind:
                case "AVRO":
                    found = _avro_finder(AvroProgram.of(schema.text, self._paths, schema.references)), "not_avro"
                case "PROTOBUF":
                    found = _WiredProtobuf(ProtobufFile.registered(schema), self._paths).find, "not_protobuf"
                case "JSON":
                    found = self._json.find, "not_json"
        except (BadAvroSchema, BadProtobufSchema):
            found = None
        self._registered[schema_id] = found
        return found

    def _mark(self, codes: I8, table: PartTable, reason: Reason, rows: I64) -> None:
        codes[:, rows] = CODES[reason]
        table.kinds[:, rows] = kinds.ABSENT


class _WiredProtobuf:
    """Messages of a registered file, each after the indexes of its type (Confluent's wire format)."""

    def __init__(self, file: ProtobufFile, paths: Sequence[Path]) -> None:
        self._file = file
        self._paths = paths
        self._finders: dict[tuple[int, ...], ProtobufFinder | None] = {}

    def find(self, column: ByteColumn, rows: I64, table: PartTable) -> I64:
        by_type: dict[tuple[int, ...] | None, list[int]] = {}
        starts = column.starts.copy()
        for row in rows.tolist():
            indexes, size = message_indexes(column.data[starts[row] : min(starts[row] + 64, column.ends[row])].tolist())
            by_type.setdefault(indexes, []).append(row)
            starts[row] += size
        bodies = ByteColumn(column.data, starts, column.ends)
        broken = [np.zeros(0, np.int64)]
        for indexes, those in by_type.items():
            finder = self._finder(indexes) if indexes is not None else None
            found = np.array(those, np.int64)
            broken.append(found if finder is None else finder.find(bodies, found, table))
        return np.concatenate(broken)

    def _finder(self, indexes: tuple[int, ...]) -> ProtobufFinder | None:
        if indexes not in self._finders:
            try:
                found = ProtobufFinder(self._file.nested(indexes), self._paths)
            except BadProtobufSchema:
                return None
            self._finders[indexes] = found
        return self._finders[indexes]


def message_indexes(head: Sequence[int]) -> tuple[tuple[int, ...] | None, int]:
    """Return the indexes of a message's type that a body begins with, None if they are none; and their bytes.

    A zigzag varint says how many follow, each one, too; 0 stands for the first message alone.
    """
    found: list[int] = []
    at = 0
    while not found or len(found) <= found[0]:
        value, shift = 0, 0
        while True:
            if at >= len(head) or shift > 28:
                return None, 0
            value |= (head[at] & 0x7F) << shift
            shift += 7
            at += 1
            if head[at - 1] < 0x80:
                break
        found.append(value >> 1 ^ -(value & 1))
        if found[-1] < 0 or found[0] > 30:
            return None, 0
    return tuple(found[1:]) or (0,), at


def _avro_finder(made: AvroProgram) -> Finder:
    def find(column: ByteColumn, rows: I64, table: PartTable) -> I64:
        return rows[~find_in_avro(column, rows, made, table)]

    return find


def wire_schema_ids(column: ByteColumn) -> list[int]:
    """Return the ids of the schemas that rows in Confluent's wire format name, ascending."""
    found: list[int] = np.unique(_schema_ids(column, np.flatnonzero(_forms(column) == _WIRE))).tolist()
    return found


def _schema_ids(column: ByteColumn, rows: I64) -> I64:
    head = column.starts[rows][:, None] + np.arange(1, WIRE_HEADER)
    found: I64 = column.data[head] @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    return found


def _shifted(column: ByteColumn, rows: I64, size: int) -> ByteColumn:
    """Return the column with these rows beginning so many bytes later."""
    starts = column.starts.copy()
    starts[rows] += size
    return ByteColumn(column.data, starts, column.ends)


def _without_wire_header(column: ByteColumn, rows: I64) -> ByteColumn:
    """Return the column without Confluent's header where a row has one: no JSON begins with a zero byte."""
    wired = rows[_forms(column)[rows] == _WIRE]
    return _shifted(column, wired, WIRE_HEADER) if wired.size else column


def _forms(column: ByteColumn) -> npt.NDArray[np.int8]:
    """Return what each row looks like by how it begins."""
    forms = np.full(len(column), _TEXT, np.int8)
    _look(column.data, column.starts, column.ends, forms)
    return forms


@compiled_bare
def _look(data: U8, starts: I64, ends: I64, forms: I8) -> None:
    for row in range(starts.size):
        at, end = starts[row], ends[row]
        if at < 0 or at >= end:
            continue
        if data[at] == 0:
            if end - at >= WIRE_HEADER:
                forms[row] = _WIRE
        elif data[at] == 0xC3 and end - at >= SINGLE_OBJECT_HEADER and data[at + 1] == 0x01:
            forms[row] = _SINGLE_OBJECT
        else:
            at = space_end(data, mark_end(data, at, end), end)
            if at < end and (data[at] == 0x7B or data[at] == 0x5B or data[at] == 0x22 or _is_null(data, at, end)):
                forms[row] = _JSON


@compiled_bare
def _is_null(data: U8, at: Int, end: Int) -> bool:
    """Return whether the rest of a text is JSON's null."""
    is_word = end - at >= 4 and data[at] == 0x6E and data[at + 1] == 0x75 and data[at + 2] == data[at + 3] == 0x6C
    return bool(is_word and space_end(data, at + 4, end) == end)


@compiled_bare
def _skip_header(data: U8, starts: I64, ends: I64, header: U8) -> None:
    for row in range(starts.size):
        start = starts[row]
        if start < 0 or ends[row] - start < header.size:
            continue
        same = True
        for step in range(header.size):
            if data[start + step] != header[step]:
                same = False
                break
        if same:
            starts[row] = start + header.size
