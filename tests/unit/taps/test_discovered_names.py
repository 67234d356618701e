"""Whatever `tap discover` prints can be applied, and says of each group, topic and field what Kafka says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.yaml_files import parse_documents, write_documents, write_flow
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.expressions import RecordPart, write_part
from lagloss_server.model.taps import TapSpec
from taps.discovery import NodeGuess, Output, as_yaml, propose
from tests.unit.taps.test_discovery import IDS, topic

WORDS = ["no", "True", "Null", "~", "123", "0x1f", "0o17", "1_000", "2026-11-26", "12:30:45", "1e3", ".inf", "=", "<<"]
ODD = [
    ": ",
    " #",
    "- ",
    "a: b",
    "a #b",
    "&a",
    "*a",
    "!a",
    "%a",
    "@a",
    "`a",
    "'",
    '"',
    "a ",
    " a",
    "...",
    "---",
    "?",
    "{}",
]
ODD += [
    "a\u2028b",
    "a\x85spec: 1",
    "\ufeff",
    "zażółć",
    "группа",
    "\U0001f600",
    "source of orders",
    "writer of enriched",
]
groups = st.sampled_from(WORDS + ODD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(32)), "\x7f"]),
    min_size=1,
    max_size=255,
)
topic_names = st.sampled_from([each for each in WORDS if each.replace("_", "").isalnum()]) | st.from_regex(
    r"\A[A-Za-z0-9._-]{1,249}\Z"
)
names = st.sampled_from(["no", "True", "123", "0x1f", "2026-11-26", "null", "1e3"]) | st.from_regex(
    r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,99}\Z"
)
fields = st.sampled_from(WORDS + ODD) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40
)


def applied(pipeline: str, nodes: Sequence[NodeGuess], cluster: str = "") -> Definition:
    """The definition that `apply` reads in what is printed, as it is written to a file."""
    printed = as_yaml(pipeline, nodes, "10m", cluster).encode().decode()
    definition = parse_definition(printed, "the proposal")
    assert definition.name == pipeline
    assert definition.spec.lookback == 600_000
    for node, read in zip(nodes, definition.spec.nodes, strict=True):
        assert (read.name, read.to) == (node.name, node.to)
        taps = {place: spec for place, spec in read.taps.items() if isinstance(spec, TapSpec)}
        group = taps.pop("in", None)
        assert (group and group.group) == node.group
        assert all(spec.cluster == (cluster or None) for spec in taps.values())
        for output in node.outputs:
            places = ["out"] if len(node.outputs) == 1 else [f"out:{reader}" for reader in output.readers]
            for spec in (taps[place] for place in places):
                assert spec.id is not None
                assert spec.event_time is not None
                identity = (spec.topic, spec.id.written, spec.event_time.written)
                assert identity == (output.topic, output.id, output.event_time)
    return definition


@given(names, st.tuples(groups, groups), topic_names, fields, st.text(), st.sampled_from(["", "no", "123"]))
def test_what_is_printed_is_read_back(
    pipeline: str, readers: tuple[str, str], name: str, field: str, note: str, cluster: str
) -> None:
    parts = [RecordPart("header", name=field), RecordPart("value", (field, "x"))]
    for identity in (write_part(part) for part in parts):
        output = Output(name, identity, f"{identity} in us", ("reader",))
        nodes = [
            NodeGuess("source", None, [output], [note]),
            NodeGuess("reader", readers[0], [Output(name, "key", "$.at", ("sink",))], [note]),
            NodeGuess("sink", readers[1] + "2", [], []),
        ]
        applied(pipeline, nodes, cluster)


@given(
    st.lists(groups, min_size=2, max_size=4, unique=True), st.lists(topic_names, min_size=2, max_size=2, unique=True)
)
def test_nodes_of_any_groups_and_topics_have_names_of_their_own(readers: list[str], topics: list[str]) -> None:
    samples = [topic(name, IDS[:20], later) for name, later in zip(topics, (0, 100), strict=True)]
    reads = {group: [topics[at % 2]] for at, group in enumerate(readers)}
    nodes = propose(samples, reads).flows[0]
    applied("found", nodes)
    assert {node.group for node in nodes} - {None} == set(readers)


@given(fields)
def test_a_header_of_any_name_can_be_an_id(name: str) -> None:
    (node, *_) = propose([topic("orders", IDS[:20], 0, name, header=True)], {"sink": ["orders"]}).flows[0]
    applied("found", [node, NodeGuess("sink", "sink")])
    assert node.outputs[0].id == write_part(RecordPart("header", name=name))


def test_groups_whose_names_begin_alike_stay_apart() -> None:
    readers = [f"{'g' * 120}-{number}" for number in range(30)]
    (nodes,) = propose([topic("orders", IDS[:20], 0)], {group: ["orders"] for group in readers}).flows
    assert len(applied("found", nodes).spec.nodes) == 31


@pytest.mark.parametrize(
    ("group", "reads", "expected"),
    [
        ("source of orders", "orders", [("orders-source", None), ("source-of-orders", "source of orders")]),
        ("writer of enriched", "enriched", [("enriched", None), ("writer-of-enriched", "writer of enriched")]),
    ],
)
def test_a_group_that_is_called_as_a_node_could_be_is_another(
    group: str, reads: str, expected: list[tuple[str, str | None]]
) -> None:
    samples = [topic("orders", IDS[:20], 0), topic("enriched", IDS[:20], 100)]
    nodes = propose(samples, {group: [reads]}).flows[0]
    assert [(node.name, node.group) for node in nodes if (node.name, node.group) in expected] == expected
    applied("found", nodes)


scalars = st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"]))
documents = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(fields, inner), max_leaves=10)


@given(st.dictionaries(fields, documents))
def test_any_document_that_is_written_is_read_back(document: dict[str, object]) -> None:
    shared = {"one": document, "two": document}
    for text in (write_flow(shared), write_documents([shared])):
        (written,) = parse_documents(text, "written")
        assert written.data == shared
    assert "\n" not in write_flow(shared)
