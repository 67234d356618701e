"""A real registry: what its schemas say of records in Confluent's wire format, and what it says of itself."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from lagloss_server.base.settings import Settings
from lagloss_server.extraction import Extractor, Records
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction
from lagloss_server.net.schema_registry import RegistryConnection, SchemaRegistry
from lagloss_server.ops.doctor import check_schema_registry
from tests.programs import need
from tests.support.apicurio import Apicurio

AT_MS = 1_764_061_200_000
CUSTOMER: dict[str, Any] = {
    "type": "record",
    "name": "Customer",
    "namespace": "shop",
    "fields": [{"name": "number", "type": "long"}, {"name": "vip", "type": "boolean"}],
}
AT = {"type": "long", "logicalType": "timestamp-millis"}
ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "customer", "type": "shop.Customer"},
        {"name": "order_id", "type": ["null", "string"]},
        {"name": "created_at", "type": AT},
    ],
}
COUPON = {"name": "coupon", "type": "string", "default": ""}
NEWER_ORDER = {**ORDER, "fields": [COUPON, *ORDER["fields"]]}
PROTO = 'syntax = "proto3"; package shop; message Order { string order_id = 1; int64 created_at = 2; }'


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with Apicurio(Path(need("apicurio")), tmp_path_factory.mktemp("registry") / "apicurio.log") as running:
        yield running


@pytest.fixture
def registry(apicurio: Apicurio) -> Iterator[SchemaRegistry]:
    with closing(SchemaRegistry(RegistryConnection(apicurio.url))) as connected:
        yield connected


def framed(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro(schema_id: int, schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    parsed = fastavro.parse_schema(schema, named_schemas={"shop.Customer": fastavro.parse_schema(CUSTOMER)})
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, record)
    return framed(schema_id, out.getvalue())


def extracted(registry: SchemaRegistry, values: list[bytes]) -> tuple[list[bytes], list[float], dict[str, list[int]]]:
    extraction = Extraction(IdExpression.parse("$.order_id"), TimeExpression.parse("$.created_at"))
    nothing: list[None] = [None] * len(values)
    records = Records(np.full(len(values), AT_MS, np.int64), nothing, values, nothing)
    found = Extractor(extraction, registry).extract(records)
    unreadable = {str(reason): rows.tolist() for reason, rows in found.unreadable_rows.items()}
    return found.ids, found.event_ms.tolist(), unreadable


def test_versions_and_references_of_avro_schemas_are_read(apicurio: Apicurio, registry: SchemaRegistry) -> None:
    apicurio.register("customer", json.dumps(CUSTOMER))
    refers = [{"name": "shop.Customer", "subject": "customer", "version": 1}]
    older = apicurio.register("orders-value", json.dumps(ORDER), references=refers)
    newer = apicurio.register("orders-value", json.dumps(NEWER_ORDER), references=refers)
    assert older != newer
    order = {"customer": {"number": 7, "vip": True}, "order_id": "a", "created_at": AT_MS}
    values = [
        avro(older, ORDER, order),
        avro(newer, NEWER_ORDER, {**order, "order_id": "b", "coupon": "ten"}),
        framed(999_999, b"\0"),
    ]
    assert extracted(registry, values) == ([b"a", b"b"], [AT_MS, AT_MS], {"unknown_schema": [2]})


def test_protobuf_is_read_as_the_registry_has_it(apicurio: Apicurio, registry: SchemaRegistry) -> None:
    number = apicurio.register("orders-proto-value", PROTO, "PROTOBUF")
    varint = bytearray()
    rest = AT_MS
    while rest > 0x7F:
        varint.append(rest & 0x7F | 0x80)
        rest >>= 7
    body = b"\x00" + b"\x0a\x01c" + b"\x10" + bytes([*varint, rest])
    assert extracted(registry, [framed(number, body)]) == ([b"c"], [AT_MS], {})


def test_doctor_shows_which_schemas_the_registry_takes(apicurio: Apicurio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_SCHEMA_REGISTRY_URL", apicurio.url)
    (check,) = check_schema_registry(Settings())
    assert check.verdict == "ok"
    assert "AVRO" in check.finding
    assert "PROTOBUF" in check.finding
