"""Definitions: what is accepted, and that every refusal names file, line and expectation."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path

import pytest

from lagloss_server.base.errors import BadDefinition
from lagloss_server.judging.evidence import changed_nodes
from lagloss_server.model.definition import Definition, as_document, load_definition, parse_definition
from pipeline_under_test.stream.topology import ALL_CONSUMERS, DEFINITION, PIPELINE, group_of

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: clicks}\nspec:\n"
GOOD = HEAD + "  nodes:\n    - {name: a, to: [b]}\n    - {name: b}\n"


def test_defaults_are_those_of_the_docs() -> None:
    spec = parse_definition(GOOD).spec
    assert (spec.grace, spec.max_wait, spec.sla.loss.max) == (60_000, 900_000, 0.01)
    assert (spec.sla.lag.percentile, spec.sla.lag.target, spec.sla.staleness.max) == (95, 5_000, 300_000)


def test_a_stored_definition_reads_back_equal() -> None:
    definition = parse_definition(GOOD + "  grace: 90s\n  maxWait: 1h\n")
    assert Definition.model_validate(as_document(definition)) == definition


def test_a_node_may_name_its_consumer_group_and_so_may_a_retrier() -> None:
    nodes = "  nodes:\n    - {name: a, retries: r, group: shop.a}\n    - {name: r, group: shop.r}\n"
    assert parse_definition(HEAD + nodes).groups == {"a": "shop.a", "r": "shop.r"}
    assert parse_definition(GOOD).groups == {}


def test_a_node_may_name_its_queue_instead_of_a_group() -> None:
    url = "https://sqs.eu-central-1.amazonaws.com/123456789012/import"
    nodes = f"  nodes:\n    - {{name: a, to: [b], queue: '{url}'}}\n    - {{name: b, group: shop.b}}\n"
    assert parse_definition(HEAD + nodes).groups == {"a": url, "b": "shop.b"}


def test_a_batch_pipeline_may_wait_for_hours() -> None:
    spec = "  grace: 10m\n  maxWait: 2h\n  sla:\n    staleness: {max: 90m, checkpoints: {a.out: 30m}}\n"
    spec += "    lag: {target: 70m}\n  alerts:\n    pendingAge: {max: 90m}\n"
    found = parse_definition(HEAD + spec + "  nodes:\n    - {name: a, to: [b]}\n    - {name: b}\n").spec
    assert (found.grace, found.max_wait, found.alerts.pending_age[0].max) == (600_000, 7_200_000, 5_400_000)
    assert (found.sla.staleness.at("a.out"), found.sla.staleness.at("b.out")) == (1_800_000, 5_400_000)


def test_naming_a_queue_makes_no_node_another() -> None:
    named = GOOD.replace("{name: b}", "{name: b, queue: 'http://127.0.0.1:4566/000000000000/q'}")
    before, after = (parse_definition(text).graph for text in (GOOD, named))
    assert not changed_nodes(before, after)


def test_naming_a_group_makes_no_node_another() -> None:
    before, after = (parse_definition(text).graph for text in (GOOD, GOOD.replace("{name: b}", "{name: b, group: g}")))
    assert before.same_node(after, "b")


def test_a_definition_computes_its_graph_and_its_taps_once() -> None:
    definition = load_definition(DEFINITION)
    assert definition.graph is definition.graph
    assert definition.taps is definition.taps
    assert definition.graph.definition is definition


@pytest.mark.parametrize("deep", [False, True])
def test_a_copy_has_the_graph_of_its_own_nodes(deep: bool) -> None:
    definition = parse_definition(GOOD)
    _ = definition.graph, definition.taps
    other = parse_definition(GOOD.replace("name: b}", "name: b, to: [c]}\n    - {name: c}")).spec
    changed = definition.model_copy(update={"spec": other}, deep=deep)
    assert (definition.graph.steps, changed.graph.steps) == (("a", "b"), ("a", "b", "c"))
    assert changed.graph.definition is changed
    same = copy.deepcopy(definition) if deep else copy.copy(definition)
    assert same == definition
    assert same.graph.definition is same


def test_what_a_definition_has_computed_is_not_part_of_it() -> None:
    fresh, used = parse_definition(GOOD), parse_definition(GOOD)
    _ = used.graph.places, used.graph.destinations, used.taps
    assert used == fresh
    assert as_document(used) == as_document(fresh)
    assert pickle.dumps(used) == pickle.dumps(fresh)
    assert pickle.loads(pickle.dumps(used)) == fresh


def test_a_process_unpickles_the_graph_of_equal_definitions_once() -> None:
    first, second = (pickle.loads(pickle.dumps(parse_definition(GOOD).graph)) for _ in range(2))
    assert first is second
    assert first.definition.graph is first


def test_the_reference_pipeline_names_the_groups_that_its_nodes_read_in() -> None:
    assert load_definition(DEFINITION).groups == {node: group_of(PIPELINE, node) for node in ALL_CONSUMERS}


@pytest.mark.parametrize(("share", "ids"), [("1", 2**32), ("0.1", 429_496_729), ("0.5", 2**31), ("1e-30", 1)])
def test_a_sample_is_told_as_that_share_of_all_hashes_and_never_as_none(share: str, ids: int) -> None:
    assert parse_definition(f"{GOOD}  sample: {share}\n").sample == ids


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (GOOD + "  graze: 60s\n", 8, "graze"),
        (GOOD + "  grace: 60\n", 8, "expected a duration"),
        (GOOD + "  grace: soon\n", 8, "expected a duration"),
        (GOOD + "  sla:\n    loss: {max: 2}\n", 9, "less than or equal to 1"),
        (GOOD + "  sample: 0\n", 8, "greater than 0"),
        (GOOD + "  sample: 10%\n", 8, "expected a number"),
        (HEAD + "  nodes:\n    - {name: a, to: [b]}\n    - {name: b, to: [a]}\n", 4, "expected no cycles"),
        (
            HEAD + "  nodes:\n    - {name: a}\n    - {name: b}\n",
            4,
            "found no links between a and b",
        ),
        (HEAD + "  nodes:\n    - {name: a, to: [x]}\n", 4, "found x"),
        (HEAD + "  nodes:\n    - {name: a, to: [b], copy: all}\n    - {name: b}\n", 4, "several next nodes"),
        (HEAD + "  nodes:\n    - {name: a.b}\n", 6, "spec.nodes[0].name: expected a name of 1 to 100 letters"),
        (HEAD + "  nodes:\n    - {name: a}\n    - {name: a}\n", 4, "found a twice"),
        (HEAD + "  nodes:\n    - {name: a, groop: g}\n", 6, "groop"),
        (HEAD + "  nodes:\n    - {name: a, group: ''}\n", 6, "expected a group name of 1 to 255 characters"),
        (HEAD + "  nodes:\n    - {name: a, to: [b], group: g}\n    - {name: b, group: g}\n", 4, "found g at several"),
        (HEAD + "  nodes:\n    - {name: a, queue: db-queue}\n", 6, "expected an HTTP or HTTPS URL"),
        (HEAD + "  nodes:\n    - {name: a, group: g, queue: 'http://q/1/g'}\n", 4, "for a, found both"),
        (HEAD + "  nodes: [{name: a\n", 6, "expected YAML"),
        ("[]", 1, "document: expected a mapping, found an empty list"),
        ("", 1, "document: expected a mapping, found null"),
    ],
)
def test_refusal_names_line_and_expectation(text: str, line: int, expected: str) -> None:
    with pytest.raises(BadDefinition) as refused:
        parse_definition(text, "clicks.yaml")
    assert str(refused.value).startswith(f"clicks.yaml:{line}: ")
    assert expected in str(refused.value)


def test_more_than_200_checkpoints_are_refused() -> None:
    names = [f"n{at}" for at in range(51)]
    nodes = "".join(f"    - {{name: {a}, to: [{b}]}}\n" for a, b in itertools.pairwise(names))
    with pytest.raises(BadDefinition, match="up to 200 checkpoints, found 204"):
        parse_definition(HEAD + "  nodes:\n" + nodes + f"    - {{name: {names[-1]}}}\n")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDefinition, match="expected a readable"):
        load_definition(tmp_path / "none.yaml")
