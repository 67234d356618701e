"""Extraction as a whole: formats, reasons, conditions, and what comes of records that are not what they should be."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.errors import RegistryUnreachable
from lagloss_server.extraction import BadTapSchema, Extracted, Extraction, Extractor, Records
from lagloss_server.extraction.columns import ByteColumn
from lagloss_server.extraction.formats import message_indexes
from lagloss_server.extraction.protobuf_schema import ProtobufFile
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from lagloss_server.net.schema_registry import RegisteredSchema
from tests.unit.lagloss_server.extraction.test_avro import sized, zigzag
from tests.unit.lagloss_server.extraction.test_protobuf import PROTO

AT_MS = 1_764_061_200_123
AVRO = json.dumps(
    {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "string"}, {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]}
)  # fmt: skip
AVRO_2 = json.dumps(
    {"type": "record", "name": "Order", "fields": [
        {"name": "shop", "type": ["null", "string"]}, {"name": "at", "type": "long"}, {"name": "id", "type": "long"},
    ]}
)  # fmt: skip


class FakeRegistry:
    """Schemas in a dict; an id that is `down` cannot be asked for."""

    def __init__(self, schemas: dict[int, RegisteredSchema], down: int | None = None) -> None:
        self.schemas, self.down = schemas, down
        self.asked: list[int] = []

    def schema(self, schema_id: int) -> RegisteredSchema | None:
        self.asked.append(schema_id)
        if schema_id == self.down:
            raise RegistryUnreachable(url="http://registry", detail="it is away")
        return self.schemas.get(schema_id)


def extraction(id: str | list[str] = "$.id", at: str = "$.at", where: str | None = None, **others: Any) -> Extraction:
    condition = ConditionExpression.parse(where) if where else None
    return Extraction(IdExpression.parse(id), TimeExpression.parse(at), condition, **others)


def records(
    values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None, headers: Sequence[Any] | None = None
) -> Records:
    n = len(values)
    return Records(
        np.arange(n) + AT_MS, [None] * n if keys is None else keys, values, [None] * n if headers is None else headers
    )


def document(**fields: Any) -> bytes:
    return json.dumps({"at": AT_MS, **fields}).encode()


def wired(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def extract(spec: Extraction, given_: Records, registry: FakeRegistry | None = None) -> Extracted:
    return Extractor(spec, registry).extract(given_)


def test_records_are_read_or_left_out_or_counted_by_reason_with_the_first_row() -> None:
    values = [
        document(id="a"), None, document(id=None), b"{broken", document(id="b", type="x"), document(), document(id=2.5),
        json.dumps({"id": "c"}).encode(), json.dumps({"id": "d", "at": "soon"}).encode(), document(id=17), None,
    ]  # fmt: skip
    found = extract(extraction(where='not $.type == "x"'), records(values))
    assert found.rows.tolist() == [0, 9]
    assert found.ids == [b"a", b"17"]
    assert found.event_ms.tolist() == [AT_MS, AT_MS]
    assert found.left_out == 1
    assert found.unreadable == {
        "no_value": (2, 1), "no_id": (2, 2), "not_json": (1, 3), "bad_id": (1, 6), "no_time": (1, 7),
        "bad_time": (1, 8),
    }  # fmt: skip


def test_an_arrow_column_gives_what_a_list_gives() -> None:
    values = [document(id="a"), None, document(id="b"), b"", document(id="ü"), None]
    keys = [b"k", None, b"", b"\xff", b"x", b"y"]
    spec = extraction(id=["key", "$.id"])
    expected = extract(spec, records(values, keys))
    assert expected.ids == [b"k/a", "x/ü".encode()]
    for kind in (pa.binary(), pa.large_binary()):
        for column, names in (
            (pa.array(values, kind), pa.array(keys, kind)),
            (pa.array([b"before", None, *values, b"after"], kind)[2:-1], pa.array([b"?", *keys], kind)[1:]),
        ):
            found = extract(spec, records(column, names))
            assert (found.rows.tolist(), found.ids) == (expected.rows.tolist(), expected.ids)
            assert found.unreadable == expected.unreadable


def test_no_records_give_nothing() -> None:
    for values in ([], pa.array([], pa.binary())):
        found = extract(extraction(), records(values))
        assert (found.rows.size, found.ids, found.event_ms.size, found.unreadable) == (0, [], 0, {})


def test_what_no_expression_asks_for_is_not_read() -> None:
    found = extract(extraction("header:id", "timestamp"), records([None, b"\0\xff"], headers=[[("id", b"a")]] * 2))
    assert found.ids == [b"a", b"a"]
    assert found.event_ms.tolist() == [AT_MS, AT_MS + 1]


def test_the_last_of_several_headers_counts() -> None:
    headers = [[("id", b"a"), ("x", b"?"), ("id", b"b")], [("id", None)], None, [], [("id", b"")]]
    found = extract(extraction("header:id", "timestamp"), records([b""] * 5, headers=headers))
    assert found.ids == [b"b"]
    assert found.unreadable == {"no_id": (3, 1), "bad_id": (1, 4)}


some_headers = st.one_of(
    st.none(), st.lists(st.tuples(st.sampled_from(["id", "x", "ü"]), st.none() | st.binary(max_size=3)), max_size=4)
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(st.lists(some_headers, min_size=2, max_size=8))
def test_headers_of_an_arrow_column_are_those_of_a_list(rows: list[Any]) -> None:
    structs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows]
    for column, expected in ((pa.array(structs, HEADERS), rows), (pa.array(structs, HEADERS)[1:], rows[1:])):
        spec = extraction("header:id", "timestamp")
        found, wanted = (extract(spec, records([b""] * len(expected), headers=each)) for each in (column, expected))
        assert (found.ids, found.unreadable) == (wanted.ids, wanted.unreadable)


def test_keys_are_text_or_have_fields_of_their_own() -> None:
    keys = [b'{"id": "a"}', b"plain", None, b"\xff\xfe"]
    assert extract(extraction("key", "timestamp"), records([None] * 4, keys)).ids == [b'{"id": "a"}', b"plain", b"fffe"]
    found = extract(extraction("key:$.id", "timestamp"), records([None] * 4, keys))
    assert found.ids == [b"a"]
    assert found.unreadable == {"not_json": (2, 1), "no_id": (1, 2)}
    assert extract(extraction("key:$", "timestamp"), records([None] * 2, [b'"a"', b"17"])).ids == [b"a", b"17"]


def test_a_condition_that_does_not_need_the_value_decides_before_it_is_read() -> None:
    headers = [[("type", b"order")], [("type", b"audit")], [("type", b"order")]]
    values = [document(id="a"), b"\x01\x02", b"\x01\x02"]
    found = extract(extraction(where='header:type == "order"'), records(values, headers=headers))
    assert (found.ids, found.left_out, found.unreadable) == ([b"a"], 1, {"not_json": (1, 2)})


def test_a_condition_on_a_value_that_cannot_be_read_leaves_it_unreadable() -> None:
    spec = extraction("key", "timestamp", where='$.type == "order"')
    found = extract(spec, records([b'{"type": "order"}', b"{", b"{}", None], [b"a", b"b", b"c", b"d"]))
    assert (found.ids, found.left_out) == ([b"a"], 2)
    assert found.unreadable == {"not_json": (1, 1)}


def test_a_key_as_it_is_can_be_read_where_its_fields_cannot() -> None:
    spec = extraction("key", "timestamp", where="not key:$.x == 1 or header:ok == 'yes'")
    found = extract(spec, records([None] * 3, [b"{broken", b"{}", b"{broken"], [[("ok", b"yes")], None, None]))
    assert (found.ids, found.unreadable) == ([b"{broken", b"{}"], {"not_json": (1, 2)})


def test_of_several_reasons_the_first_counts_in_the_order_of_the_expressions() -> None:
    found = extract(extraction("key:$.id", "$.at"), records([None, b"{"], [b"{", b'{"id": 1}']))
    assert found.unreadable == {"not_json": (2, 0)}
    found = extract(extraction("$.id", "key:$.at"), records([None, b"{}"], [b"{", b"{"]))
    assert found.unreadable == {"no_value": (1, 0), "not_json": (1, 1)}


def test_plain_text_is_a_value_of_one_field() -> None:
    values = [b"order-1", b"", b"\xff", b'{"not": "read"}', None]
    found = extract(extraction("$", "timestamp", format="text"), records(values))
    assert found.ids == [b"order-1", b"ff", b'{"not": "read"}']
    assert found.unreadable == {"bad_id": (1, 1), "no_value": (1, 4)}
    found = extract(extraction("$", "timestamp"), records([b"order-1", b'"order-2"', b"17", b" \t"]))
    assert found.ids == [b"order-1", b"order-2", b"17", b" \t"]


def test_bare_avro_and_avro_with_a_fingerprint_are_read_by_a_given_schema() -> None:
    body = sized(b"a") + zigzag(AT_MS)
    fingerprint = bytes.fromhex(
        fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(json.loads(AVRO)), "CRC-64-AVRO")
    )
    values = [body, b"\xc3\x01" + fingerprint + body, b"\xc3\x01" + bytes(8) + body, body[:-1], body + b"x", b"", None]
    found = extract(extraction(format="avro", schema=AVRO), records(values))
    assert (found.ids, found.event_ms.tolist()) == ([b"a", b"a"], [AT_MS, AT_MS])
    assert found.unreadable == {"not_avro": (4, 2), "no_value": (1, 6)}


def test_each_record_is_read_by_the_schema_of_the_registry_that_it_names() -> None:
    registry = FakeRegistry({
        1: RegisteredSchema("AVRO", AVRO), 70_000: RegisteredSchema("AVRO", AVRO_2), 3: RegisteredSchema("JSON", "{}"),
        4: RegisteredSchema("PROTOBUF", PROTO), 5: RegisteredSchema("AVRO", "broken"),
    })  # fmt: skip
    file = ProtobufFile.given(PROTO)
    message = GetMessageClass(file.message("Order"))(order_id="p").SerializeToString()
    values = [
        wired(1, sized(b"a") + zigzag(AT_MS)), wired(70_000, b"\0" + zigzag(AT_MS) + zigzag(17)),
        wired(3, document(id="j")),
        document(id="bare"), wired(1, b"?"), wired(9, b""), wired(5, b""), wired(1, sized(b"b") + zigzag(AT_MS)),
        wired(3, b"{"), wired(4, b"\0" + message), b"\0\0", b"\xc3\x01" + bytes(8),
    ]  # fmt: skip
    found = extract(extraction(), records(values), registry)
    assert (found.rows.tolist(), found.ids) == ([0, 1, 2, 3, 7], [b"a", b"17", b"j", b"bare", b"b"])
    assert found.event_ms.tolist() == [AT_MS] * 5
    assert found.unreadable == {
        "not_avro": (1, 4), "unknown_schema": (3, 5), "not_json": (2, 8), "no_id": (1, 9),
    }  # fmt: skip
    found = extract(extraction(format="avro"), records(values), registry)
    assert found.rows.tolist() == [0, 1, 7]
    assert found.unreadable == {"not_avro": (7, 2), "unknown_schema": (2, 5)}
    found = extract(extraction("$.order_id", "timestamp", format="protobuf"), records(values), registry)
    assert found.ids == [b"p"]
    assert extract(extraction(format="json"), records(values)).ids == [b"j", b"bare"]


def test_a_schema_is_asked_for_once_but_an_unknown_one_again() -> None:
    registry = FakeRegistry({1: RegisteredSchema("AVRO", AVRO)})
    extractor = Extractor(extraction(), registry)
    batch = records([wired(1, sized(b"a") + zigzag(1)), wired(2, b""), wired(2, b"")])
    extractor.extract(batch)
    registry.schemas[2] = registry.schemas[1]
    found = extractor.extract(batch)
    assert registry.asked == [1, 2, 2]
    assert found.unreadable == {"not_avro": (2, 1)}


def test_an_outage_of_the_registry_makes_no_record_unreadable() -> None:
    with pytest.raises(RegistryUnreachable):
        extract(extraction(), records([document(id="a"), wired(7, b"")]), FakeRegistry({}, down=7))


def test_without_a_registry_its_schemas_are_unknown() -> None:
    assert extract(extraction(), records([wired(7, b"")])).unreadable == {"unknown_schema": (1, 0)}
    assert extract(extraction(format="avro"), records([wired(7, b""), b"x"])).unreadable == {
        "unknown_schema": (1, 0), "not_avro": (1, 1),
    }  # fmt: skip


def test_protobuf_of_a_registry_names_its_message_by_indexes() -> None:
    registry = FakeRegistry({4: RegisteredSchema("PROTOBUF", PROTO)})
    customer = b"\x0a\x01c"
    values = [
        wired(4, b"\2\2" + customer), wired(4, b"\4\0\0" + b"\x0a\x01s"), wired(4, b"\2\x0a" + customer),
        wired(4, b"\2"), wired(4, b"\xff" * 8), wired(4, b"\2\2\xff"),
    ]  # fmt: skip
    found = extract(extraction("$.id", "timestamp"), records(values), registry)
    assert found.ids == [b"c"]
    assert found.unreadable == {"no_id": (1, 1), "not_protobuf": (4, 2)}


@given(st.lists(st.integers(0, 300), max_size=5), st.binary(max_size=3))
def test_message_indexes_are_read_back_with_their_size(indexes: list[int], rest: bytes) -> None:
    head = zigzag(len(indexes)) + b"".join(map(zigzag, indexes))
    assert message_indexes([*head, *rest]) == (tuple(indexes) or (0,), len(head))
    for cut in range(len(head)):
        assert message_indexes([*head[:cut]]) == (None, 0)


def test_a_bare_message_is_read_by_the_name_of_its_type() -> None:
    spec = extraction("$.order_id", "$.createdAt", format="protobuf", schema=PROTO, message="Order")
    file = ProtobufFile.given(PROTO)
    message = GetMessageClass(file.message("Order"))(order_id="p")
    message.created_at.FromMilliseconds(AT_MS)
    found = extract(spec, records([message.SerializeToString(), b"\xff", b"", None]))
    assert (found.ids, found.event_ms.tolist()) == ([b"p"], [AT_MS])
    assert found.unreadable == {"not_protobuf": (1, 1), "bad_id": (1, 2), "no_value": (1, 3)}


@pytest.mark.parametrize(
    ("others", "problem"),
    [({"format": "xml"}, "expected a format of auto, json, avro, protobuf, text, found 'xml'"),
     ({"schema": AVRO}, "expected a schema only with the format avro or protobuf, found format auto"),
     ({"format": "protobuf", "message": "Order"}, "expected `message` only with"),
     ({"format": "text"}, "expected only `[$]`")],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(others: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        extraction(**others)


@pytest.mark.parametrize("others", [{"format": "avro", "schema": "{"}, {"format": "protobuf", "schema": "message {"},
    {"format": "protobuf", "schema": PROTO}, {"format": "protobuf", "schema": PROTO, "message": "None"}])  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused_at_once(others: dict[str, Any]) -> None:
    with pytest.raises(BadTapSchema, match="The schema given for a tap cannot be used: "):
        Extractor(extraction(**others))


def test_an_extraction_travels_to_other_processes() -> None:
    spec = extraction(["$.shop", "$.id"], "$.at in ms", where="exists $.id")
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("others", "value"),
    [({}, document(id="a")), ({"format": "avro", "schema": AVRO}, b"\2a\2"),
     ({"format": "protobuf", "schema": PROTO, "message": "Order"}, b"\x0a\1a")],
)  # fmt: skip
def test_an_extractor_travels_to_tasks_of_spark(others: dict[str, Any], value: bytes) -> None:
    id_ = "$.order_id" if "message" in others else "$.id"
    travelled = pickle.loads(pickle.dumps(Extractor(extraction(id_, "timestamp", **others))))
    assert travelled.extract(records([value])).ids == [b"a"]


odd_values = st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([document(id="a"), wired(1, b"\2a\2"), b"{"]))


@given(st.lists(odd_values, max_size=8), st.sampled_from(["auto", "json", "avro", "text"]))
def test_each_record_of_any_bytes_is_in_one_place_and_alone_gives_the_same(
    values: list[bytes | None], form: Any
) -> None:
    registry = FakeRegistry({1: RegisteredSchema("AVRO", AVRO), 0: RegisteredSchema("JSON", "{}")})
    spec = (
        extraction("$", "timestamp", format=form) if form == "text" else extraction(format=form, where="not $.at == 1")
    )
    found = extract(spec, records(values), registry)
    assert len(found.rows) + found.left_out + sum(count for count, _ in found.unreadable.values()) == len(values)
    assert len(found.rows) == len(found.ids) == len(found.event_ms)
    for value, (reason, (_, row)) in zip(values, found.unreadable.items(), strict=False):
        alone = extract(spec, records([values[row]]), registry)
        assert alone.unreadable == {reason: (1, 0)}, value


def test_columns_of_bytes_know_their_nulls() -> None:
    column = ByteColumn.of([None, b"ab", b"", None, b"c"])
    assert column.is_null.tolist() == [True, False, False, True, False]
    assert [column.at(row) for row in (1, 2, 4)] == [b"ab", b"", b"c"]
    assert [ByteColumn.of([b"x", b"yz"]).at(row) for row in (0, 1)] == [b"x", b"yz"]


def test_a_header_as_json_is_the_text_or_number_that_it_is() -> None:
    headers = [[("id", raw)] for raw in (
        b'"a"', b'"\\u00fc"', b" 17 ", b"18446744073709551616", b'\xef\xbb\xbf"b"', b"2.5", b"true", b"null", b"[1]",
        b"plain", b"", None, b'""', b"NaN",
    )] + [[], None]  # fmt: skip
    found = extract(extraction("header:id as json", "timestamp"), records([b""] * 16, headers=headers))
    assert found.ids == [b"a", "ü".encode(), b"17", b"18446744073709551616", b"b"]
    reasons = {reason: rows.tolist() for reason, rows in found.unreadable_rows.items()}
    assert reasons == {"bad_id": [5, 6, 8, 12, 13], "no_id": [7, 11, 14, 15], "not_json": [9, 10]}
    times = [
        [("at", raw)]
        for raw in (b'"2026-11-25T09:00:00Z"', b"1795597200000000", b'"1795597200000000"', b'"x"', b"Infinity")
    ]
    found = extract(extraction("key", "header:at as json"), records([None] * 5, [b"k"] * 5, times))
    assert found.event_ms.tolist() == [1_795_597_200_000.0] * 3
    assert found.unreadable == {"bad_time": (2, 3)}
    assert (
        extract(extraction("key", "header:at as json in ns"), records([None], [b"k"], times[1:2])).event_ms[0]
        == 1_795_597_200.0
    )


def test_a_header_as_json_is_compared_by_kind_and_open_where_it_is_not_json() -> None:
    headers = [[("x", raw)] for raw in (b'"a"', b"a", b"1")] + [None]
    spec = extraction("key", "timestamp", where='header:x as json in ["a", 1]')
    found = extract(spec, records([None] * 4, [b"k"] * 4, headers))
    assert (found.rows.tolist(), found.left_out, found.unreadable) == ([0, 2], 1, {"not_json": (1, 1)})
    spec = extraction("key", "timestamp", where='header:x as json == null or header:x == "a"')
    assert extract(spec, records([None] * 4, [b"k"] * 4, headers)).rows.tolist() == [1]


def test_json_that_writers_really_send_is_read() -> None:
    values = [
        b'\xef\xbb\xbf{"id": "bom", "at": 1}', b'\xef\xbb\xbf\r\n {"id": "space", "at": 1}\r\n',
        b'{"id": "floats", "at": 1, "x": [NaN, Infinity, -Infinity]}',
        wired(3, b'\xef\xbb\xbf{"id": "wired", "at": 1}'),
        b'{"id": "long", "at": 1, "x": ' + b"1" * 5_000 + b"}", b'{"id": "large", "at": 1, "x": 1e400}',
        b'{"id": NaN, "at": 1}', b'{"id": "a", "at": NaN}', b'{"id": "a", "at": 1,}', b"{'id': 'a', 'at': 1}",
        b'{"id": "a", "at": 1} // new', '{"id": "a", "at": 1}'.encode("utf-16"),
        '{"id": "a", "at": 1}'.encode("utf-16-le"),
        b'{"id": "\\ud800", "at": 1}', b'{"id": 1e3, "at": 1}', b'{"id": 18446744073709551617, "at": 1}',
    ]  # fmt: skip
    for form in ("auto", "json"):
        found = extract(extraction(format=form), records(values), FakeRegistry({3: RegisteredSchema("JSON", "{}")}))
        assert found.ids == [b"bom", b"space", b"floats", b"wired", b"long", b"large", b"18446744073709551617"]
        reasons = {reason: rows.tolist() for reason, rows in found.unreadable_rows.items()}
        assert reasons == {"bad_id": [6, 13, 14], "bad_time": [7], "not_json": [8, 9, 10, 11, 12]}
    keys = [b'\xef\xbb\xbf{"id": "k"}', b'\xef\xbb\xbf"t"', b'"t"']
    assert extract(extraction("key:$.id", "timestamp"), records([None], keys[:1])).ids == [b"k"]
    assert extract(extraction("key:$", "timestamp"), records([None] * 2, keys[1:])).ids == [b"t", b"t"]
