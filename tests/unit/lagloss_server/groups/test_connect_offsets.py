"""Records of Kafka Connect's offset topic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.groups.connect_offsets import (
    OFFSET_REASONS,
    OddOffset,
    SourceOffset,
    SourcePartition,
    parse_source_offset,
)

PLACE = SourcePartition("a", "orders", 3)
SOURCE = {"cluster": "a", "partition": 3, "topic": "orders"}


def key(source: Any = SOURCE, connector: Any = "mirror") -> bytes:
    return json.dumps([connector, source]).encode()


def test_a_mirror_stores_the_last_offset_that_it_has_read() -> None:
    assert parse_source_offset(key(), b'{"offset":41}') == SourceOffset("mirror", PLACE, 42)
    assert parse_source_offset(key(), b'{"offset":0}') == SourceOffset("mirror", PLACE, 1)


@pytest.mark.parametrize("value", [None, b"null", b" null "])
def test_an_offset_that_was_reset_is_none(value: bytes | None) -> None:
    assert parse_source_offset(key(), value) == SourceOffset("mirror", PLACE, None)


@pytest.mark.parametrize(
    "value",
    [
        *(b"", b"{", b"7", b"[1]", b"{}", b"\xff", b'{"offset":null}', b'{"offset":"7"}', b'{"offset":7.5}'),
        *(b'{"offset":true}', b'{"offset":-1}', b'{"offset":9223372036854775807}', b'{"offset":99999999999999999999}'),
    ],
)
def test_what_is_no_offset_is_set_aside(value: bytes) -> None:
    assert parse_source_offset(key(), value) == OddOffset("mirror", "bad_offset")


@pytest.mark.parametrize(
    "source",
    [
        None,
        {},
        {"server": "shop"},  # Debezium
        {"filename": "orders.txt"},
        {"group": "g", **SOURCE},  # MirrorMaker's checkpoints
        {"sourceClusterAlias": "a", "targetClusterAlias": "b"},  # and its heartbeats
        {**SOURCE, "partition": "3"},
        {**SOURCE, "partition": -1},
        {**SOURCE, "partition": True},
        {**SOURCE, "topic": None},
    ],
)
def test_a_source_that_is_no_partition_of_kafka_is_named_so(source: Any) -> None:
    assert parse_source_offset(key(source), b'{"offset":41}') == OddOffset("mirror", "no_topic")


@pytest.mark.parametrize("raw", [None, b"", b"null", b"{", b'"mirror"', b'["mirror"]', b'["mirror",{},{}]', b"[1,{}]"])
def test_a_key_that_names_no_connector_is_set_aside(raw: bytes | None) -> None:
    assert parse_source_offset(raw, b'{"offset":41}') == OddOffset(None, "bad_key")


@given(st.binary(max_size=60) | st.none(), st.binary(max_size=60) | st.none())
def test_any_bytes_are_an_offset_or_odd(raw_key: bytes | None, value: bytes | None) -> None:
    found = parse_source_offset(raw_key, value)
    assert isinstance(found, SourceOffset) or found.reason in OFFSET_REASONS


@given(st.integers(0, (1 << 63) - 2), st.integers(0, (1 << 31) - 1), st.text(max_size=20), st.text(max_size=20))
def test_every_offset_comes_back_as_the_next_one(offset: int, partition: int, alias: str, topic: str) -> None:
    raw = key({"topic": topic, "cluster": alias, "partition": partition})
    found = parse_source_offset(raw, json.dumps({"offset": offset}).encode())
    assert found == SourceOffset("mirror", SourcePartition(alias, topic, partition), offset + 1)
