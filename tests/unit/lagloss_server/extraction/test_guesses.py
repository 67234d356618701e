"""Guesses at ids and event times, from samples of topics of every kind."""

from __future__ import annotations

import json
import random
import uuid
from typing import Any

import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass

from lagloss_server.extraction import BadTapSchema, Extraction, Extractor, Records
from lagloss_server.extraction.guesses import Guesses, guess
from lagloss_server.extraction.protobuf_schema import ProtobufFile
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.net.schema_registry import RegisteredSchema
from tests.unit.lagloss_server.extraction.test_avro import sized, zigzag
from tests.unit.lagloss_server.extraction.test_extractor import AVRO, FakeRegistry, wired
from tests.unit.lagloss_server.extraction.test_protobuf import PROTO

AT_MS = 1_764_061_200_000
N = 50


def sample(values: list[Any], keys: list[Any] | None = None, headers: list[Any] | None = None) -> Records:
    n = len(values)
    return Records(AT_MS + 1_000 * np.arange(n), keys or [None] * n, values, headers or [None] * n)


def orders(chance: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "order_id": str(uuid.UUID(int=chance.getrandbits(128))),
            "customer": {"id": chance.randrange(10), "born": "1980-05-05T00:00:00Z"},
            "created_at": f"2025-11-25T09:{row // 60:02}:{row % 60:02}.000Z",
            "updated_at": AT_MS + 1_000 * row + 86_400_000,
            "amount": 2.5, "lines": row, "paid": True, "note": None, "currency": "EUR", "items": [{"id": 1}],
        }
        for row in range(N)
    ]  # fmt: skip


def expressions(found: Guesses) -> tuple[list[str], list[str]]:
    return [each.expression for each in found.ids], [each.expression for each in found.times]


def test_an_id_is_there_everywhere_and_differs_and_a_time_is_near_its_record() -> None:
    values = [json.dumps(order).encode() for order in orders(random.Random(1))]
    found = guess(sample(values))
    ids, times = expressions(found)
    assert ids[0] == "$.order_id"
    assert times == ["$.created_at", "$.updated_at", "timestamp"]
    assert not {"$.amount", "$.paid", "$.note", "$.created_at"} & set(ids)
    best = found.ids[0]
    assert (best.share, best.distinct, len(best.example)) == (1.0, 1.0, 36)
    assert found.times[0].example == "2025-11-25T09:00:00.000Z"
    by_customer = next(each for each in found.ids if each.expression == "$.customer.id")
    assert by_customer.distinct < 0.3


def test_a_share_counts_the_records_without_the_field_too() -> None:
    values: list[Any] = [json.dumps(order).encode() for order in orders(random.Random(2))]
    values[:10] = [b"{broken", None, b"{}", b"plain", b"\0\0\0\0\1"] * 2
    best = guess(sample(values)).ids[0]
    assert (best.expression, best.share) == ("$.order_id", 0.8)


def test_keys_and_headers_are_looked_at_too() -> None:
    keys = [f"k-{row % 7}".encode() for row in range(N)]
    headers = [[("message-id", f"m-{row}".encode()), ("sent at", str(AT_MS).encode())] for row in range(N)]
    found = guess(sample([b"\xff\xfe"] * N, keys, headers))
    ids, times = expressions(found)
    assert ids[0] == "header:message-id"
    assert "key" in ids
    assert times == ["header:'sent at'", "timestamp"]
    structured = [json.dumps({"id": row}).encode() for row in range(N)]
    assert expressions(guess(sample([b"{}"] * N, structured)))[0] == ["key:$.id"]


def test_headers_and_keys_in_the_quotes_of_json_are_proposed_without_them() -> None:
    keys = [json.dumps(f"k-{row % 7}").encode() for row in range(N)]
    headers = [
        [("id", json.dumps(f"m-{row}é").encode()), ("sent at", json.dumps("2025-11-25T09:00:00Z").encode()),
         ("number", str(row).encode()), ("spring_json_header_types", b'{"id":"java.lang.String"}')]
        for row in range(N)
    ]  # fmt: skip
    records = sample([b"\xff\xfe"] * N, keys, headers)
    found = guess(records)
    ids, times = expressions(found)
    assert (ids[0], found.ids[0].example) == ("header:id as json", "m-0é")
    assert {"key:$", "header:number"} < set(ids)
    assert times[0] == "header:'sent at' as json"
    spec = Extraction(IdExpression.parse(ids[0]), TimeExpression.parse(times[0]))
    assert Extractor(spec).extract(records).ids == [f"m-{row}é".encode() for row in range(N)]
    headers[: N // 4] = [[("id", f"m-{row}".encode())] for row in range(N // 4)]  # a writer without them
    assert expressions(guess(sample([b""] * N, headers=headers)))[0][0] == "header:id as json"


def test_plain_text_is_an_id_as_a_whole() -> None:
    assert expressions(guess(sample([f"order-{row}".encode() for row in range(N)])))[0] == ["$"]


def test_fields_are_those_of_the_schema_where_there_is_one() -> None:
    bodies = [sized(f"o-{row}".encode()) + zigzag(AT_MS) for row in range(N)]
    expected = (["$.id"], ["$.at", "timestamp"])
    assert expressions(guess(sample(list(bodies)), "avro", AVRO)) == expected
    registry = FakeRegistry({7: RegisteredSchema("AVRO", AVRO), 8: RegisteredSchema("AVRO", "broken")})
    values: list[Any] = [wired(7, body) for body in bodies]
    assert expressions(guess(sample([*values, wired(8, b""), wired(9, b"")]), registry=registry)) == expected
    file = ProtobufFile.given(PROTO)
    message = GetMessageClass(file.message("Order"))
    values = [
        message(order_id=f"o-{row}", created_at={"seconds": AT_MS // 1_000}).SerializeToString() for row in range(N)
    ]
    for found in (
        guess(sample(values), "protobuf", PROTO, "Order"),
        guess(sample([wired(7, b"\0" + value) for value in values]),
              registry=FakeRegistry({7: RegisteredSchema("PROTOBUF", PROTO)})),
    ):  # fmt: skip
        ids, times = expressions(found)
        assert ids[0] == "$.order_id"
        assert times == ["$.created_at", "timestamp"]


def test_a_guess_can_be_used_as_it_is() -> None:
    records = sample([json.dumps({"order id": row, "it's": {"@at": AT_MS}}).encode() for row in range(N)])
    found = guess(records)
    assert expressions(found) == (["$['order id']"], ["$['it\\'s'].@at", "timestamp"])
    spec = Extraction(IdExpression.parse(found.ids[0].expression), TimeExpression.parse(found.times[0].expression))
    assert len(Extractor(spec).extract(records).ids) == N


def test_nothing_is_guessed_of_nothing_and_a_bad_schema_is_refused() -> None:
    assert guess(sample([])) == Guesses((), ())
    assert expressions(guess(sample([None] * 3))) == ([], ["timestamp"])
    with pytest.raises(BadTapSchema):
        guess(sample([b""]), "avro", "{")


def test_many_names_and_deep_documents_are_bounded() -> None:
    wide = [json.dumps({f"f{row}_{number}": number for number in range(300)}).encode() for row in range(20)]
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    assert guess(sample([*wide, deep, b"[" * 100_000])).times


@pytest.mark.parametrize("stamp_ms", [AT_MS * 1_000, AT_MS // 1_000, -1, -(1 << 63), (1 << 63) - 1])
def test_the_records_timestamps_may_be_in_any_unit(stamp_ms: int) -> None:
    records = Records(np.full(2, stamp_ms, np.int64), [None] * 2, [b'{"id": 1}', b'{"id": 2}'], [None] * 2)
    assert guess(records).times[-1].example.endswith("Z")
