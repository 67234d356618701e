"""What docs/taps.md says of tombstones and of Debezium, on records as Debezium writes them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import fastavro
import pytest

from lagloss_server.extraction import Extractor
from lagloss_server.model.definition import parse_definition
from lagloss_server.net.schema_registry import RegisteredSchema
from tests.unit.lagloss_server.extraction.test_extractor import AT_MS, FakeRegistry, records, wired
from tests.unit.lagloss_server.extraction.test_no_messages import kept

ROOT = Path(__file__).resolve().parents[4]
((SECTION,),) = (re.findall(r"^### Tombstones\n(.*?)^## ", (ROOT / "docs/taps.md").read_text(), re.M | re.S),)
((NODES,),) = (re.findall(r"^```yaml\n(.*?)^```$", SECTION, re.M | re.S),)
HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n  "
NODES_BY_FORM = dict(zip(("envelope", "schemas", "unwrapped"), re.findall(r"^- .*$", NODES, re.M), strict=True))

ROW = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "int"}, {"name": "note", "type": "string"}]}
SOURCE = {"type": "record", "name": "Source", "fields": [
    {"name": "version", "type": "string"}, {"name": "connector", "type": "string"}, {"name": "name", "type": "string"},
    {"name": "ts_ms", "type": "long"},
    {"name": "snapshot", "type": ["string", "null"], "default": "false"},
    {"name": "db", "type": "string"}, {"name": "schema", "type": "string"}, {"name": "table", "type": "string"},
    {"name": "txId", "type": ["null", "long"]}, {"name": "lsn", "type": ["null", "long"]},
]}  # fmt: skip
ENVELOPE = json.dumps({"type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": [
    {"name": "before", "type": ["null", ROW]}, {"name": "after", "type": ["null", "Value"]},
    {"name": "source", "type": SOURCE}, {"name": "op", "type": "string"}, {"name": "ts_ms", "type": ["null", "long"]},
    {"name": "transaction", "type": ["null", "string"]},
]})  # fmt: skip


def change(op: str, number: int) -> dict[str, Any]:
    """A change as Debezium's connector for PostgreSQL describes it."""
    row = {"id": number, "note": "NaN"}
    source = {
        "version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": AT_MS + number,
        "snapshot": "true" if op == "r" else "false", "db": "shop", "schema": "public", "table": "orders",
        "txId": 700 + number, "lsn": 24_023_128 + number,
    }  # fmt: skip
    before, after = (row if op in "ud" else None), (None if op == "d" else row)
    return {"before": before, "after": after, "source": source, "op": op, "ts_ms": AT_MS + 500, "transaction": None}


CHANGES = [change(op, number) for number, op in enumerate("rcucd")]


def flattened(found: dict[str, Any]) -> dict[str, Any]:
    row = found["after"] or found["before"]
    return {**row, "__deleted": "true" if found["op"] == "d" else "false", "__source_ts_ms": found["source"]["ts_ms"]}


def avro(found: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(ENVELOPE)), found)
    return wired(1, out.getvalue())


@pytest.mark.parametrize(
    ("form", "values"),
    [
        ("envelope", [json.dumps(each).encode() for each in CHANGES]),
        ("envelope", [avro(each) for each in CHANGES]),
        ("schemas", [json.dumps({"schema": {"type": "struct"}, "payload": each}).encode() for each in CHANGES]),
        ("unwrapped", [json.dumps(flattened(each)).encode() for each in CHANGES]),
        ("unwrapped", [json.dumps(each["after"] | {"__source_ts_ms": each["source"]["ts_ms"]}).encode()
                       for each in CHANGES[:4]] + [None]),
    ],
)  # fmt: skip
def test_a_delete_of_debezium_and_its_tombstone_are_no_messages(form: str, values: list[bytes | None]) -> None:
    registry = FakeRegistry({1: RegisteredSchema("AVRO", ENVELOPE)})
    (tap,) = parse_definition(HEAD + NODES_BY_FORM[form]).taps
    found = Extractor(tap.extraction, registry).extract(records([*values, None]))
    assert (found.ids, found.left_out, found.unreadable) == ([b"0", b"1", b"2", b"3"], 2, {})
    assert found.event_ms.tolist() == [AT_MS + number for number in range(4)]


def test_the_table_of_conditions_is_true() -> None:
    lines = [line.strip("|\n ").split(" | ") for line in SECTION.splitlines() if line.startswith("| `")]
    rows = 0
    for first, *cells in lines:
        conditions = re.findall(r"`([^`]+)`", first)
        for value, cell in zip((None, b"null", b""), cells, strict=True):
            words = cell.split(", ")
            for condition, word in zip(conditions, words * (len(conditions) // len(words)), strict=True):
                expected = {"true": ([0], {}), "false": ([], {}), "unreadable": ([], {"not_json": [0]})}[word]
                assert kept("auto", condition, value) == expected, (condition, value)
                rows += 1
    assert rows == 30
