"""Windows of pipelines with several sources and sides, through whatever reads a window's window."""

from __future__ import annotations

import pytest

from alerting.rules import rules_of
from alerting.rules.windows import WindowReader
from dashboard.figures.flow_graph import flow_figure, spots
from dashboard.format import verdict_sentence
from dashboard.pages.breakdown import destinations, sides, sources
from dashboard.pages.window.table import table_rows
from dashboard.queries import buckets
from dashboard.queries.message_timeline import stays
from lagloss_server.cli.windows_table import windows_table
from lagloss_server.judging.live import live_result
from lagloss_server.model import hops
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph
from lagloss_server.model.window import ListedWindow
from lagloss_server.sums.quality import quality_rows
from lagloss_server.sums.rollup import Rollup
from tests.oracle.plan import START_S, Plan
from tests.oracle.worlds import build_world
from tests.support.in_memory import close_in_memory

SHAPES = ("merged", "several_ways", "cut_chain", "cut_twice", "cut_beside", "cut_retried")
PHENOMENA = frozenset({"lost_at_link", "lost_at_node", "filtered", "dead"})


def closed(topology: str, seed: int) -> tuple[Definition, Graph, ListedWindow, Rollup]:
    world = build_world(Plan(topology, 12, 8, PHENOMENA, seed))
    closing = close_in_memory(world, START_S)
    definition = Definition.model_validate(world.definitions[0][1])
    window = ListedWindow.of(closing.result, "closed", 1, "2026-11-21T08:42:00Z")
    return definition, definition.graph, window, Rollup.of_window(window, closing.facts)


@pytest.mark.parametrize("topology", SHAPES)
def test_every_reader_of_windows_takes_those_of_any_graph(topology: str) -> None:
    for seed in range(6):
        definition, graph, window, total = closed(topology, seed)
        minute = buckets.of_window(window, graph)
        assert minute.loss_ratio == buckets.of_rollup(total, START_S, 60, graph).loss_ratio
        for name in graph.sources:
            narrowed, row = minute.from_source(name), next(r for r in window.sources if r.name == name)
            assert (narrowed.messages, narrowed.delivered) == (row.messages or None, row.delivered) or not row.messages
            assert total.from_source(name).messages == row.messages
        path = hops.path_ms(hops.of_window(window, graph), graph)
        assert all(hop in hops.hops(graph) for hop in path)
        assert {row.checkpoint for row in table_rows(window, graph)} >= {f"{node}.in" for node in graph.nodes}
        assert windows_table([window]).row_count > len(graph.sources)
        assert "certainly lost" in verdict_sentence(window, 0.01)
        assert (sides(window) is None) == (len(graph.sides) == 1)
        assert sources(window, definition.spec.sla) is not None
        assert (destinations(window, definition.spec.sla) is None) == (len(graph.destinations) == 1)
        assert Rollup.unpack(total.pack()).document() == total.document()
        assert {row.stage.name for row in quality_rows(total, definition)} >= set(graph.steps)
        assert live_result(graph, START_S, []).document().get("sides", []) == [] or len(graph.sides) > 1


@pytest.mark.parametrize("topology", SHAPES)
def test_the_rules_of_alerting_read_windows_of_any_graph(topology: str) -> None:
    definition, graph, window, _ = closed(topology, 1)
    rules = rules_of(definition)
    watched = [name for rule in rules for name in rule.watches]
    reader = WindowReader.of(graph, [measure for rule in rules for measure in rule.reads], watched)
    windows = reader.windows([reader.row(START_S, window)])
    assert len(windows) == 1


@pytest.mark.parametrize("topology", SHAPES)
def test_the_graph_is_drawn_in_the_order_of_the_flow_across_cuts(topology: str) -> None:
    _, graph, _, total = closed(topology, 2)
    placed = spots(graph)
    for before, after in (*graph.cuts, *((link.source, link.target) for link in graph.links)):
        assert placed[before].x < placed[after].x
    flow_figure(graph, buckets.of_rollup(total, START_S, 60, graph), dark=False)
    assert list(stays(graph, [])) == []
