"""Extraction of ids and event times beside a bare parse of the same records by a library: CPU of one core per record.

Records of 300 bytes with 10 fields, an id of 36 characters; the event time is text, in Avro a long.
"""

from __future__ import annotations

import base64
import io
import json
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass

from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.extraction.protobuf_schema import ProtobufFile
from lagloss_server.model.expressions import IdExpression, TimeExpression

RECORDS: Final = 10_000
"""As many as Spark puts into an Arrow batch."""
TURNS: Final = 30
"""The best of them counts: other processes only add to a turn."""
AT_MS: Final = 1_764_061_200_000

_TEXTS: Final = ("order_id", "created_at", "customer_name", "type", "currency", "note", "source")
_AVRO: Final = {"amount": "double", "version": "long", "paid": "boolean"}
_PROTOBUF: Final = {"amount": 1, "version": 3, "paid": 8}
"""Numbers of types in descriptors; a string is 9."""


@dataclass(frozen=True)
class Encoded:
    """The same records in one format: how they are extracted from, and how the library parses one."""

    extraction: Extraction
    values: Sequence[bytes]
    parse: Callable[[bytes], Any]


def run() -> None:
    """Print ns per record: from an Arrow column, from a list of bytes, and of the parse alone."""
    print(f"{'ns of CPU per record':<22}{'bytes':>8}{'arrow':>8}{'list':>8}{'parse alone':>13}")
    for name, encoded in _formats(_orders()).items():
        extractor = Extractor(encoded.extraction)
        nothing = [None] * RECORDS
        stamps = AT_MS + np.arange(RECORDS)
        column: Any = pa.array(encoded.values, pa.binary())
        batches = (Records(stamps, nothing, column, nothing), Records(stamps, nothing, encoded.values, nothing))
        assert all(len(extractor.extract(batch).ids) == RECORDS for batch in batches)
        arrow, listed = (_best_ns(partial(extractor.extract, batch)) for batch in batches)
        parsed = _best_ns(partial(_parse, encoded), 5)
        size = sum(map(len, encoded.values)) / RECORDS
        print(f"{name:<22}{size:>8.0f}{arrow:>8.0f}{listed:>8.0f}{parsed:>13,.0f}")


def _best_ns(work: Callable[[], object], turns: int = TURNS) -> float:
    best = float("inf")
    for _ in range(turns):
        start = time.thread_time_ns()
        work()
        best = min(best, time.thread_time_ns() - start)
    return best / RECORDS


def _parse(encoded: Encoded) -> None:
    for value in encoded.values:
        encoded.parse(value)


def encoded_orders(at_ms: int) -> dict[str, Encoded]:
    """Return such records of the hour from a moment on, as JSON and as Avro, by format."""
    formats = _formats(_orders(at_ms), at_ms)
    return {name.partition(" ")[0].lower(): formats[name] for name in ("JSON (json)", "Avro (fastavro)")}


def _orders(at_ms: int = AT_MS) -> list[dict[str, Any]]:
    chance = random.Random(1)
    start = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return [
        {
            "order_id": str(uuid.UUID(int=chance.getrandbits(128))),
            "created_at": f"{start + timedelta(seconds=row % 3_600):%FT%T}.{chance.randrange(1_000):03}Z",
            "customer_name": "Jane Smith-Miller of the town", "type": "order", "amount": chance.randrange(10_000) / 100,
            "currency": "EUR", "note": "please ring twice at the door, " * 2, "source": "web-frontend", "version": 3,
            "paid": True,
        }
        for row in range(RECORDS)
    ]  # fmt: skip


def _formats(orders: Sequence[Mapping[str, Any]], at_ms: int = AT_MS) -> dict[str, Encoded]:
    texts = [json.dumps(order, separators=(",", ":")).encode() for order in orders]
    timestamp = {"type": "long", "logicalType": "timestamp-millis"}
    fields = [
        {"name": name, "type": timestamp if name == "created_at" else _AVRO.get(name, "string")}
        for name in (*_TEXTS, *_AVRO)
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    parsed = fastavro.parse_schema(schema)
    wider = [{**order, "note": order["note"] * 3} for order in orders]  # what names take in JSON
    records, chance = [], random.Random(2)
    for order in wider:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, {**order, "created_at": at_ms + chance.randrange(3_600_000)})
        records.append(out.getvalue())
    compiled = _descriptors()
    message = GetMessageClass(ProtobufFile.given(compiled).message(None))
    messages = [message(**order).SerializeToString() for order in wider]
    return {
        "JSON (json)": Encoded(_extraction(), texts, json.loads),
        "Avro (fastavro)": Encoded(
            _extraction(format="avro", schema=json.dumps(schema)),
            records,
            lambda value: fastavro.schemaless_reader(io.BytesIO(value), parsed, None),
        ),
        "Protobuf (protobuf)": Encoded(_extraction(format="protobuf", schema=compiled), messages, message.FromString),
    }


def _descriptors() -> str:
    names = enumerate((*_TEXTS, *_PROTOBUF), 1)
    fields = [{"name": name, "number": number, "type": _PROTOBUF.get(name, 9)} for number, name in names]
    file = {"name": "order.proto", "syntax": "proto3", "message_type": [{"name": "Order", "field": fields}]}
    return base64.b64encode(FileDescriptorSet(file=[file]).SerializeToString()).decode()


def _extraction(**others: Any) -> Extraction:
    return Extraction(IdExpression.parse("$.order_id"), TimeExpression.parse("$.created_at"), **others)
