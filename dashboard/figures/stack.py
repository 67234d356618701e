"""Lag by hop, stacked along one path: as bars where there are few buckets, else as areas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from dashboard.figures.drawing import Trace, bar, scatter
from dashboard.figures.look import Moments, Numbers, faded, hatch, moments, numbers, safe
from dashboard.figures.time_axis import TimeAxis
from lagloss_server.model.hops import Hop

MAX_BARS: Final = 120
"""A browser draws ten areas of 1,440 steps in the time of some hundred bars."""
Stack = Mapping[Hop, float]
"""Time that each hop on the path adds in one bucket, in ms, signed."""
Edge = tuple[float, float]
"""From where to where a hop reaches in one bucket, in ms."""


@dataclass(frozen=True)
class LagPanel:
    """Where hops are drawn: buckets of `bucket_s` that start at `starts_s` (epoch s), in units of `unit_ms`."""

    starts_s: Sequence[int]
    bucket_s: int
    axis: TimeAxis
    yaxis: str
    unit_ms: float

    @cached_property
    def middles(self) -> Moments:
        """Of all buckets, on the axis."""
        return moments(self.axis.at(start_s + self.bucket_s / 2) for start_s in self.starts_s)

    def scaled(self, values_ms: Iterable[float | None]) -> Numbers:
        return numbers(None if value is None else value / self.unit_ms for value in values_ms)


def traces(panel: LagPanel, hops: Sequence[Hop], stacks: Sequence[Stack], hues: Mapping[str, str]) -> list[Trace]:
    """Return one trace per hop of any of the stacks. Positive values are stacked upwards from zero, negative ones
    down."""
    drawn = [hop for hop in hops if any(hop in stack for stack in stacks)]
    if len(panel.starts_s) <= MAX_BARS:
        return [_bars(panel, hop, [stack.get(hop) for stack in stacks], hues[hop.node]) for hop in drawn]
    edges = stacked(drawn, stacks)
    return [_area(panel, hop, edges[hop], hues[hop.node]) for hop in drawn]


def stacked(hops: Sequence[Hop], stacks: Sequence[Stack]) -> dict[Hop, list[Edge | None]]:
    """Return the bounds of each hop in each bucket, in ms; None where it is not on the path."""
    edges: dict[Hop, list[Edge | None]] = {hop: [] for hop in hops}
    for stack in stacks:
        up = down = 0.0
        for hop in hops:
            value = stack.get(hop)
            if value is None:
                edges[hop].append(None)
            elif value >= 0:
                edges[hop].append((up, up + value))
                up += value
            else:
                edges[hop].append((down, down + value))
                down += value
    return edges


def outline(
    edges: Sequence[Edge | None], starts_s: Sequence[int], bucket_s: int
) -> tuple[list[float | None], list[float | None]]:
    """x (epoch s) and y of closed lines around runs of buckets that follow each other, with None between runs: what is
    not known is not covered. A run goes through its buckets' middles, from the start of the first to the last's end."""
    x: list[float | None] = []
    y: list[float | None] = []
    for first, last in _runs(edges, starts_s, bucket_s):
        known_edges = [
            (start_s, edge) for start_s, edge in zip(starts_s[first:last], edges[first:last], strict=True) if edge
        ]
        points = [
            (known_edges[0][0], known_edges[0][1]),
            *((start_s + bucket_s / 2, edge) for start_s, edge in known_edges),
        ]
        points.append((known_edges[-1][0] + bucket_s, known_edges[-1][1]))
        upper = [(start_s, edge[1]) for start_s, edge in points]
        back = [(start_s, edge[0]) for start_s, edge in reversed(points)]
        if x:
            x.append(None)
            y.append(None)
        for moment, value in (*upper, *back, upper[0]):
            x.append(moment)
            y.append(value)
    return x, y


def _runs(edges: Sequence[Edge | None], starts_s: Sequence[int], bucket_s: int) -> list[tuple[int, int]]:
    """Return where buckets with a value follow each other: [first, last) by their places."""
    runs: list[tuple[int, int]] = []
    for index, edge in enumerate(edges):
        if edge is None:
            continue
        if runs and runs[-1][1] == index and starts_s[index] - starts_s[index - 1] == bucket_s:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _bars(panel: LagPanel, hop: Hop, values_ms: Sequence[float | None], hue: str) -> Trace:
    return bar(
        x=panel.middles,
        y=panel.scaled(values_ms),
        width=1_000 * panel.bucket_s * 0.87,
        marker={"color": _fill(hop, hue), "line": {"width": 0}, "pattern": _pattern(hop, hue)},
        **_named(hop, panel.yaxis),
    )


def _area(panel: LagPanel, hop: Hop, edges: Sequence[Edge | None], hue: str) -> Trace:
    x, y = outline(edges, panel.starts_s, panel.bucket_s)
    return scatter(
        x=moments(None if moment is None else panel.axis.at(moment) for moment in x),
        y=panel.scaled(y).astype(np.float32),
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=_fill(hop, hue),
        fillpattern=_pattern(hop, hue),
        **_named(hop, panel.yaxis),
    )


def _named(hop: Hop, yaxis: str) -> dict[str, Any]:
    return {
        "name": safe(hop.label),
        "uid": hop.uid,  # what a reader hid stays hidden when other hops are drawn
        "yaxis": yaxis,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _fill(hop: Hop, hue: str) -> str:
    return hue if hop.kind == "process" else faded(hue)


def _pattern(hop: Hop, hue: str) -> dict[str, Any]:
    return {"shape": hatch(hop.kind), "fgcolor": hue, "size": 5}
