"""Graphs that are cut where ids are new: their nodes, checkpoints and sides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.base.errors import BadDefinition
from lagloss_server.model.cuts import parent_of
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"
SHOP = "    - {name: shop, to: [sum]}\n"
STORE = "    - {name: store}\n"
SPLIT = "    - {name: sum, to: [store], ids: new, contract: split}\n"
BARE = "    - {name: sum, to: [store], ids: new}\n"


def graph(*nodes: str) -> Graph:
    return parse_definition(HEAD + "".join(nodes)).graph


def test_a_node_with_new_ids_is_a_delivery_of_the_side_before_and_a_source_of_the_side_after() -> None:
    found = graph(SHOP, SPLIT, STORE)
    assert found.steps == ("shop", "sum", "sum-new", "store")
    assert [(side.name, side.nodes) for side in found.sides] == [
        ("shop", ("shop", "sum")),
        ("sum-new", ("sum-new", "store")),
    ]
    assert found.sources == ("shop", "sum-new")
    assert found.delivery == ("sum.out", "store.out")
    assert [link.name for link in found.links] == ["shop->sum", "sum-new->store"]
    assert found.cuts == (("sum", "sum-new"),)


def test_without_a_contract_a_message_is_delivered_where_it_is_taken_in() -> None:
    found = graph(SHOP, BARE, STORE)
    assert found.delivery == ("sum.in", "store.out")
    assert [name for name in found.checkpoints if name.startswith("sum.")] == ["sum.in"]
    assert "node sum" not in {place.label for place in found.places}
    assert all(outs for _, _, outs in found.spans)


def test_each_side_is_the_part_of_its_one_destination() -> None:
    found = graph(SHOP, SPLIT, STORE)
    assert [there.part for there in found.destinations] == [side.mask for side in found.sides]


def test_a_way_around_the_cut_makes_both_sides_one() -> None:
    found = graph("    - {name: shop, to: [sum, store]}\n", SPLIT, STORE)
    assert [side.nodes for side in found.sides] == [("shop", "sum", "sum-new", "store")]
    assert found.sides[0].sources == ("shop", "sum-new")


def test_a_retrier_that_nodes_of_both_sides_use_makes_them_one() -> None:
    retried = SPLIT.replace("split", "split, retries: again")
    assert len(graph(SHOP, retried, STORE).sides) == 2
    assert len(graph(SHOP, retried, "    - {name: store, retries: again}\n").sides) == 1


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (
            (SHOP, BARE.replace(", ids: new", ", contract: split"), STORE),
            "`ids: new` for sum, since it has a `contract`",
        ),
        (
            (SHOP, BARE.replace("new", "new, retries: r"), STORE),
            "a `contract` for sum, since it has `ids: new` and `retries`",
        ),
        ((BARE, STORE), "a link into sum"),
        ((SHOP, BARE, STORE, "    - {name: sum-new, to: [store]}\n"), "expected no node named sum-new"),
        ((SHOP, BARE.replace("new", "old"), STORE), "expected 'new', found 'old'"),
        ((SHOP.replace("sum", "s" * 100), BARE.replace("sum", "s" * 100), STORE), "up to 96 characters"),
    ],
)
def test_a_cut_that_makes_no_sense_is_refused(nodes: tuple[str, ...], expected: str) -> None:
    with pytest.raises(BadDefinition, match=expected):
        graph(*nodes)


def test_targets_and_jobs_may_name_the_node_at_which_new_ids_begin() -> None:
    sides = BARE.replace("[store]", "[]")
    more = "  sla: {destinations: {sum: {}, sum-new: {loss: {max: 0}}}}\n  jobs: [{dag: d, node: sum-new}]\n"
    assert graph(SHOP, sides, more).delivery == ("sum.in", "sum-new.out")


TAPPED = """
    - {name: shop, to: [sum], taps: {out: {topic: orders, id: key, eventTime: timestamp}}}
    - {name: sum, to: [store], ids: new, taps: {in: {group: sum}, out: {topic: totals, id: key, eventTime: timestamp}}}
    - {name: store, taps: {in: {group: store}}}
"""


def test_a_tap_on_a_node_with_new_ids_is_of_the_side_whose_ids_its_records_have() -> None:
    taps = parse_definition(HEAD + TAPPED.lstrip("\n")).taps
    found = {(tap.node, tap.topic, tap.group, tap.places) for tap in taps}
    assert found == {
        ("shop", "orders", None, ("in", "out")),
        ("sum", "orders", "sum", ("in",)),
        ("sum-new", "totals", None, ("in", "out")),
        ("store", "totals", "store", ("in", "out")),
    }


def test_a_tap_whose_records_have_new_ids_needs_an_id_of_its_own() -> None:
    with pytest.raises(BadDefinition, match="an `id`, since no preceding tap has one"):
        parse_definition(HEAD + TAPPED.lstrip("\n").replace("totals, id: key", "totals"))


@given(st.text(min_size=1, max_size=20), st.integers(0, 10**6), st.none() | st.integers(0, 10**6))
def test_the_parent_of_a_child_is_what_stands_before_its_number(parent: str, number: int, of: int | None) -> None:
    assert parent_of(f"{parent}#{number}" + ("" if of is None else f"/{of}")) == parent


@pytest.mark.parametrize("name", ["order-7", "#1", "order#", "order#x", "order#1/x", "order#1/2/3", "order#-1"])
def test_an_id_without_a_number_behind_its_parents_names_no_parent(name: str) -> None:
    assert parent_of(name) is None
