"""Records that are no messages, tombstones above all: what conditions say of them, in every format."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.extraction import Extracted, Extraction, Extractor
from lagloss_server.extraction.protobuf_schema import ProtobufFile
from lagloss_server.model.expressions import (
    ConditionExpression,
    RecordPart,
    Test,
)
from lagloss_server.net.schema_registry import RegisteredSchema
from tests.unit.lagloss_server.extraction.test_conditions import TOMBSTONE, UNREAD, any_test_of, truth_of
from tests.unit.lagloss_server.extraction.test_extractor import FakeRegistry, extract, extraction, records, wired

AVRO = json.dumps(
    {"type": "record", "name": "Pair", "fields": [
        {"name": "a", "type": ["null", "string"]}, {"name": "b", "type": ["null", "long"]},
    ]}
)  # fmt: skip
PROTO = 'syntax = "proto3"; message Pair { optional string a = 1; optional int64 b = 2; }'
PAIR = GetMessageClass(ProtobufFile.given(PROTO).message(None))
REGISTRY = FakeRegistry(
    {1: RegisteredSchema("AVRO", AVRO), 2: RegisteredSchema("PROTOBUF", PROTO), 3: RegisteredSchema("JSON", "{}")}
)
FORMATS: dict[str, dict[str, Any]] = {
    "json": {"format": "json"},
    "auto": {},
    "avro": {"format": "avro", "schema": AVRO},
    "protobuf": {"format": "protobuf", "schema": PROTO},
    "registered avro": {"format": "avro"},
    "registered protobuf": {"format": "protobuf"},
    "registered json": {},
}
"""How a tap is told of a format."""


def encoded(form: str, pair: Mapping[str, Any]) -> bytes:
    """A record of a format; JSON and Avro have nulls."""
    if form.endswith("avro"):
        body = fastavro_bytes({"a": pair.get("a"), "b": pair.get("b")})
        return wired(1, body) if form.startswith("registered") else body
    if form.endswith("protobuf"):
        body = PAIR(**{name: value for name, value in pair.items() if value is not None}).SerializeToString()
        return wired(2, b"\0" + body) if form.startswith("registered") else body
    body = json.dumps(pair).encode()
    return wired(3, body) if form.startswith("registered") else body


def fastavro_bytes(pair: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(AVRO)), pair)
    return out.getvalue()


def kept(form: str, where: str, *values: bytes | None) -> tuple[list[int], dict[str, list[int]]]:
    """The rows that a condition keeps, of records whose ids are their keys; and those that cannot be read."""
    spec = extraction("key", "timestamp", where=where, **FORMATS[form])
    found = extract(spec, records(values, [b"k"] * len(values)), REGISTRY)
    return found.rows.tolist(), {reason: rows.tolist() for reason, rows in found.unreadable_rows.items()}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("$ == null", [1]), ("$ != null", [0, 2]), ("exists $", [0, 2]), ("not exists $", [1]),
        ('$ in ["x", null]', [1]), ('$ in ["x"]', []), ("not $ in [null]", [0, 2]),
        ('$ != null and $.a != "d"', [0]), ('exists $ and not $.a == "d"', [0]), ('$.a != "d"', [0]),
        ('not $.a == "d"', [0, 1]), ("exists $.a", [0, 2]), ("not exists $.a", [1]), ("$.a == null", []),
        ("$.a != null", [0, 2]), ('$ == null or $.a == "d"', [1, 2]), ('key == "k" and exists $', [0, 2]),
        ("exists header:x or $ == null", [1]), ('$ != "x"', [0, 1, 2]),
    ],
)  # fmt: skip
def test_of_a_tombstone_every_condition_is_decided(form: str, where: str, expected: list[int]) -> None:
    values = [encoded(form, {"a": "u", "b": 1}), None, encoded(form, {"a": "d", "b": 2})]
    assert kept(form, where, *values) == (expected, {})


def test_text_is_decided_too() -> None:
    spec = extraction("key", "timestamp", where="exists $", format="text")
    assert extract(spec, records([b"a", None, b""], [b"k"] * 3)).rows.tolist() == [0, 2]


def test_a_tombstone_that_is_kept_lacks_a_value_only_where_one_is_asked_for() -> None:
    values, keys = [b'{"id": 1, "at": 2}', None], [b"k", b"l"]
    found = extract(extraction("key", "timestamp", where='not $.op == "d"'), records(values, keys))
    assert (found.ids, found.unreadable) == ([b"k", b"l"], {})
    for message_id, at in (("$.id", "timestamp"), ("key", "$.at"), ("$", "timestamp")):
        found = extract(extraction(message_id, at, where='key == "l"'), records(values, keys))
        assert (found.left_out, found.unreadable) == (1, {"no_value": (1, 1)})


def test_a_key_that_cannot_be_read_leaves_a_tombstone_open_and_is_the_reason() -> None:
    found = extract(extraction("$.id", where="$.x == 1 or key:$.x == 1"), records([None], [b"{"]))
    assert found.unreadable == {"not_json": (1, 0)}


def test_a_null_that_is_written_down_is_a_value_and_null_and_no_bytes_are_an_empty_text() -> None:
    values = [None, b"null", b" null\r\n", b"", b"nullable", b'"null"']
    for where, expected in (
        ("$ == null", [0, 1, 2]), ("exists $", [1, 2, 3, 4, 5]), ('$ == ""', [3]), ('$ == "null"', [5]),
        ('$ == "nullable"', [4]),
    ):  # fmt: skip
        assert kept("auto", where, *values) == (expected, {})
    assert kept("auto", '$ != "" and $ != "nullable" and not exists $.op', *values) == ([0, 1, 2, 5], {})
    assert kept("auto", "$.op == 1", *values) == ([], {"not_json": [3, 4]})
    assert kept("json", "exists $", *values) == ([1, 2, 5], {"not_json": [3, 4]})
    assert kept("protobuf", "exists $ and not exists $.a", b"", None) == ([0], {})
    assert kept("avro", "exists $", b"", None) == ([], {"not_avro": [0]})


# -- any condition over any values --------------------------------------------------------------------------------

VALUE, A, B = RecordPart("value", ()), RecordPart("value", ("a",)), RecordPart("value", ("b",))
KEY, HEADER, QUOTED = RecordPart("key", ("a",)), RecordPart("header", None, "h"), RecordPart("header", (), "h")
WHOLE = object()
pairs = st.fixed_dictionaries({}, optional={"a": st.sampled_from(["x", "y", None]), "b": st.sampled_from([1, 2, None])})
some_values = st.one_of(pairs, st.just(TOMBSTONE), st.just(UNREAD))
some_keys = st.one_of(st.none(), st.just(UNREAD), pairs)
some_headers = st.sampled_from([..., b"x", b'"x"', b"1", b"null", b"2.5", b'"\\u0078"', b"{}"])
some_tests = any_test_of([VALUE, A, B, KEY, HEADER, QUOTED], [("x",), (1,), (None,), ("x", None), (2, "y"), (True,)])


def parts_of(form: str, value: Any, key: Any, header: Any) -> dict[RecordPart, Any]:
    def field(of: Any, name: str) -> Any:
        if of in (TOMBSTONE, None):
            return ...
        if of is UNREAD:
            return UNREAD
        found = of.get(name, None if form.endswith("avro") else ...)
        return ... if found is None and form.endswith("protobuf") else found

    whole = value if value in (TOMBSTONE, UNREAD) else WHOLE
    text = header if header is ... else header.decode()
    quoted = ... if header is ... else UNREAD if text == "x" else json.loads(text)
    of_key = ... if key is None else UNREAD if key is UNREAD else key.get("a", ...)
    return {VALUE: whole, A: field(value, "a"), B: field(value, "b"), KEY: of_key, HEADER: text, QUOTED: quoted}


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(
    st.sampled_from(sorted(FORMATS)),
    some_tests,
    st.lists(st.tuples(some_values, some_keys, some_headers), min_size=1, max_size=6),
    st.booleans(),
)
def test_any_condition_over_any_records_keeps_what_the_oracle_keeps(
    form: str, test: Test, rows: list[tuple[Any, Any, Any]], in_arrow: bool
) -> None:
    garbage = {"avro": b"\x07", "protobuf": b"\xff"}.get(
        form, b"{" if "json" in form or form == "auto" else wired(9, b"")
    )
    values = [
        None if value is TOMBSTONE else garbage if value is UNREAD else encoded(form, value) for value, _, _ in rows
    ]
    keys = [key if key is None else b"{" if key is UNREAD else json.dumps(key).encode() for _, key, _ in rows]
    headers = [[] if header is ... else [("h", header)] for _, _, header in rows]
    given_: tuple[Any, Any, Any] = values, keys, headers
    if in_arrow:
        structs = [[{"key": name, "value": raw} for name, raw in row] for row in headers]
        given_ = pa.array(values, pa.binary()), pa.array(keys, pa.binary()), pa.array(structs, HEADERS)
    base = extraction("header:h", "timestamp", **FORMATS[form])
    spec = Extraction(
        base.id, base.event_time, ConditionExpression("as drawn", test), base.format, base.schema, base.message
    )
    found: Extracted = Extractor(spec, REGISTRY).extract(records(*given_))
    truths = [truth_of(test, parts_of(form, *row)) for row in rows]
    has_id = [header is not ... for _, _, header in rows]
    assert found.left_out == truths.count(False)
    assert found.rows.tolist() == [row for row, each in enumerate(truths) if each and has_id[row]]
    unreadable = {row: reason for reason, those in found.unreadable_rows.items() for row in those.tolist()}
    assert sorted(unreadable) == [row for row, each in enumerate(truths) if each is None or (each and not has_id[row])]
    assert all((unreadable[row] == "no_id") == (truths[row] is True) for row in unreadable)
