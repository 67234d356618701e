"""The hops of a pipeline in the order of the flow, and which of them a minute's slowest path took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dashboard.words import Document
from lagloss.graph import Graph


@dataclass(frozen=True, slots=True)
class Hop:
    """One segment of the lag stack. `node` owns it: the link's target, or the node itself."""

    kind: Literal["arrival", "queue", "process"]
    node: str
    source: str | None = None

    @property
    def label(self) -> str:
        match self.kind:
            case "arrival":
                return f"until {self.node} takes it in"
            case "queue":
                return f"queue {self.source} → {self.node}"
            case _:
                return f"process {self.node}"


def hops(graph: Graph) -> list[Hop]:
    """Arrival at the first node, then for each node its incoming links and itself."""
    found = [Hop("arrival", graph.first_node)]
    for node in graph.steps:
        found += [Hop("queue", node, link.source) for link in graph.links if link.target == node]
        found.append(Hop("process", node))
    return found


def hop_values_ms(window: Document, graph: Graph) -> dict[Hop, float]:
    """The p95 of each hop that is known in this window."""
    values: dict[Hop, float] = {}
    for node in window["nodes"]:
        if node["name"] == graph.first_node and node["lag_in_p95_ms"] is not None:
            values[Hop("arrival", node["name"])] = node["lag_in_p95_ms"]
        if node["process_duration_p95_ms"] is not None:
            values[Hop("process", node["name"])] = node["process_duration_p95_ms"]
    for link in window["links"]:
        if link["queue_time_p95_ms"] is not None:
            values[Hop("queue", link["to"], link["from"])] = link["queue_time_p95_ms"]
    return values


def deliveries(graph: Graph) -> list[str]:
    """The nodes without next nodes, in the order of the flow."""
    return [checkpoint.removesuffix(".out") for checkpoint in graph.delivery]


def path_values_ms(window: Document, graph: Graph, delivery: str | None = None) -> dict[Hop, float]:
    """The hops of the slowest path to `delivery`, or to the delivery with the highest p95, with their p95.

    Where routes meet, the slowest is the one whose hops add up to the most.
    """
    values = hop_values_ms(window, graph)
    arrival = Hop("arrival", graph.first_node)
    if arrival not in values:
        return {}
    paths: dict[str, list[Hop]] = {}
    for node in graph.steps:
        before = [[arrival]] if node == graph.first_node else []
        for link in graph.links:
            queue = Hop("queue", node, link.source)
            if link.target == node and link.source in paths and queue in values:
                before.append([*paths[link.source], queue])
        if before:
            slowest = max(before, key=lambda path: sum(values[hop] for hop in path))
            process = Hop("process", node)
            paths[node] = [*slowest, process] if process in values else slowest
    lag_out = {node["name"]: node["lag_out_p95_ms"] for node in window["nodes"]}
    ends = [node for node in deliveries(graph) if node in paths and lag_out.get(node) is not None]
    if delivery is None and ends:
        delivery = max(ends, key=lambda node: lag_out[node])
    return {hop: values[hop] for hop in paths[delivery]} if delivery in ends else {}
