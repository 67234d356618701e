"""The graph of a pipeline, left to right in the order of the flow, with lag and loss on its nodes and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import networkx as nx
import plotly.graph_objects as go

from dashboard.design import Palette, hues, palette
from dashboard.figures.drawing import Drawing, scatter
from dashboard.figures.look import base_layout, safe
from dashboard.queries.buckets import Bucket
from lagloss_server.base import format as fmt
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import Hop
from lagloss_server.model.place import node_label
from lagloss_server.model.window import Interval

RANK_PX: Final = 200
ROW_PX: Final = 84
_MAX_NAME: Final = 22
_RETRIER_GAP: Final = 1.0


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a node stands: its rank from the left, and its row, upwards."""

    x: float
    y: float


def spots(graph: Graph) -> dict[str, Spot]:
    """Nodes by rank (the longest way from a source, across cuts), those of a rank one above the other around the
    middle, and
    retriers below the nodes that use them."""
    flow: nx.DiGraph[str] = nx.DiGraph()
    flow.add_nodes_from(graph.steps)
    flow.add_edges_from([*((link.source, link.target) for link in graph.links), *graph.cuts])
    spots: dict[str, Spot] = {}
    for rank, generation in enumerate(nx.topological_generations(flow)):
        ordered = sorted(generation, key=graph.steps.index)
        for index, node in enumerate(ordered):
            spots[node] = Spot(rank, (len(ordered) - 1) / 2 - index)
    lowest = min(spot.y for spot in spots.values())
    for index, retrier in enumerate(graph.retriers):
        ranks = [spots[user].x for user in graph.users(retrier)]
        spots[retrier] = Spot(sum(ranks) / len(ranks), lowest - _RETRIER_GAP * (1 + index))
    return spots


def width_px(graph: Graph) -> int:
    """Return how wide the figure has to be for its words not to overlap."""
    return int(RANK_PX * (1 + max(spot.x for spot in spots(graph).values())))


def height_px(graph: Graph) -> int:
    rows = [spot.y for spot in spots(graph).values()]
    return int(ROW_PX * (max(rows) - min(rows) + 1) + 24)


def flow_figure(graph: Graph, total: Bucket | None, dark: bool) -> go.Figure:
    """`total`: the bucket of lag and loss; None: only the pipeline's structure."""
    colours, placed = palette(dark), spots(graph)
    rows = [spot.y for spot in placed.values()]
    drawing = Drawing()
    hue = hues(graph.steps)
    for link in graph.links:
        lost = None if total is None else total.lost_at.get(link.label)
        _add_link(
            drawing,
            placed[link.source],
            placed[link.target],
            describe_link(link.source, link.target, total),
            lost,
            colours,
        )
    for before, after in graph.cuts:  # other messages go on
        _add_line(drawing, placed[before], placed[after], colours.dim, dash="dash")
    for retrier in graph.retriers:
        for user in graph.users(retrier):
            _add_line(drawing, placed[user], placed[retrier], colours.dim, dash="dot")
    for node in graph.nodes:
        lost = None if total is None else total.lost_at.get(node_label(node))
        _add_node(
            drawing, node, placed[node], describe_node(node, graph, total), lost, hue.get(node, colours.dim), colours
        )
    _add_hops(drawing, graph, placed)
    return drawing.figure(
        **{**base_layout(colours), "showlegend": False, "margin": {"l": 4, "r": 4, "t": 4, "b": 4}},
        height=height_px(graph),
        dragmode=False,
        hovermode="closest",
        hoverdistance=40,
        xaxis={"visible": False, "fixedrange": True, "range": [-0.5, max(s.x for s in placed.values()) + 0.5]},
        yaxis={"visible": False, "fixedrange": True, "range": [min(rows) - 0.62, max(rows) + 0.62]},
    )


def _add_hops(drawing: Drawing, graph: Graph, placed: Mapping[str, Spot]) -> None:
    """Add a point for each hop, unseen: it names the hop that the mouse is at."""
    hops = [(Hop("process", node), placed[node]) for node in graph.steps]
    hops += [
        (Hop("queue", link.target, link.source), _on_link(placed[link.source], placed[link.target]))
        for link in graph.links
    ]
    drawing.add_trace(
        scatter(
            x=[spot.x for _, spot in hops],
            y=[spot.y for _, spot in hops],
            customdata=[hop.uid for hop, _ in hops],
            mode="markers",
            marker={"opacity": 0, "size": 40},
            text=[safe(hop.label) for hop, _ in hops],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def lost_words(lost: Interval | None) -> str:
    """`30 lost`, `20–25 lost`; empty where nothing was."""
    return "" if lost is None else f"{fmt.count_interval(lost)} lost"


def describe_node(node: str, graph: Graph, total: Bucket | None) -> list[str]:
    """Return the lines below the name of a node."""
    if node in graph.retriers:
        return ["retrier"]
    if total is None:
        return []
    return [f"process {fmt.duration(total.lags.hops.get(Hop('process', node)))}"]


def describe_link(source: str, target: str, total: Bucket | None) -> list[str]:
    """Return the words on a link without those on loss."""
    if total is None:
        return []
    return [fmt.duration(total.lags.hops.get(Hop("queue", target, source)))]


def _add_node(
    drawing: Drawing, node: str, spot: Spot, summary: list[str], lost: Interval | None, hue: str, palette: Palette
) -> None:
    name = node if len(node) <= _MAX_NAME else f"{node[: _MAX_NAME - 1]}…"
    lines = [f"<b>{safe(name)}</b>", *summary]
    if lost is not None:
        lines.append(_red(lost_words(lost), palette))
    drawing.add_annotation(
        **_at(spot), text="<br>".join(lines), align="center", bgcolor=palette.ground,
        bordercolor=palette.lossy if lost is not None else hue, borderwidth=2, borderpad=6,
    )  # fmt: skip


def _add_link(
    drawing: Drawing, source: Spot, target: Spot, summary: list[str], lost: Interval | None, palette: Palette
) -> None:
    _add_line(drawing, source, target, palette.lossy if lost is not None else palette.dim)
    lines = [*summary, *([_red(lost_words(lost).replace(" ", "<br>"), palette)] if lost is not None else [])]
    if lines:
        drawing.add_annotation(
            **_at(_on_link(source, target)), text="<br>".join(lines), bgcolor=palette.ground, font={"size": 11}
        )


def _on_link(source: Spot, target: Spot) -> Spot:
    """Return where a link's words stand: nearer to the target, since what leaves one node for several would overlap
    near the source."""
    return Spot(source.x + 0.52 * (target.x - source.x), source.y + 0.52 * (target.y - source.y))


def _add_line(drawing: Drawing, source: Spot, target: Spot, colour: str, dash: str = "solid") -> None:
    line: Mapping[str, Any] = {"color": colour, "width": 2, "dash": dash}
    drawing.add_shape(
        type="line", layer="below", x0=source.x, y0=source.y, x1=target.x, y1=target.y, xref="x", yref="y", line=line
    )


def _at(spot: Spot) -> dict[str, Any]:
    return {"x": spot.x, "y": spot.y, "xref": "x", "yref": "y", "showarrow": False}


def _red(text: str, palette: Palette) -> str:
    return f'<span style="color:{palette.lossy}"><b>{text}</b></span>'
