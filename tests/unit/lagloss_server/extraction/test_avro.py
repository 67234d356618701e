"""Avro records: what is read of them against a slow reader in plain Python, and that against fastavro."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lagloss_server.extraction import kinds
from lagloss_server.extraction.avro_format import MAX_DEPTH, MAX_EMPTY, AvroReader, BadAvroSchema, avro_paths
from lagloss_server.extraction.values import ABSENT
from lagloss_server.model.expressions import Path
from tests.unit.lagloss_server.extraction.test_json import read_parts

_LOGICAL = {"timestamp-millis": kinds.MILLIS, "timestamp-micros": kinds.MICROS, "date": kinds.DATE}


class Broken(Exception):
    """The bytes are no record."""


class Overlong(Exception):
    """A number has more than 64 bits, which fastavro does not notice: what it makes of them is not specified."""


class SlowReader:
    """The oracle: one record, read byte by byte into (kind, value) pairs, dicts for records and maps, and lists.

    Like fastavro, it takes any byte but 0 for true, and ignores the size in bytes that a block may have.
    """

    def __init__(self, data: bytes, named: dict[str, Any]) -> None:
        self.data, self.named = io.BytesIO(data), named
        self.values = 0

    def take(self, count: int) -> bytes:
        found = self.data.read(count) if count >= 0 else b""
        if count < 0 or len(found) < count:
            raise Broken
        return found

    def long(self) -> int:
        raw = 0
        for place in range(10):
            (byte,) = self.take(1)
            raw |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if raw >= 2**64:
                    raise Overlong
                return (raw >> 1) ^ -(raw & 1)
        raise Overlong

    def text(self) -> bytes:
        found = self.take(self.long())
        try:
            found.decode()
        except UnicodeDecodeError:
            raise Broken from None
        return found

    def blocks(self) -> Any:
        while True:
            count = self.long()
            if count == 0:
                return
            if count < 0:
                count = -count
                self.long()
            yield from range(count)

    def count_empty(self) -> None:
        self.values += 1
        if self.values > MAX_EMPTY:
            raise Broken

    def read(self, schema: Any, depth: int = 0) -> Any:
        if isinstance(schema, str) and schema in self.named:
            schema = self.named[schema]
        if isinstance(schema, list):
            index = self.long()
            if not 0 <= index < len(schema):
                raise Broken
            return self.read(schema[index], depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        logical = "" if isinstance(schema, str) else schema.get("logicalType", "")
        if kind == "record" and depth == MAX_DEPTH:
            raise Broken
        match kind:
            case "null":
                self.count_empty()
                return kinds.NULL, None
            case "boolean":
                (byte,) = self.take(1)
                return kinds.BOOL, int(byte > 0)
            case "int" | "long":
                return _LOGICAL.get(logical, kinds.INT), self.long()
            case "float":
                return kinds.FLOAT, struct.unpack("<f", self.take(4))[0]
            case "double":
                return kinds.FLOAT, struct.unpack("<d", self.take(8))[0]
            case "bytes":
                return kinds.BYTES, self.take(self.long())
            case "string":
                return kinds.TEXT, self.text()
            case "fixed":
                is_uuid = logical == "uuid" and schema["size"] == 16
                return kinds.UUID if is_uuid else kinds.BYTES, self.take(schema["size"])
            case "enum":
                index = self.long()
                if not 0 <= index < len(schema["symbols"]):
                    raise Broken
                return kinds.TEXT, schema["symbols"][index].encode()
            case "record":
                return {field["name"]: self.read(field["type"], depth + 1) for field in schema["fields"]}
            case "array":
                return [self.read(schema["items"], depth) for _ in self.blocks()]
            case "map":
                return {self.text().decode(): self.read(schema["values"], depth) for _ in self.blocks()}
        return self.read(kind, depth)


def read_slowly(schema: Any, data: bytes) -> Any:
    named: dict[str, Any] = {}
    parsed = fastavro.schema.parse_schema(schema, named)
    reader = SlowReader(data, named)
    try:
        found = reader.read(parsed)
    except Broken:
        return None
    return found if reader.data.tell() == len(data) else None


def look(document: Any, path: Path) -> Any:
    for step in path:
        if not isinstance(document, dict if isinstance(step, str) else list):
            return kinds.ABSENT, None
        try:
            document = document[step]
        except (KeyError, IndexError):
            return kinds.ABSENT, None
    return (kinds.OTHER, None) if isinstance(document, dict | list) else document


def check(schema: Any, paths: list[Path], records: list[bytes]) -> int:
    """Compare both; return how many of the records were good."""
    read = read_parts(AvroReader(json.dumps(schema), paths).read, records)
    for record, parts in zip(records, read, strict=True):
        try:
            document = read_slowly(schema, record)
        except Overlong:
            continue
        expected = None if document is None else [look(document, path) for path in paths]
        assert repr(parts) == repr(expected), record  # NaN is equal to itself here
    return sum(parts is not None for parts in read)


NAMES = ("id", "a", "b", "at")
leaves = st.sampled_from(
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string",
     {"type": "long", "logicalType": "timestamp-millis"}, {"type": "long", "logicalType": "timestamp-micros"},
     {"type": "int", "logicalType": "date"}, {"type": "string", "logicalType": "uuid"}]
)  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn, depth: int = 0) -> Any:
    """A schema without names, which `name_types` gives it."""
    kind = draw(
        st.sampled_from(["leaf", "leaf", "record", "array", "map", "union", "enum", "fixed"] if depth < 4 else ["leaf"])
    )
    inner = schemas(depth + 1)
    match kind:
        case "record":
            names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
            return {"type": "record", "fields": [{"name": name, "type": draw(inner)} for name in names]}
        case "array":
            return {"type": "array", "items": draw(inner)}
        case "map":
            return {"type": "map", "values": draw(inner)}
        case "union":
            return draw(st.sampled_from([["null", "string"], ["long", "null", {"type": "array", "items": "string"}]]))
        case "enum":
            return {"type": "enum", "symbols": ["RED", "GREEN", "BLUE"]}
        case "fixed":
            return draw(
                st.sampled_from([{"type": "fixed", "size": 16, "logicalType": "uuid"}, {"type": "fixed", "size": 3}])
            )
    return draw(leaves)


def name_types(schema: Any, number: list[int]) -> Any:
    if isinstance(schema, list):
        return [name_types(each, number) for each in schema]
    if isinstance(schema, str):
        return schema
    number[0] += 1
    named = {"name": f"T{number[0]}"} if schema["type"] in ("record", "enum", "fixed") else {}
    changed = {key: name_types(schema[key], number) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        changed["fields"] = [{**each, "type": name_types(each["type"], number)} for each in schema["fields"]]
    return {**schema, **named, **changed}


def values(schema: Any) -> st.SearchStrategy[bytes]:
    """Encodings of values of a schema, in the plainest form and in others that Avro allows."""
    if isinstance(schema, list):
        return st.one_of(
            *(values(branch).map(lambda body, at=at: zigzag(at) + body) for at, branch in enumerate(schema))
        )
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case "null":
            return st.just(b"")
        case "boolean":
            return st.sampled_from([b"\0", b"\1"])
        case "int" | "long":
            return st.integers(-(2**63), 2**63 - 1).map(zigzag)
        case "float":
            return st.binary(min_size=4, max_size=4).filter(lambda raw: raw[2:] < b"\x80\x7f")
        case "double":
            return st.floats(allow_nan=False).map(lambda real: struct.pack("<d", real))
        case "bytes":
            return st.binary(max_size=20).map(sized)
        case "string":
            return st.text(max_size=20).map(lambda text: sized(text.encode("utf-8", "replace")))
        case "fixed":
            return st.binary(min_size=schema["size"], max_size=schema["size"])
        case "enum":
            return st.integers(0, 2).map(zigzag)
        case "record":
            return st.tuples(*(values(each["type"]) for each in schema["fields"])).map(b"".join)
        case "array":
            return st.lists(st.lists(values(schema["items"]), min_size=1, max_size=3), max_size=2).map(blocks)
    keys = st.sampled_from(NAMES).map(lambda name: sized(name.encode()))
    items = st.tuples(keys, values(schema["values"])).map(b"".join)
    return st.lists(st.lists(items, min_size=1, max_size=3), max_size=2).map(blocks)


def zigzag(number: int) -> bytes:
    raw = (number << 1 ^ number >> 63) & (2**64 - 1)
    out = bytearray()
    while raw > 0x7F:
        out.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*out, raw])


def sized(raw: bytes) -> bytes:
    return zigzag(len(raw)) + raw


def blocks(groups: list[list[bytes]]) -> bytes:
    """The first block with its size in bytes, as writers may do, the others without."""
    out = b""
    for at, items in enumerate(groups):
        body = b"".join(items)
        out += (zigzag(len(items)) if at else zigzag(-len(items)) + zigzag(len(body))) + body
    return out + b"\0"


steps = st.sampled_from([*NAMES, *NAMES, 0, 1, 2, "zz"])
some_paths = st.lists(st.lists(steps, max_size=3).map(tuple), min_size=1, max_size=5, unique=True)


@given(st.data(), schemas(), some_paths)
@settings(max_examples=150)
def test_parts_are_those_that_a_slow_reader_finds_whole_or_broken(
    data: st.DataObject, bare: Any, paths: list[Path]
) -> None:
    schema = name_types(bare, [0])
    records = data.draw(st.lists(values(schema), min_size=1, max_size=4))
    broken = []
    for record in records:
        at = data.draw(st.integers(0, len(record)))
        broken += [record[:at], record + b"\0", record[:at] + data.draw(st.binary(max_size=3)) + record[at + 1 :]]
    check(schema, paths, [*records, *broken, data.draw(st.binary(max_size=30))])


@given(st.data(), schemas())
@settings(max_examples=50)
def test_the_slow_reader_takes_what_fastavro_takes(data: st.DataObject, bare: Any) -> None:
    schema = name_types(bare, [0])
    record = data.draw(values(schema))
    if "date" not in json.dumps(schema) and "timestamp" not in json.dumps(schema) and "uuid" not in json.dumps(schema):
        read = io.BytesIO(record)
        fastavro.schemaless_reader(read, fastavro.parse_schema(schema), None)  # which keeps no (kind, value) pairs
        assert read.tell() == len(record)
    assert read_slowly(schema, record) is not None


ORDER = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": {"type": "fixed", "name": "Uuid", "size": 16, "logicalType": "uuid"}},
        {"name": "parent", "type": ["null", "Order"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "again", "type": ["Uuid", "null"]},
    ],
}  # fmt: skip


def order(parent: bytes, tags: bytes = b"\0") -> bytes:
    return bytes(range(16)) + parent + b"\2" + tags + b"\2"


def test_a_recursive_type_is_read_along_a_path_and_beside_it() -> None:
    record = order(b"\2" + order(b"\2" + order(b"\0")))
    paths: list[Path] = [("parent", "parent", "state"), ("parent", "id"), ("state",), ("parent",), ("again",)]
    assert check(ORDER, paths, [record, order(b"\0")]) == 2


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH, 200_000])
def test_endless_nesting_is_no_record_and_no_crash(depth: int) -> None:
    opening, closing = bytes(range(16)) + b"\2", b"\2\0\2"
    record = opening * depth + order(b"\0") + closing * depth
    reader = AvroReader(json.dumps(ORDER), [("id",)])
    assert (reader.read(record) is not None) == (depth == MAX_DEPTH - 1)  # and the record within
    assert reader.read(order(b"\0")) == [bytes(range(16))]


def test_what_a_schema_says_beyond_its_type_is_ignored() -> None:
    odd = {
        "type": "string",
        "name": "R",
        "items": 7,
        "values": ["a"],
        "symbols": 1,
        "size": -1,
        "fields": [],
        "work": 0,
    }
    inner = {"type": "record", "name": "R", "fields": [{"name": "again", "type": ["null", "R"]}]}
    schema = {"type": "record", "name": "Outer", "fields": [{"name": "id", "type": odd}, {"name": "r", "type": inner}]}
    reader = AvroReader(json.dumps(schema), [("id",)])
    assert reader.read(b"\2a" + b"\2" * 10 + b"\0") == ["a"]
    assert reader.read(b"\2a" + b"\2" * 100_000 + b"\0") is None


def test_a_type_without_an_end_has_no_records() -> None:
    endless = {"type": "record", "name": "Endless", "fields": [{"name": "again", "type": "Endless"}]}
    assert AvroReader(json.dumps(endless), [()]).read(b"") is None


def test_the_last_of_a_maps_equal_keys_counts() -> None:
    tags = zigzag(2) + sized(b"a") + sized(b"first") + sized(b"a") + sized(b"last") + b"\0"
    assert AvroReader(json.dumps(ORDER), [("tags", "a")]).read(order(b"\0", tags)) == ["last"]
    assert check(ORDER, [("tags", "a")], [order(b"\0", tags)]) == 1


NOTHING = {"type": "record", "name": "Nothing", "fields": []}
NULLS = {"type": "record", "name": "Nulls", "fields": [{"name": "n", "type": "null"}, {"name": "m", "type": "null"}]}
NO_BYTES = {"type": "fixed", "name": "NoBytes", "size": 0}


@pytest.mark.parametrize("items", ["null", {"type": "null"}, NOTHING, NULLS, NO_BYTES])
def test_items_without_bytes_end_the_work(items: Any) -> None:
    schema = {"type": "array", "items": {"type": "array", "items": items}}
    reader = AvroReader(json.dumps(schema), [()])
    for count in (2**40, -(2**40), 2**63 - 1):
        size = zigzag(1) if count < 0 else b""
        assert reader.read(zigzag(1) + zigzag(count) + size + b"\0\0") is None
    inner = zigzag(MAX_EMPTY // 2) + b"\0"
    assert reader.read(zigzag(1) + inner + b"\0") is not None
    assert reader.read(zigzag(20_000) + inner * 20_000 + b"\0") is None


def test_few_items_without_bytes_are_items() -> None:
    nulls = {"type": "array", "items": "null"}
    reader = AvroReader(json.dumps(nulls), [(), (2,), (3,)])
    assert reader.read(zigzag(3) + b"\0") == [[None] * 3, None, ABSENT]
    assert reader.read(zigzag(MAX_EMPTY) + b"\0") is not None
    assert reader.read(zigzag(MAX_EMPTY + 1) + b"\0") is None


def test_types_of_types_without_bytes_end_the_work() -> None:
    types = {"0": json.dumps(NULLS)}
    for depth in range(1, 41):
        below = "Nulls" if depth == 1 else f"R{depth - 1}"
        fields = [{"name": name, "type": below} for name in "ab"]
        types[str(depth)] = json.dumps({"type": "record", "name": f"R{depth}", "fields": fields})
    assert AvroReader(types.pop("40"), [()], types).read(b"") is None


@pytest.mark.parametrize("schema", [["string", "null"], {"type": "enum", "name": "E", "symbols": ["A", "B"]}])
@pytest.mark.parametrize("index", [-1, -2, 2, 2**40, -(2**63)])
def test_a_branch_or_symbol_is_not_counted_from_the_end(schema: Any, index: int) -> None:
    assert AvroReader(json.dumps(schema), [()]).read(zigzag(index)) is None


@pytest.mark.parametrize("record", [b"\x80" * 1_000_000, b"\xff" * 9 + b"\x01", b"\x80" * 9 + b"\x02", b"\x80", b""])
@pytest.mark.parametrize("schema", ["long", "string", "bytes", {"type": "array", "items": "long"}, ["null", "long"]])
def test_numbers_that_are_too_long_or_cut_off_are_no_harm(schema: Any, record: bytes) -> None:
    AvroReader(json.dumps(schema), [()]).read(record)


def test_a_schema_may_name_types_of_others() -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "amount", "type": "long"}]}
    bill = {"type": "record", "name": "shop.Bill", "fields": [{"name": "total", "type": "Money"}]}
    reader = AvroReader(json.dumps(bill), [("total", "amount")], {"money": json.dumps(money)})
    assert reader.read(zigzag(-17)) == [-17]
    assert avro_paths(json.dumps(bill), {"money": json.dumps(money)}) == [("total", "amount")]


@pytest.mark.parametrize(
    "schema",
    ["", "{", "[]x", '"nothing"', '{"type": "record", "name": "A", "fields": [{}]}',
     '{"type": "fixed", "name": "F"}', "7", "null", '{"type": "array"}', '{"type": "enum", "name": "E", "symbols": 3}',
     '{"type":' * 3_000 + '"int"' + "}" * 3_000],
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(BadAvroSchema):
        AvroReader(schema, [("id",)])


@pytest.mark.parametrize(
    "odd",
    [
        {"name": "odd", "type": "string", "default": None},
        {"name": "odd", "type": ["string", "null"], "default": 7},
        {"name": "odd", "type": {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 127}},
        {"name": "odd", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": -1}},
        {"name": "odd", "type": {"type": "bytes", "logicalType": "decimal", "precision": "10", "scale": "2"}},
        {"name": "odd", "type": {"type": {"type": {"type": "string"}}}},
        {"name": "odd", "type": {"type": "array", "items": {"type": "map", "values": {"type": "bytes", "scale": 2,
         "precision": 1, "logicalType": "decimal"}}}},
    ],
)  # fmt: skip
def test_what_a_registry_lets_pass_and_no_record_depends_on_makes_no_schema_unusable(odd: dict[str, Any]) -> None:
    fields = [{"name": "id", "type": "string"}, odd]
    reader = AvroReader(json.dumps({"type": "record", "name": "R", "fields": fields}), [("id",)])
    rest = b"\2\2\2k\0\0\0" if "array" in str(odd) else b"\0\0" if isinstance(odd["type"], list) else b"\0"
    assert reader.read(b"\2a" + rest) == ["a"]


def test_an_enums_default_that_is_none_of_its_symbols_is_ignored() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"], "default": "Z"}
    assert AvroReader(json.dumps(enum), [()]).read(b"\0") == ["A"]


def test_paths_of_a_recursive_schema_end() -> None:
    found = avro_paths(json.dumps(ORDER), {})
    assert ("id",) in found
    assert ("parent", "parent", "state") in found
    assert max(map(len, found)) == 5
