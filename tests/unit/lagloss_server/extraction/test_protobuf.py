"""Protobuf records: parts of messages of a schema that is given as text or compiled."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.extraction import kinds
from lagloss_server.extraction.protobuf_format import ProtobufReader, message_paths
from lagloss_server.extraction.protobuf_schema import BadProtobufSchema, ProtobufFile, compile_proto
from lagloss_server.model.expressions import Path
from lagloss_server.net.schema_registry import RegisteredSchema
from tests.unit.lagloss_server.extraction.test_json import look, read_parts

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  string order_id = 1;
  int64 number = 2;
  uint64 large = 3;
  bytes raw = 4;
  google.protobuf.Timestamp created_at = 5;
  State state = 6;
  optional int32 maybe = 7;
  Customer customer = 8;
  repeated Item items = 9;
  map<string, string> tags = 10;
  map<int32, string> numbered = 11;
  google.protobuf.StringValue note = 12;
  double amount = 13;
  repeated int32 counts = 14;
  repeated google.protobuf.Timestamp seen = 15;
  bool paid = 16;
  enum State { NEW = 0; PAID = 1; }
  message Item { string sku = 1; }
}
message Customer { string id = 1; Customer referrer = 2; }
"""


@pytest.fixture(scope="module")
def file() -> ProtobufFile:
    return ProtobufFile.given(PROTO)


def order(file: ProtobufFile, **fields: Any) -> Any:
    return GetMessageClass(file.message("Order"))(**fields)


def found_in(descriptor: Any, record: bytes, *paths: Path) -> Any:
    (parts,) = read_parts(ProtobufReader(descriptor, paths).read, [record])
    return parts


def test_fields_of_every_kind_are_found(file: ProtobufFile) -> None:
    message = order(
        file, order_id="o-1", number=-17, large=2**64 - 1, raw=b"\xff", state=1, amount=2.5, paid=True,
        tags={"shop": "b"}, counts=[4, 5], items=[{"sku": "x"}, {"sku": "y"}],
        customer={"id": "c", "referrer": {"id": "r"}},
    )  # fmt: skip
    message.created_at.FromJsonString("2025-11-25T09:00:00.123456789Z")
    message.seen.add(seconds=1)
    message.note.value = "hello"
    expected = {
        ("order_id",): (kinds.TEXT, b"o-1"),
        ("orderId",): (kinds.TEXT, b"o-1"),
        ("number",): (kinds.INT, -17),
        ("large",): (kinds.LARGE_INT, str(2**64 - 1).encode()),
        ("raw",): (kinds.BYTES, b"\xff"),
        ("created_at",): (kinds.MOMENT, 1_764_061_200_123_456_789),
        ("created_at", "seconds"): (kinds.INT, 1_764_061_200),
        ("state",): (kinds.TEXT, b"PAID"),
        ("customer", "referrer", "id"): (kinds.TEXT, b"r"),
        ("items", 1, "sku"): (kinds.TEXT, b"y"),
        ("tags", "shop"): (kinds.TEXT, b"b"),
        ("note",): (kinds.TEXT, b"hello"),
        ("amount",): (kinds.FLOAT, 2.5),
        ("counts", 1): (kinds.INT, 5),
        ("seen", 0): (kinds.MOMENT, 1_000_000_000),
        ("paid",): (kinds.BOOL, 1),
        ("items",): (kinds.OTHER, None),
        ("tags",): (kinds.OTHER, None),
        ("customer",): (kinds.OTHER, None),
        (): (kinds.OTHER, None),
    }
    paths: list[Path] = list(expected)
    assert found_in(file.message("Order"), message.SerializeToString(), *paths) == list(expected.values())


def test_what_is_not_set_is_absent_and_what_has_no_presence_is_its_default(file: ProtobufFile) -> None:
    absent: list[Path] = [
        ("maybe",), ("created_at",), ("customer", "id"), ("items", 0, "sku"), ("tags", "shop"), ("note",), ("none",),
        ("numbered", "1"), ("counts", "x"), ("order_id", "x"), ("order_id", 0), ("customer", 0), ("items", "sku"),
    ]  # fmt: skip
    assert found_in(file.message("Order"), b"", *absent) == [(kinds.ABSENT, None)] * len(absent)
    assert found_in(file.message("Order"), b"", ("order_id",), ("number",), ("state",)) == [
        (kinds.TEXT, b""), (kinds.INT, 0), (kinds.TEXT, b"NEW"),
    ]  # fmt: skip


def test_an_unknown_number_of_an_enum_is_a_number(file: ProtobufFile) -> None:
    assert found_in(file.message("Order"), order(file, state=7).SerializeToString(), ("state",)) == [(kinds.INT, 7)]


MANY = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Many {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; bool g = 7; Color h = 8;
  fixed32 i = 9; sfixed32 j = 10; float k = 11; fixed64 l = 12; sfixed64 m = 13; double n = 14; string o = 15;
  bytes p = 16; Many q = 17; google.protobuf.Timestamp r = 18; optional int32 s = 19; optional string t = 20;
  repeated int32 u = 21; repeated double v = 22; repeated string w = 23; map<string, Many> x = 24; repeated Many y = 25;
  repeated fixed32 z = 26; oneof one { string o1 = 27; int32 o2 = 28; } repeated sint32 far = 30000 [packed = false];
  enum Color { RED = 0; GREEN = 5; BLUE = -2; }
}
"""
MANY_FILE = ProtobufFile.given(MANY)
MANY_PATHS: list[Path] = [
    *((name,) for name in "abcdefghijklmnoprst"), ("q", "a"), ("q", "o"), ("q", "q", "h"), ("q", "r"), ("q", "t"),
    ("none",), ("q", "none"), ("far_away",), ("u", 0), ("v", 1), ("w", 1), ("x", "k", "a"), ("x", "", "q", "o"),
    ("y", 1, "o"), ("o1",), ("o2",), ("q", "o2"), ("q",), ("u",), ("x",), ("z", "a"), (),
]  # fmt: skip
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys("abcdefijlm", 0), "g": False, "h": 0, "k": 0.0, "n": 0.0, "o": "", "p": b"",
    "u": [], "v": [], "w": [], "x": {}, "y": [], "z": [],
}  # fmt: skip
COLORS = {0: "RED", 5: "GREEN", -2: "BLUE"}
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
short, real = st.text(max_size=5), st.floats(width=32, allow_nan=False)
plain_fields = {
    "a": i32, "b": i64, "c": u32, "d": u64, "e": i32, "f": i64, "g": st.booleans(), "h": st.sampled_from([0, 5, -2, 7]),
    "i": u32, "j": i32, "k": real, "l": u64, "m": i64, "n": st.floats(allow_nan=False), "o": short,
    "p": st.binary(max_size=5), "r": st.builds(dict, seconds=st.integers(-(10**10), 10**11), nanos=i32), "s": i32,
    "t": short, "u": st.lists(i32, max_size=3), "v": st.lists(real, max_size=3), "w": st.lists(short, max_size=2),
    "z": st.lists(u32, max_size=2), "o1": short, "o2": i32, "far": st.lists(i32, max_size=2),
}  # fmt: skip
messages = st.recursive(
    st.fixed_dictionaries({}, optional=plain_fields),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            **plain_fields,
            "q": inner,
            "y": st.lists(inner, max_size=2),
            "x": st.dictionaries(st.sampled_from(["k", "", "ä"]), inner, max_size=2),
        },
    ),
    max_leaves=4,
)


def make(fields: dict[str, Any]) -> Any:
    made = GetMessageClass(MANY_FILE.message(None))()
    for name, value in fields.items():
        if name == "q":
            made.q.CopyFrom(make(value))
        elif name == "x":
            for key, each in value.items():
                made.x[key].CopyFrom(make(each))
        elif name == "y":
            made.y.extend(map(make, value))
        elif name == "r":
            made.r.seconds, made.r.nanos = value["seconds"], value["nanos"]
        elif isinstance(value, list):
            getattr(made, name).extend(value)
        else:
            setattr(made, name, value)
    return made


def document(fields: dict[str, Any]) -> dict[str, Any]:
    """The oracle: what a message with these fields has, without what is absent; a time as ns since the epoch."""
    filled: dict[str, Any] = {**DEFAULTS, **fields}
    filled["h"] = COLORS.get(filled["h"], filled["h"])
    filled["x"] = {key: document(inner) for key, inner in filled["x"].items()}
    filled["y"] = [document(inner) for inner in filled["y"]]
    if "q" in filled:
        filled["q"] = document(filled["q"])
    if "r" in filled:
        filled["r"] = filled["r"]["seconds"] * 10**9 + filled["r"]["nanos"]
    if "o1" in fields and "o2" in fields:  # of a oneof the last one counts
        del filled[min(("o1", "o2"), key=list(fields).index)]
    return filled


def look_in(fields: dict[str, Any], path: Path) -> Any:
    kind, value = look(document(fields), path)
    if path[-1:] == ("r",) and kind != kinds.ABSENT:
        return (kinds.MOMENT, value) if kind == kinds.INT else (kinds.OTHER, None)
    return kind, value


@given(st.lists(messages, min_size=1, max_size=3), st.permutations(MANY_PATHS), st.integers(1, 20))
def test_parts_are_those_that_a_message_was_made_of(
    all_fields: list[dict[str, Any]], paths: list[Path], count: int
) -> None:
    records = [make(fields).SerializeToString() for fields in all_fields]
    read = read_parts(ProtobufReader(MANY_FILE.message(None), paths[:count]).read, records)
    for fields, parts in zip(all_fields, read, strict=True):
        assert parts == [look_in(fields, path) for path in paths[:count]]


@given(st.data(), messages, messages)
def test_what_is_no_message_to_googles_library_is_none(
    data: st.DataObject, fields: dict[str, Any], others: dict[str, Any]
) -> None:
    record = make(fields).SerializeToString()
    place = data.draw(st.integers(0, len(record)))
    odd = [
        record[:place],
        record[:place] + data.draw(st.binary(max_size=3)) + record[place + 1 :],
        record + make(others).SerializeToString(),  # two messages one after the other are one, merged
        data.draw(st.binary(max_size=30)),
    ]
    check_odd(odd)


def check_odd(records: list[bytes]) -> None:
    descriptor = MANY_FILE.message(None)
    for record, parts in zip(records, read_parts(ProtobufReader(descriptor, MANY_PATHS).read, records), strict=True):
        try:
            GetMessageClass(descriptor).FromString(record)
        except DecodeError:
            assert parts is None
        else:
            assert parts is not None


@pytest.mark.parametrize(
    "record",
    [
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
        b"\x08" + b"\x80" * 10 + b"\0",
        b"\x00\x00",
        b"\x08",
        b"\x0a\x01a",
        b"\x38\x02",
        b"\x7a\x01\xff",
        b"\x7a\xff\xff\xff\xff\x0f",
        b"\x0b\x0c",
        b"\xf3\x07\xf4\x07",
        b"\xaa\x01\x02\x80\x80",
        b"\xb2\x01\x07" + b"\0" * 7,
        b"\xa8\x01\x05",
        b"\xb1\x01" + b"\0" * 8,
        b"\x6f",
        b"\x08\x80\x80\x80\x80\x10",
        b"\x98\x01\x00\xa2\x01\x00",
        b"\x92\x01\x00",
        b"\x8a\x01\x00",
        b"\x8a\x01\x02\x08",
        b"\xff\xff\xff\xff\x0f",
        b"\x88\x80\x80\x00\x01",
        b"\x92\x01\x02\x08\x05\x92\x01\x02\x10\x07",
        b"\x40\x07",
        b"\x40\xfe\xff\xff\xff\x0f",
        b"\x20" + b"\xff" * 9 + b"\x01",
    ],
)
def test_odd_encodings_are_judged_by_googles_library(record: bytes) -> None:
    check_odd([record, b""])


def test_a_text_of_proto2_that_is_not_utf8_is_bytes() -> None:
    descriptor = ProtobufFile.given('syntax = "proto2"; message Old { optional string id = 1; }').message(None)
    assert found_in(descriptor, b"\x0a\1\xff", ("id",)) == [(kinds.BYTES, b"\xff")]


@given(st.binary(max_size=60), st.integers(0, 60))
def test_any_bytes_are_a_message_or_not(raw: bytes, cut: int) -> None:
    descriptor = _order_type()
    message = GetMessageClass(descriptor)(order_id="o-1", items=[{"sku": "x"}], tags={"a": "b"}).SerializeToString()
    for record in (raw, message[:cut] + raw, message[:cut]):
        found_in(descriptor, record, ("order_id",), ("created_at",), ("items", 0, "sku"))


def test_endless_nesting_is_no_message(file: ProtobufFile) -> None:
    record = b""
    for _ in range(5_000):
        size = len(record)
        varint = bytearray()
        while size > 0x7F:
            varint.append(size & 0x7F | 0x80)
            size >>= 7
        record = b"\x12" + bytes([*varint, size]) + record
    assert found_in(file.message("Customer"), record, ("id",)) is None


def test_a_message_is_named_in_full_or_within_its_package_and_alone_needs_no_name(file: ProtobufFile) -> None:
    assert file.message("shop.Order").full_name == file.message("Order").full_name == "shop.Order"
    assert file.message("Order.Item").full_name == "shop.Order.Item"
    with pytest.raises(
        BadProtobufSchema,
        match=r"expected the name of a message, since the schema has several or none: shop\.Order, shop",
    ):
        file.message(None)
    with pytest.raises(BadProtobufSchema, match="found Basket"):
        file.message("Basket")
    assert ProtobufFile.given('syntax = "proto3"; message Only { int32 x = 1; }').message(None).full_name == "Only"


def test_confluents_indexes_lead_to_a_message(file: ProtobufFile) -> None:
    assert file.nested([1]).full_name == "shop.Customer"
    assert file.nested([0, 0]).full_name == "shop.Order.Item"
    for wrong in ([2], [0, 5], [-1]):
        with pytest.raises(BadProtobufSchema):
            file.nested(wrong)


def test_a_compiled_schema_is_as_good_as_its_text(file: ProtobufFile) -> None:
    compiled = base64.encodebytes(compile_proto(PROTO, {})).decode()
    assert ProtobufFile.given(compiled).message("Order").full_name == "shop.Order"


def test_a_schema_of_a_registry_imports_others_by_text_or_compiled() -> None:
    imports = {"deep/money.proto": 'syntax = "proto3"; package m; message Money { int64 cents = 1; }'}
    text = 'syntax = "proto3"; import "deep/money.proto"; message Bill { m.Money total = 1; }'
    by_text = ProtobufFile.registered(RegisteredSchema("PROTOBUF", text, imports))
    record = b"\x0a\x02\x08\x11"
    assert found_in(by_text.nested([0]), record, ("total", "cents")) == [(kinds.INT, 17)]
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    money, bill = FileDescriptorSet.FromString(compile_proto(text, imports)).file
    money.name = bill.name = "default.proto"  # registries give files names of their own
    compiled = RegisteredSchema(
        "PROTOBUF", text, imports, bill.SerializeToString(), {"deep/money.proto": money.SerializeToString()}
    )
    assert found_in(ProtobufFile.registered(compiled).nested([0]), record, ("total", "cents")) == [(kinds.INT, 17)]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [("message {", "lagloss_tap_schema.proto:1"), ("", "no file"), (base64.b64encode(b"\xff\xff").decode(), "neither"),
     ('syntax = "proto3"; import "missing.proto"; message A {}', "missing.proto")],
)  # fmt: skip
def test_what_is_no_schema_is_refused_with_what_protoc_says(schema: str, problem: str) -> None:
    with pytest.raises(BadProtobufSchema, match=problem):
        ProtobufFile.given(schema)


@pytest.mark.parametrize("name", ["../up.proto", "/etc/x.proto", "a/../../b.proto", "", "a\0b"])
def test_an_import_stays_below_its_own_folder(name: str) -> None:
    with pytest.raises(BadProtobufSchema, match="not a path below"):
        compile_proto('syntax = "proto3";', {name: 'syntax = "proto3";'})


def test_paths_of_a_message_are_its_plain_fields_and_end(file: ProtobufFile) -> None:
    found = list(message_paths(file.message("Order")))
    assert ("order_id",) in found
    assert ("created_at",) in found
    assert ("customer", "referrer", "id") in found
    assert ("items",) not in found
    assert max(map(len, found)) == 5


_TYPE: list[Any] = []


def _order_type() -> Any:
    """The type once for all examples: compiling takes a process."""
    if not _TYPE:
        _TYPE.append(ProtobufFile.given(PROTO))
    return _TYPE[0].message("Order")


BUILT_IN = """syntax = "proto3";
package shop;
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
import "google/type/date.proto";
import "google/type/dayofweek.proto";
message Order {
  string id = 1 [(confluent.field_meta) = { doc: "PII" }];
  confluent.type.Decimal price = 2;
  repeated google.type.Date days = 3;
  google.type.DayOfWeek day = 4;
  message Line { map<string, google.type.Date> due = 1; }
  repeated Line lines = 5;
}
"""
"""Imports that Confluent's registry has built in: no schema refers to them."""


def test_what_a_registry_has_built_in_can_be_imported() -> None:
    message = ProtobufFile.given(BUILT_IN).message("Order")
    sent = GetMessageClass(message)(id="a", price={"value": b"\1", "scale": 2}, days=[{"year": 2026}], day=3)
    sent.lines.add().due["x"].year = 2026
    files = FileDescriptorSet.FromString(compile_proto(BUILT_IN, {})).file
    for schema in (
        RegisteredSchema("PROTOBUF", BUILT_IN),
        RegisteredSchema("PROTOBUF", BUILT_IN, descriptor=files[-1].SerializeToString()),  # without its imports
    ):
        descriptor = ProtobufFile.registered(schema).nested([0])
        assert ProtobufReader(descriptor, [("id",)]).read(sent.SerializeToString()) == ["a"]


def test_a_field_of_an_unknown_type_that_is_neither_bytes_nor_a_number_makes_a_schema_unusable() -> None:
    field = {"name": "g", "number": 1, "type": 10, "type_name": ".other.G", "label": 1}
    file = FileDescriptorProto(name="x", dependency=["other.proto"], message_type=[{"name": "R", "field": [field]}])
    with pytest.raises(BadProtobufSchema, match=r"unknown type \.other\.G"):
        ProtobufFile.registered(RegisteredSchema("PROTOBUF", "", descriptor=file.SerializeToString()))
