"""Protobuf records: parts of messages of a schema that is given as text or compiled."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.expressions import Path
from lagloss_server.net.schema_registry import RegisteredSchema
from taps.extraction import kinds
from taps.extraction.columns import ByteColumn, PartTable
from taps.extraction.protobuf_format import ProtobufFinder, message_paths
from taps.extraction.protobuf_schema import BadProtobufSchema, ProtobufFile, compile_proto
from tests.unit.taps.extraction.test_json import part_at

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
    column = ByteColumn.of([record])
    table = PartTable.of(column.data, len(paths), 1)
    if ProtobufFinder(descriptor, paths).find(column, np.arange(1), table).size:
        return None
    return [part_at(each, 0) for each in table.columns()]


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
        BadProtobufSchema, match=r"expected the name of a message, since the schema has shop\.Order, shop"
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
    with pytest.raises(BadProtobufSchema, match="no path below"):
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
