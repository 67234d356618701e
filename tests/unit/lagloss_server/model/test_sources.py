"""Pipelines with several sources: their graph, and what of it the rules ask."""

from __future__ import annotations

import pytest

from lagloss.errors import UsageError
from lagloss_server.model.definition import StoredPipeline, parse_definition
from lagloss_server.model.graph import Graph
from lagloss_server.model.sources import demand_source, source_names

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"
BEHIND = "    - {name: norm, to: [store]}\n    - {name: store}\n"
SHOP = BEHIND + "    - {name: web, to: [norm]}\n"
APP = "    - {name: app, to: [norm]}\n"


def graph(nodes: str) -> Graph:
    return parse_definition(HEAD + nodes).graph


def names(found: Graph, checkpoint: str) -> set[str]:
    return set(found.names(found.dominators[found.bit[checkpoint]]))


def test_every_node_without_incoming_link_is_a_source_in_the_order_of_the_flow() -> None:
    assert graph(SHOP + APP).sources == ("web", "app")
    assert graph(SHOP).sources == ("web",)


def test_a_checkpoint_is_dominated_by_what_every_path_from_any_source_passes() -> None:
    found = graph(SHOP + APP)
    assert names(found, "app.out") == {"app.in", "app.out"}
    assert names(found, "norm.in") == {"norm.in"}
    assert names(found, "store.out") == {"norm.in", "norm.out", "store.in", "store.out"}
    assert names(graph(SHOP), "norm.in") == {"web.in", "web.out", "norm.in"}


def test_the_paths_of_one_source_pass_its_own_checkpoints_too_and_lead_to_none_of_another() -> None:
    found = graph(SHOP + APP)
    web, app = found.dominators_by_source
    assert set(found.names(web[found.bit["norm.in"]])) == {"web.in", "web.out", "norm.in"}
    assert app[found.bit["web.out"]] == 0


def test_the_sources_of_a_node_are_those_that_lead_to_it() -> None:
    found = graph("    - {name: web, to: [norm]}\n    - {name: app, to: [norm, mail]}\n    - {name: mail}\n" + BEHIND)
    assert found.sources_of("mail") == {"app"}
    assert found.sources_of("store") == {"web", "app"}


def test_no_more_copies_are_allowed_than_one_source_may_bring() -> None:
    copied = "    - {name: web, to: [a, b], copy: all}\n    - {name: app, to: [join]}\n"
    found = graph(copied + "    - {name: a, to: [join]}\n    - {name: b, to: [join]}\n    - {name: join}\n")
    assert found.allowed_copies[found.bit["join.in"]] == 2


def test_only_a_source_of_a_version_with_several_can_be_asked_for() -> None:
    versions = [
        StoredPipeline("orders", at, at, parse_definition(HEAD + SHOP + more)) for at, more in ((1, ""), (2, APP))
    ]
    assert source_names(versions) == ["web", "app"]
    assert source_names(versions[:1]) == []
    demand_source(versions, "web")
    with pytest.raises(UsageError, match=r"expected a source of orders \(web, app\), found till"):
        demand_source(versions, "till")
    with pytest.raises(UsageError, match="it has a single source"):
        demand_source(versions[:1], "web")
