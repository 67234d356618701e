"""The nodes of a pipeline over time, a row each: lag in and out, process duration, and queue times into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import plotly.graph_objects as go

from dashboard.design import SIZES, hues
from dashboard.figures.drawing import Drawing
from dashboard.figures.frame import FigureFrame, line
from dashboard.figures.look import base_layout, lag_unit, safe
from dashboard.queries.buckets import Bucket
from lagloss_server.base import format as fmt
from lagloss_server.model.graph import Graph
from lagloss_server.model.place import node_label
from lagloss_server.model.window import Percentiles

ROW_PX: Final = 116
_FOOT_PX: Final = 64
WIDTH_PX: Final = 860
"""The least width at which three columns can be read."""
_POINTS: Final = 120
"""So many points a line tell what there is to see in a row this small; each is then the highest of its buckets."""
_COLUMNS: Final = (
    ("lag in (dotted), lag out, p95", 0.0, 0.32),
    ("process duration: p50, p95, p99", 0.37, 0.66),
    ("queue time before the node", 0.71, 1.0),
)
"""Title, left and right end of each, in shares of the width."""
_SHARES: Final = (("p99", "dot", 1.0), ("p95", "solid", 2.0), ("p50", "dash", 1.0))

Read = Callable[[Bucket], float | None]


@dataclass(frozen=True, slots=True)
class _DrawnPoint:
    """Buckets that are drawn as one point."""

    start_s: int
    length_s: int
    buckets: Sequence[Bucket]

    def highest(self, read_value: Read) -> float | None:
        return max((value for bucket in self.buckets if (value := read_value(bucket)) is not None), default=None)


@dataclass(frozen=True, slots=True)
class _Line:
    """`values`: in ms, one for each point."""

    name: str
    values: list[float | None]
    look: dict[str, Any]


def height_px(graph: Graph) -> int:
    return ROW_PX * len(graph.nodes) + _FOOT_PX


def caption(frame: FigureFrame) -> str:
    """Return what a point of the lines is, and of how many minutes distributions are known."""
    measured = sum(1 for bucket in frame.series.buckets if bucket.durations)
    many = len(frame.series.buckets)
    said = (
        f"distributions need windows whose beacons were read: {fmt.count(measured)} of {fmt.counted(many, frame.unit)}"
    )
    size = _size(frame)
    return said if size == 1 else f"each point is the maximum of {size} {frame.unit.partition(' ')[0]}s; {said}"


def nodes_figure(frame: FigureFrame) -> go.Figure:
    """Draw the rows in the order of the flow."""
    graph, colours = frame.definition.graph, frame.colours
    points = _drawn_points(frame)
    drawing, hue = Drawing(), hues(graph.steps)
    time_axis = frame.axis.layout(colours, "")
    layout: dict[str, Any] = {}
    height, foot = height_px(graph), _FOOT_PX
    for row, node in enumerate(graph.nodes):
        is_last = node == graph.nodes[-1]
        top = 1 - row * ROW_PX / (height - foot)
        domain = [max(0.0, top - (ROW_PX - 34) / (height - foot)), max(0.0, top - 18 / (height - foot))]
        lines = (
            _lags(node, points, hue.get(node, colours.dim)),
            _shares(node_label(node), points, hue.get(node, colours.dim)),
            [
                share
                for link in graph.links
                if link.target == node
                for share in _shares(link.label, points, hue.get(link.source, colours.dim), link.source)
            ],
        )
        for column, (drawn, (title, left_title, right)) in enumerate(zip(lines, _COLUMNS, strict=True)):
            number = row * len(_COLUMNS) + column + 1
            suffix = "" if number == 1 else str(number)
            unit = _add(drawing, frame, points, drawn, suffix)
            layout[f"xaxis{suffix}"] = {
                **time_axis, "title": time_axis["title"] if is_last else None, "domain": [left_title, right],
                "anchor": f"y{suffix}", "nticks": 4, "showticklabels": is_last, "fixedrange": True,
                **({} if number == 1 else {"matches": "x"}),
            }  # fmt: skip
            layout[f"yaxis{suffix}"] = {
                "domain": domain, "anchor": f"x{suffix}", "fixedrange": True, "rangemode": "tozero", "nticks": 3,
                "gridcolor": colours.grid, "zerolinecolor": colours.dim, "ticksuffix": f" {unit}",
                "tickfont": {"size": 10}, "ticklabeloverflow": "allow", "visible": bool(drawn),
            }  # fmt: skip
            name = f"<b>{safe(node)}</b>  " if not column else ""
            drawing.add_annotation(
                x=left_title, y=top, xref="paper", yref="paper", xanchor="left", yanchor="top", showarrow=False,
                text=f"{name}{title}" if drawn else name, font={"size": SIZES["small"], "color": colours.text},
            )  # fmt: skip
    return drawing.figure(
        **base_layout(colours),
        **layout,
        showlegend=False,
        margin={"l": 56, "r": 12, "t": 4, "b": foot - 4, "autoexpand": False},
        height=height,
        hovermode="x unified",
        dragmode=False,
        uirevision=frame.series.pipeline,
    )


def _size(frame: FigureFrame) -> int:
    """Return how many buckets a point is of."""
    return -(-frame.series.span.length_s // frame.series.bucket_s // _POINTS) or 1


def _drawn_points(frame: FigureFrame) -> list[_DrawnPoint]:
    length_s = _size(frame) * frame.series.bucket_s
    by_start = groupby(frame.series.buckets, key=lambda bucket: bucket.start_s // length_s * length_s)
    return [_DrawnPoint(start_s, length_s, list(buckets)) for start_s, buckets in by_start]


def _lags(node: str, points: Iterable[_DrawnPoint], hue: str) -> list[_Line]:
    def lag_in(bucket: Bucket) -> float | None:
        return bucket.lags.lag_in.get(node)

    def lag_out(bucket: Bucket) -> float | None:
        return bucket.lags.lag_out.get(node)

    lines = [
        _Line("lag in", [point.highest(lag_in) for point in points], {"color": hue, "width": 1.5, "dash": "dot"}),
        _Line("lag out", [point.highest(lag_out) for point in points], {"color": hue, "width": 2}),
    ]
    return [line for line in lines if any(value is not None for value in line.values)]


def _shares(place: str, points: Sequence[_DrawnPoint], hue: str, source: str | None = None) -> list[_Line]:
    def value(bucket: Bucket, share: str) -> float | None:
        lags: Percentiles | None = bucket.durations.get(place)
        return None if lags is None else getattr(lags, share)

    lines = [
        _Line(
            share if source is None else f"from {source} {share}",
            [point.highest(partial(value, share=share)) for point in points],
            {"color": hue, "width": width, "dash": dash},
        )
        for share, dash, width in _SHARES
    ]
    return [line for line in lines if any(value is not None for value in line.values)]


def _add(
    drawing: Drawing, frame: FigureFrame, points: Sequence[_DrawnPoint], lines: Sequence[_Line], suffix: str
) -> str:
    """Add the lines to a panel; return the unit of its axis."""
    unit_ms, unit = lag_unit(max((value for line in lines for value in line.values if value is not None), default=0.0))
    axes = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
    if not lines:
        drawing.add_trace({"type": "scatter", "x": [frame.axis.at(frame.axis.from_s)], "y": [None], **axes})
        drawing.add_annotation(
            x=0.5, y=0.5, xref=f"x{suffix} domain", yref=f"y{suffix} domain", showarrow=False, text="–",
            font={"color": frame.colours.dim},
        )  # fmt: skip
    for drawn_line in lines:
        drawn = [None if value is None else value / unit_ms for value in drawn_line.values]
        trace = line(frame, drawn, points, name=safe(drawn_line.name), line=drawn_line.look, **axes)
        drawing.add_trace({**trace, "hoverinfo": "all", "hovertemplate": f"%{{y:.3~g}} {unit}"})
    return unit
