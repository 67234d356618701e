"""Avro records: their parts by fastavro, within bounds that its schema is given here.

fastavro recurses without a limit, and counts the items of a block without bytes for as long as the block says: a record
of some schemas could crash the process, or hold it up for days. Its own hook, readers of logical types, is called for
values of types named here, which raise where a bound is passed. Nothing is skipped by a reader's schema, since fastavro
does not notice then where a record is cut off.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro

from lagloss_server.extraction.values import Days, Micros, Millis, Nanos, Uuid, value_at
from lagloss_server.model.expressions import Path

MAX_DEPTH: Final = 64
"""Records within records."""
MAX_EMPTY: Final = 100_000
"""Values of a record that have no bytes, nulls mostly: such items could else go on for hours."""
MAX_LISTED_DEPTH: Final = 5
"""Of paths that are listed: a recursive type has no end."""
SINGLE_OBJECT: Final = b"\xc3\x01"
"""Opens a record in single-object encoding; the fingerprint of its schema follows."""
_SCHEMA_KEYS: Final = frozenset({"type", "fields", "items", "values"})
"""Where a schema holds others."""
_ROOT: Final = "__lagloss_root__"
"""The record of one field that a schema is read in: fastavro parses any other kind of schema anew for each record."""
_NUMBERS: Final[Mapping[str, type[int]]] = {
    "timestamp-millis": Millis, "timestamp-micros": Micros, "timestamp-nanos": Nanos, "local-timestamp-millis": Millis,
    "local-timestamp-micros": Micros, "local-timestamp-nanos": Nanos, "date": Days,
}  # fmt: skip


class BadAvroSchema(ValueError):
    """The text is not a usable Avro schema."""


class _TooMuch(ValueError):
    """A record exceeds a limit."""


@dataclass(slots=True)
class _Work:
    """The work on one record: the records that are open, and the values without bytes so far."""

    depth: int = 0
    empty: int = 0

    def enter(self, *_: object) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _TooMuch

    def leave(self, *_: object) -> None:
        self.depth -= 1

    def count(self, value: object) -> object:
        self.empty += 1
        if self.empty > MAX_EMPTY:
            raise _TooMuch
        return value


def _add_logical_readers() -> None:
    """Register the readers of the types named here, as fastavro has it for a whole process."""
    readers: dict[str, Any] = fastavro.read.LOGICAL_READERS
    for name, number in _NUMBERS.items():
        for primitive in ("int", "long"):
            readers[f"{primitive}-lagloss-{name}"] = lambda value, *_, number=number: number(value)
    readers["fixed-lagloss-uuid"] = lambda value, *_: Uuid(value)
    readers["null-lagloss-enter"] = lambda _, schema, __: schema["work"].enter()
    readers["null-lagloss-leave"] = lambda _, schema, __: schema["work"].leave()
    for type_name in ("null", "fixed"):
        readers[f"{type_name}-lagloss-empty"] = lambda value, schema, _: schema["work"].count(value)


_add_logical_readers()


class AvroReader:
    """Reads the parts at some paths of records of one schema; `references`: schemas that this one names types of, in an
    order in which each can be read. `header`: what opens a record of this schema in single-object encoding. Used by one
    thread.

    Raises:
        BadAvroSchema: why it, or one of these, cannot be used.
    """

    def __init__(self, schema: str, paths: Sequence[Path], references: Mapping[str, str] | None = None) -> None:
        self._paths = paths
        self._work = _Work()
        with _refusing_odd_schemas():
            canonical = fastavro.schema.to_parsing_canonical_form(_parsed(schema, references or {})[0])
            self.header = SINGLE_OBJECT + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
            self._schema, named = _parsed(schema, references or {}, within=_ROOT)
            _Bounds(named, self._work).put_into(self._schema)

    def read(self, record: bytes) -> list[object] | None:
        """Return the part at each path, None if these bytes are not a record of the schema."""
        stream = io.BytesIO(record)
        self._work.depth, self._work.empty = -1, 0  # the outermost record is not the schema's
        try:
            root: Any = fastavro.schemaless_reader(stream, self._schema, None)
        except Exception:  # fastavro raises EOFError, IndexError, UnicodeDecodeError and others where bytes are odd
            return None
        if stream.tell() != len(record):
            return None
        return [value_at(root[_ROOT], path) for path in self._paths]


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of the work on a record, put into its parsed schema. `done`: the types that have them."""

    named: Mapping[str, Any]
    work: _Work
    done: set[int] = field(default_factory=set)

    def put_into(self, schema: Any) -> Any:
        """Return a schema that counts its work, changed in place.

        Branches of a union and symbols of an enum become dicts by position: of a list, fastavro takes negative ones.
        """
        if isinstance(schema, list):  # a null there has the bytes of its position
            branches = [branch if branch == "null" else self.put_into(branch) for branch in schema]
            return {"type": "union"} | dict(enumerate(branches))
        if schema == "null":
            return self._counted("lagloss-empty")
        if isinstance(schema, str):
            if schema in self.named:
                self.put_into(self.named[schema])
            return schema
        if id(schema) not in self.done:
            self.done.add(id(schema))
            self._put_within(schema)
        return schema

    def _put_within(self, schema: Any) -> None:
        match schema["type"]:
            case "record" | "error":
                fields = [{**inner, "type": self.put_into(inner["type"])} for inner in schema["fields"]]
                ends = [{"name": None, "type": self._counted(f"lagloss-{end}")} for end in ("enter", "leave")]
                empty = [{"name": None, "type": self._counted("lagloss-empty")}]
                schema["fields"] = [ends[0], *(fields or empty), ends[1]]  # None is a name that no path has
            case "array":
                schema["items"] = self.put_into(schema["items"])
            case "map":
                schema["values"] = self.put_into(schema["values"])
            case "enum":
                schema["symbols"] = dict(enumerate(schema["symbols"]))
            case "null":
                schema.update(self._counted("lagloss-empty"))
            case "fixed" if schema["size"] <= 0:
                schema.update(logicalType="lagloss-empty", work=self.work)

    def _counted(self, logical_type: str) -> dict[str, Any]:
        return {"type": "null", "logicalType": logical_type, "work": self.work}


def avro_paths(schema: str, references: Mapping[str, str]) -> list[Path]:
    """Return the paths of the plain fields of a schema, through records within records.

    Raises:
        BadAvroSchema: why it cannot be used.
    """
    AvroReader(schema, [], references)  # which no odd schema passes
    parsed, named = _parsed(schema, references)
    return list(_paths_in(parsed, named, ()))


def _paths_in(schema: Any, named: Mapping[str, Any], above: Path) -> Iterator[Path]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _paths_in(branch, named, above)
    elif isinstance(schema, str):
        if schema in named:
            yield from _paths_in(named[schema], named, above)
        elif schema != "null":
            yield above
    elif schema["type"] in ("record", "error"):
        if len(above) < MAX_LISTED_DEPTH:
            for field in schema["fields"]:
                yield from _paths_in(field["type"], named, (*above, field["name"]))
    elif schema["type"] not in ("array", "map"):
        yield above


@contextmanager
def _refusing_odd_schemas() -> Iterator[None]:
    """Raise BadAvroSchema for whatever goes wrong with a schema."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise BadAvroSchema(f"it is not JSON: {error}") from error
    except RecursionError:
        raise BadAvroSchema("it is nested too deeply") from None
    except Exception as error:  # fastavro raises KeyError, TypeError and others
        raise BadAvroSchema(str(error) or type(error).__name__) from error


def _parsed(schema: str, references: Mapping[str, str], within: str | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the schema as fastavro parses it, and the types by their names; `within`: the name of a record that it is
    to be the only field of."""
    named: dict[str, Any] = {}
    for text in references.values():
        fastavro.schema.parse_schema(_plain(json.loads(text)), named)
    plain = _plain(json.loads(schema))
    if within is not None:
        plain = {"type": "record", "name": within, "fields": [{"name": within, "type": plain}]}
    return fastavro.schema.parse_schema(plain, named), named


def _plain(schema: Any) -> Any:
    """Return a schema without what only a reader of another one needs, and with logical types of this module or none.

    Registries hold defaults that do not fit their types, and decimals with impossible scales, which fastavro refuses.
    """
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    kept_fields = {name: value for name, value in schema.items() if name not in ("default", "aliases", "logicalType")}
    inner = kept_fields.get("type")
    if isinstance(inner, dict) and "fields" not in kept_fields and "name" not in kept_fields:
        return _plain(inner)  # a type within a type alone
    logical = schema.get("logicalType")
    is_uuid = logical == "uuid" and inner == "fixed" and kept_fields.get("size") == 16
    if is_uuid or (inner in ("int", "long") and logical in _NUMBERS):
        kept_fields["logicalType"] = f"lagloss-{logical}"
    return {name: _plain(value) if name in _SCHEMA_KEYS else value for name, value in kept_fields.items()}
