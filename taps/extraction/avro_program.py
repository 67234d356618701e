"""Avro schemas as programs: arrays that a compiled walk goes through, made for the paths that are asked for.

fastavro judges and resolves the schema. A type on the way of a path becomes nodes of its own; all others are shared, so
a recursive type is a cycle of nodes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
import numpy as np

from lagloss_server.model.expressions import Path
from lagloss_server.packing.compiled import U8
from taps.extraction import kinds
from taps.extraction.columns import I64
from taps.extraction.trie import PathNode

NULL, BOOLEAN, LONG, FLOAT, DOUBLE, STRING, FIXED, ENUM, RECORD, ARRAY, MAP, UNION = range(12)
"""What a node reads. STRING is `bytes`, too: its kind says which."""
_LOGICAL: Final = {
    "timestamp-millis": kinds.MILLIS,
    "timestamp-micros": kinds.MICROS,
    "timestamp-nanos": kinds.NANOS,
    "local-timestamp-millis": kinds.MILLIS,
    "local-timestamp-micros": kinds.MICROS,
    "local-timestamp-nanos": kinds.NANOS,
    "date": kinds.DATE,
}
MAX_NODES: Final = 100_000
MAX_LISTED_DEPTH: Final = 5
"""Of paths that are listed: a recursive type has no end."""
_SINGLE_OBJECT: Final = b"\xc3\x01"
_TYPES_AT: Final = frozenset({"type", "fields", "items", "values"})
"""Where a schema holds others."""
_NO_PATH: Final = PathNode()


class BadAvroSchema(ValueError):
    """The text is no schema that records can be read by."""


@dataclass(frozen=True, slots=True)
class AvroProgram:
    """A schema as nodes by number, 0 the root. Of each: what it reads (`ops`), the kind of its value, the part that it
    is (-1: none) and two operands.

    Operands: of FIXED the size; of ENUM the number of symbols and the first's row in `symbols`; of RECORD and UNION how
    many `links` it has, and the first's position; of ARRAY and MAP the node of any item, and the first row in `picks`
    of items on paths: (node, next row or -1, index or -1, name's start, name's size, where in `links` the parts at and
    below it are, how many).
    `header`: what opens a record of this schema in single-object encoding.
    """

    ops: I64
    kinds: I64
    parts: I64
    first: I64
    second: I64
    links: I64
    picks: I64
    symbols: I64
    text: U8
    header: bytes

    @classmethod
    def of(cls, schema: str, paths: Sequence[Path], references: Mapping[str, str] | None = None) -> AvroProgram:
        """Make the program; `references`: schemas that this one names types of, in an order in which each can be read.

        Raises:
            BadAvroSchema: why it, or one of these, cannot be used.
        """
        named: dict[str, Any] = {}
        try:
            for text in (references or {}).values():
                fastavro.schema.parse_schema(_load(text), named)
            parsed = fastavro.schema.parse_schema(_load(schema), named)
            canonical = fastavro.schema.to_parsing_canonical_form(parsed)
            header = _SINGLE_OBJECT + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))
            builder = _Builder(named)
            builder.add(parsed, PathNode.of(paths))
        except BadAvroSchema:
            raise
        except RecursionError:
            raise BadAvroSchema("it is nested too deep") from None
        except Exception as error:  # fastavro raises KeyError, TypeError and others where a schema is odd
            raise BadAvroSchema(str(error) or type(error).__name__) from error
        return builder.program(header)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (
            self.ops, self.kinds, self.parts, self.first, self.second, self.links, self.picks, self.symbols, self.text,
        )  # fmt: skip


def avro_paths(schema: str, references: Mapping[str, str]) -> list[Path]:
    """Return the paths of the plain fields of a schema, through records within records.

    Raises:
        BadAvroSchema: why it cannot be used.
    """
    AvroProgram.of(schema, [], references)
    named: dict[str, Any] = {}
    for text in references.values():
        fastavro.schema.parse_schema(_load(text), named)
    return list(_paths_in(fastavro.schema.parse_schema(_load(schema), named), named, ()))


def _paths_in(schema: Any, named: Mapping[str, Any], above: Path) -> Iterator[Path]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _paths_in(branch, named, above)
    elif isinstance(schema, str):
        if schema in named:
            yield from _paths_in(named[schema], named, above)
        elif schema != "null":
            yield above
    elif isinstance(schema["type"], dict | list):
        yield from _paths_in(schema["type"], named, above)
    elif schema["type"] in ("record", "error"):
        if len(above) < MAX_LISTED_DEPTH:
            for each in schema["fields"]:
                yield from _paths_in(each["type"], named, (*above, each["name"]))
    elif schema["type"] not in ("array", "map"):
        yield above


def _load(text: str) -> Any:
    """Return of a schema's JSON what tells how records are written."""
    try:
        return _plain(json.loads(text))
    except ValueError as error:
        raise BadAvroSchema(f"it is no JSON: {error}") from error


def _plain(schema: Any) -> Any:
    """Return a schema without what only a reader of another one needs, or what says nothing of bytes: registries hold
    defaults that do not fit their types, and decimals with impossible scales, which fastavro refuses."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name not in ("default", "aliases")}
    if kept.get("logicalType") == "decimal":
        del kept["logicalType"]
    inner = kept.get("type")
    if isinstance(inner, dict) and "fields" not in kept and "name" not in kept:
        return _plain(inner)  # a type within a type alone
    return {name: _plain(value) if name in _TYPES_AT else value for name, value in kept.items()}


@dataclass(slots=True)
class _Builder:
    """The nodes so far."""

    named: Mapping[str, Any]
    nodes: list[list[int]] = field(default_factory=list)
    links: list[int] = field(default_factory=list)
    picks: list[list[int]] = field(default_factory=list)
    symbols: list[tuple[int, int]] = field(default_factory=list)
    text: bytearray = field(default_factory=bytearray)
    shared: dict[str, int] = field(default_factory=dict)
    """Nodes without a path, by the type's name."""

    def program(self, header: bytes) -> AvroProgram:
        ops, node_kinds, parts, first, second = np.array(self.nodes, np.int64).T.copy()
        picks = np.array(self.picks, np.int64).reshape(-1, 7)
        symbols = np.array(self.symbols, np.int64).reshape(-1, 2)
        text = np.frombuffer(bytes(self.text), np.uint8)
        links = np.array(self.links, np.int64)
        return AvroProgram(ops, node_kinds, parts, first, second, links, picks, symbols, text, header)

    def add(self, schema: Any, path: PathNode) -> int:
        """Add the nodes of a type and return its number."""
        if isinstance(schema, list):
            return self._union(schema, path)
        if isinstance(schema, str):
            if schema in self.named:
                return self._named(schema, self.named[schema], path)
            return self._leaf(schema, {}, path)
        if isinstance(schema["type"], (dict, list)):
            return self.add(schema["type"], path)
        if "name" in schema and schema["type"] in ("record", "error", "enum", "fixed"):
            return self._named(schema["name"], schema, path)
        return self._leaf(schema["type"], schema, path)

    def _node(self, op: int, kind: int, path: PathNode, first: int = 0, second: int = 0) -> int:
        if len(self.nodes) == MAX_NODES:
            raise BadAvroSchema(f"it has more than {MAX_NODES:,} parts")
        self.nodes.append([op, kind, path.part, first, second])
        return len(self.nodes) - 1

    def _named(self, name: str, schema: Any, path: PathNode) -> int:
        is_shared = path.part < 0 and not path.children
        if is_shared and name in self.shared:
            return self.shared[name]
        if schema["type"] == "fixed":
            if not 0 <= schema["size"] < 1 << 31:  # the walk adds it to offsets of 64 bits
                raise BadAvroSchema(f"expected 0 to 2^31-1 as the size of {name}, found {schema['size']}")
            kind = kinds.UUID if schema.get("logicalType") == "uuid" and schema["size"] == 16 else kinds.BYTES
            return self._node(FIXED, kind, path, schema["size"])
        if schema["type"] == "enum":
            node = self._node(ENUM, kinds.TEXT, path, len(schema["symbols"]), len(self.symbols))
            for symbol in schema["symbols"]:
                self.symbols.append((len(self.text), len(symbol.encode())))
                self.text += symbol.encode()
            return node
        node = self._node(RECORD, kinds.OTHER, path)
        if is_shared:
            self.shared[name] = node
        fields = schema["fields"]
        below = [self.add(each["type"], path.children.get(each["name"], _NO_PATH)) for each in fields]
        self.nodes[node][3:] = len(below), self._link(below)
        return node

    def _union(self, branches: list[Any], path: PathNode) -> int:
        node = self._node(UNION, kinds.OTHER, PathNode())
        below = [self.add(branch, path) for branch in branches]
        self.nodes[node][3:] = len(below), self._link(below)
        return node

    def _link(self, below: list[int]) -> int:
        self.links += below
        return len(self.links) - len(below)

    def _leaf(self, name: str, schema: Mapping[str, Any], path: PathNode) -> int:
        match name:
            case "null":
                return self._node(NULL, kinds.NULL, path)
            case "boolean":
                return self._node(BOOLEAN, kinds.BOOL, path)
            case "int" | "long":
                return self._node(LONG, _LOGICAL.get(schema.get("logicalType", ""), kinds.INT), path)
            case "float":
                return self._node(FLOAT, kinds.FLOAT, path)
            case "double":
                return self._node(DOUBLE, kinds.FLOAT, path)
            case "string":
                return self._node(STRING, kinds.TEXT, path)
            case "bytes":
                return self._node(STRING, kinds.BYTES, path)
            case "array" | "map":
                return self._container(name, schema, path)
        raise BadAvroSchema(f"it names the unknown type {name}")

    def _container(self, name: str, schema: Mapping[str, Any], path: PathNode) -> int:
        node = self._node(ARRAY if name == "array" else MAP, kinds.OTHER, path)
        items = schema["items" if name == "array" else "values"]
        picked = -1
        for step, below in path.children.items():
            if isinstance(step, int) == (name == "array"):
                target = self.add(items, below)
                label = step.encode() if isinstance(step, str) else b""
                index = step if isinstance(step, int) else -1
                parts = below.parts()
                name_at, parts_at = len(self.text), self._link(parts)
                self.picks.append([target, picked, index, name_at, len(label), parts_at, len(parts)])
                self.text += label
                picked = len(self.picks) - 1
        self.nodes[node][3:] = self.add(items, _NO_PATH), picked
        return node
