"""Definitions proposed from samples: which topics are hops of one flow, and who reads and writes them."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from lagloss_server.extraction import Records
from lagloss_server.model.definition import parse_definition
from taps.discovery import NodeGuess, TopicGuess, as_yaml, find_hops, propose
from taps.sample import Sample

AT_MS = 1_764_061_200_000
IDS = [uuid.UUID(int=number).hex for number in range(200)]


def topic(
    name: str, ids: Iterable[str], later_ms: int, field: str = "order_id", *, times: bool = True, header: bool = False,
    quoted: bool = False,
) -> TopicGuess:  # fmt: skip
    rows = list(enumerate(ids))
    documents = [
        {**({} if header else {field: each}), **({"created_at": AT_MS + row} if times else {}), "pad": "x" * 40}
        for row, each in rows
    ]
    headers = [[(field, (json.dumps(each) if quoted else each).encode())] if header else None for _, each in rows]
    stamps = np.array([AT_MS + row + later_ms for row, _ in rows], np.int64)
    records = Records(stamps, [None] * len(rows), [json.dumps(each).encode() for each in documents], headers)
    return guessed(name, records)


def guessed(name: str, records: Records) -> TopicGuess:
    """Guess from records, which get places of their own."""
    zeros, offsets = np.zeros(len(records), np.int64), np.arange(len(records))
    placed = replace(records, partitions=zeros, offsets=offsets)
    return TopicGuess.of(Sample(name, zeros, offsets, placed, False))


def summary(nodes: Sequence[NodeGuess]) -> dict[str, tuple[str | None, list[str], tuple[str, ...]]]:
    return {node.name: (node.group, [output.topic for output in node.outputs], node.to) for node in nodes}


def proposed(topics: Sequence[TopicGuess], groups: Mapping[str, Sequence[str]]) -> Sequence[NodeGuess]:
    nodes, *_ = propose(topics, groups).flows
    assert parse_definition(as_yaml("found", nodes, "10m")).taps
    return nodes


def test_topics_that_share_ids_are_hops_and_the_earlier_one_is_upstream() -> None:
    raw, enriched = topic("orders", IDS, 0), topic("enriched", IDS[:190], 300, "order-id", header=True)
    (hop,) = find_hops([enriched, raw])
    assert (hop.before, hop.after, hop.before_id, hop.after_id) == (
        "orders",
        "enriched",
        "$.order_id",
        "header:order-id",
    )
    nodes = proposed([enriched, raw], {"enrich": ["orders"], "sink": ["enriched"]})
    assert summary(nodes) == {
        "orders-source": (None, ["orders"], ("enrich",)),
        "enrich": ("enrich", ["enriched"], ("sink",)),
        "sink": ("sink", [], ()),
    }
    assert [output.id for node in nodes for output in node.outputs] == ["$.order_id", "header:order-id"]


def test_ids_in_the_quotes_of_json_are_those_without_them_elsewhere() -> None:
    raw, priced = topic("orders", IDS, 0), topic("priced", IDS[:190], 300, "order id", header=True, quoted=True)
    nodes = proposed([raw, priced], {"price": ["orders"]})
    assert [output.id for node in nodes for output in node.outputs] == ["$.order_id", "header:'order id' as json"]


def test_ids_of_another_thing_are_not_taken_though_more_of_them_are_in_both_topics() -> None:
    def orders(name: str, rows: Sequence[int], later_ms: int) -> TopicGuess:
        documents = [
            {"order_id": IDS[row], "created_at": AT_MS + row, "customer": {"id": row * 7_919 % 150}} for row in rows
        ]
        stamps = np.array([AT_MS + row + later_ms for row in rows], np.int64)
        values = [json.dumps(each).encode() for each in documents]
        records = Records(stamps, [None] * len(rows), values, [None] * len(rows))
        return guessed(name, records)

    (hop,) = find_hops([orders("orders", range(200), 0), orders("enriched", range(0, 200, 2), 100)])
    assert (hop.before_id, hop.after_id) == ("$.order_id", "$.order_id")


def test_ids_that_come_again_are_a_doubt() -> None:
    (node, *_) = proposed([topic("orders", [*IDS, *IDS[:50]], 0)], {"sink": ["orders"]})
    assert node.notes == ["20% of its records have the id of another record and count as duplicates"]


def test_a_topic_between_two_others_makes_no_hop_from_the_first_to_the_last() -> None:
    topics = [topic(name, IDS, later) for name, later in (("a", 0), ("b", 100), ("c", 200))]
    assert [(hop.before, hop.after) for hop in find_hops(topics)] == [("a", "b"), ("b", "c")]


def test_a_node_that_writes_two_topics_has_an_out_for_each_reader() -> None:
    topics = [topic("raw", IDS, 0), topic("route-left", IDS[::2], 100), topic("route-right", IDS[1::2], 100)]
    nodes = proposed(topics, {"router": ["raw"], "left": ["route-left"], "right": ["route-right"]})
    assert summary(nodes)["router"] == ("router", ["route-left", "route-right"], ("left", "right"))
    text = as_yaml("found", nodes, "10m")
    assert "'out:left': {topic: route-left" in text
    assert "copy: all" not in text


def test_of_several_groups_that_may_write_a_topic_the_likest_name_is_taken_and_the_doubt_written_down() -> None:
    nodes = proposed(
        [topic("orders", IDS, 0), topic("orders-priced", IDS, 100)], {"audit": ["orders"], "order-prices": ["orders"]}
    )
    writer = next(node for node in nodes if node.name == "order-prices")
    assert [output.topic for output in writer.outputs] == ["orders-priced"]
    assert any("audit" in note for note in writer.notes)


def test_each_flow_is_proposed_and_what_cannot_be_measured_has_its_reason() -> None:
    topics = [
        topic("orders", IDS, 0),
        topic("bare", IDS, 100, times=False),
        topic("clicks", [f"c{at}" for at in range(99)], 0),
        topic("unread", [f"u{at}" for at in range(99)], 0),
    ]
    found = propose(topics, {"enrich": ["orders"], "count": ["clicks"]})
    assert [[output.topic for node in flow for output in node.outputs] for flow in found.flows] == [
        ["orders", "bare"], ["clicks"],
    ]  # fmt: skip
    assert any("no field has the event time" in note for flow in found.flows for node in flow for note in node.notes)
    assert found.reasons == {"bare": "no event time", "unread": "no group"}
    assert len(propose(topics, {"enrich": ["orders"]}, ["clicks", "unread"]).flows) == 3


def test_a_topic_alone_is_proposed_if_there_is_nothing_else() -> None:
    found = propose([topic("orders", IDS, 0)], {})
    assert (len(found.flows), found.reasons) == (1, {})


def nameless(name: str, values: Sequence[bytes]) -> TopicGuess:
    n = len(values)
    return guessed(name, Records(AT_MS + np.arange(n), [None] * n, values, [None] * n))


def test_a_topic_without_ids_is_left_out_where_its_reader_writes_other_ids() -> None:
    logs = nameless("logs", [b'{"level": "info"}'] * 60)
    found = propose([topic("orders", IDS, 0), topic("enriched", IDS, 100), logs], {"enrich": ["orders", "logs"]})
    (flow,) = found.flows
    assert parse_definition(as_yaml("found", flow, "10m")).taps
    assert found.reasons == {"logs": "no id found"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (gzip.compress(b'{"id": 1}' * 99, mtime=0), "compressed values"),
        (b"\0\0\0\0\x07" + bytes(300), "unknown schema"),
        (bytes(range(1, 256)) * 2, "unknown format"),
        (b'{"level": "info"}', "no id found"),
    ],
)
def test_why_no_part_of_a_topic_is_an_id(value: bytes, problem: str) -> None:
    assert nameless("t", [value] * 50).problem == problem
    assert propose([nameless("t", [value] * 50), topic("orders", IDS, 0)], {}).reasons["t"] == problem


def test_what_is_the_same_in_most_records_is_no_id() -> None:
    alike = [topic(name, ["one", *IDS[:1]] * 50, later) for name, later in (("a", 0), ("b", 100))]
    assert find_hops(alike) == []


def test_a_topic_whose_records_have_no_id_is_measured_by_their_positions() -> None:
    stamps = AT_MS + np.arange(60)
    values = [json.dumps({"level": "info", "at": AT_MS + row}).encode() for row in range(60)]
    logs = guessed("logs", Records(stamps, [None] * 60, values, [None] * 60))
    (node, *_) = proposed([logs], {"archive": ["logs"]})
    assert [(output.topic, output.id, output.event_time) for output in node.outputs] == [
        ("logs", "partition-offset", "$.at")
    ]
    assert any("no field is an id" in note for note in node.notes)


def test_short_compressed_values_are_no_ids_though_each_is_another_one() -> None:
    values = [gzip.compress(f"{number}".encode()) for number in range(60)]
    assert (nameless("t", values).candidates, nameless("t", values).problem) == ([], "compressed values")
    assert nameless("t", [f"order-{number}".encode() for number in range(60)]).candidates == ["$"]
