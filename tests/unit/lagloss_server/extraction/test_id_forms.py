"""Ids of events that have none: a hash of some of their fields, and their position in the first topic."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.extraction import Extracted, Extraction, Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression

AT_MS = 1_764_061_200_123


def extract(id_: str, records: Records, *origins: str, **others: Any) -> Extracted:
    extraction = Extraction(IdExpression.parse(id_), TimeExpression.parse("timestamp"), origins=origins, **others)
    assert Extraction.of(json.loads(json.dumps(extraction.document()))) == extraction
    return Extractor(extraction).extract(records)


def records(values: Any, headers: list[Any] | None = None) -> Records:
    n = len(values)
    places = np.arange(n) % 2, np.arange(n) * 10
    return Records(np.full(n, AT_MS), [None] * n, values, headers or [None] * n, *places)


def test_a_hash_is_that_of_the_parts_as_netstrings() -> None:
    found = extract("hash($.a, $.b)", records([b'{"a": "a", "b": "bc"}', b'{"a": "ab", "b": "c"}']))
    assert found.ids == [hashlib.sha256(text).hexdigest()[:32].encode() for text in (b"1:a,2:bc,", b"2:ab,1:c,")]
    # never another: ids of stored beacons and of other programs are made so
    assert found.ids[0] == b"d16f37a638ba770eff5e5da16e42c72f"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.tuples(texts, texts), min_size=2, max_size=6), st.booleans())
def test_two_records_have_the_same_hash_only_if_all_their_parts_are_alike(
    rows: list[tuple[str, str]], in_arrow: bool
) -> None:
    values: Any = [json.dumps({"a": a, "b": b}).encode() for a, b in rows]
    ids = extract("hash($.a, $.b)", records(pa.array(values, pa.binary()) if in_arrow else values)).ids
    assert len(ids) == len(rows)
    for first, row in zip(ids, rows, strict=True):
        assert [other == row for other in rows] == [other == first for other in ids]


def test_what_is_no_part_of_an_id_is_no_part_of_a_hash_but_texts_may_be_empty_or_long() -> None:
    values = [
        b'{"a": 17, "b": ""}', b'{"a": "17", "b": ""}', b'{"a": 1, "b": "%b"}' % (b"x" * 300), b'{"a": null, "b": 1}',
        b'{"a": 1}', b'{"a": 1.5, "b": 1}', b'{"a": true, "b": 1}', b'{"a": {}, "b": 1}', None, b"{",
    ]  # fmt: skip
    found = extract("hash($.a, $.b)", records(values))
    assert found.rows.tolist() == [0, 1, 2]
    assert found.ids[0] == found.ids[1], "a number is its digits, as in any id"
    assert found.unreadable == {"no_id": (2, 3), "bad_id": (3, 5), "no_value": (1, 8), "not_json": (1, 9)}


def test_keys_and_headers_may_be_hashed() -> None:
    rows = [[("h", b"\xff")], [("h", None)], None]
    found = extract("hash(key, header:h)", Records(np.full(3, AT_MS), [b"k"] * 3, [None] * 3, rows))
    assert found.ids == [hashlib.sha256(b"1:k,2:ff,").hexdigest()[:32].encode()]
    assert found.unreadable == {"no_id": (2, 1)}


def test_a_position_is_that_of_the_record_whatever_lies_before_it() -> None:
    places = np.array([0, 3, 3]), np.array([5, 0, 2**62])  # gaps of compaction and of transactions are no matter
    found = extract(
        "partition-offset", Records(np.full(3, AT_MS), [None] * 3, [None] * 3, [None] * 3, *places), "o.r-d"
    )
    assert found.ids == [b"o.r-d/0/5", b"o.r-d/3/0", b"o.r-d/3/4611686018427387904"]


def test_a_position_needs_its_topic() -> None:
    for origins in ([], ["a", "b"]):
        with pytest.raises(ValueError, match="expected one topic that positions are of"):
            extract("partition-offset", records([b""]), *origins)


@pytest.mark.parametrize(
    ("topic", "partition", "offset", "expected"),
    [
        (b"orders", b"3", b"1841", b"orders/3/1841"),  # as Kafka Connect and Kafka Streams write it
        (b"orders", struct.pack(">i", 3), struct.pack(">q", 1841), b"orders/3/1841"),  # as Spring Kafka does
        (b"orders", struct.pack(">i", 0), struct.pack(">q", 0), b"orders/0/0"),
        (b"orders", b"0003", b"12345678", b"orders/3/12345678"),
        (b"orders-retry", b"3", b"1841", "bad_id"),  # of another topic: it would be a message that nobody has sent
        (b"orders", struct.pack(">i", -1), b"1", "bad_id"),
        (b"orders", b"3", b"", "bad_id"),
        (b"orders", b"3", b"1 ", "bad_id"),
        (b"orders/3", b"1841", b"x", "bad_id"),
        (b"orders", b"3", b"9" * 30, "bad_id"),
        (b"orders", b"3", None, "no_id"),
    ],
)
def test_a_position_may_be_named_by_three_headers(
    topic: bytes, partition: bytes, offset: bytes | None, expected: bytes | str
) -> None:
    headers = [[("t", topic), ("p", partition), ("o", offset)]]
    found = extract("partition-offset(header:t, header:p, header:o)", records([None], headers), "orders", "others")
    assert found.ids == ([expected] if isinstance(expected, bytes) else [])
    assert list(found.unreadable) == ([] if isinstance(expected, bytes) else [expected])


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (b"orders/3/1841", b"orders/3/1841"), (b"orders-3-1841", None), (b"orders/03/1841", None),
        (b"other/3/1841", None), (b"orders/3/1841/0", None), (b"", None),
    ],
)  # fmt: skip
def test_a_position_may_be_named_by_one_header(origin: bytes, expected: bytes | None) -> None:
    found = extract("partition-offset(header:origin)", records([None], [[("origin", origin)]]), "orders")
    assert found.ids == ([] if expected is None else [expected])
    assert list(found.unreadable) == (["bad_id"] if expected is None else [])


def test_a_position_may_be_named_by_fields_of_the_value() -> None:
    values = [b'{"t": "orders", "p": 3, "o": 1841}', b'{"t": "orders", "p": 3.5, "o": 1}', b'{"t": 3, "p": 3, "o": 1}']
    found = extract("partition-offset($.t, $.p, $.o)", records(values), "orders")
    assert (found.ids, found.unreadable) == ([b"orders/3/1841"], {"bad_id": (2, 1)})
