"""The share of each hop of the lag along one path: the talk's pie, and sorted bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import plotly.graph_objects as go

from dashboard.design import LIGHT, hues, palette
from dashboard.figures.drawing import Drawing, bar, pie
from dashboard.figures.look import base_layout, faded, hatch, lag_unit, safe
from lagloss_server import format as fmt
from lagloss_server.model.graph import Graph
from lagloss_server.rules.hops import Hop

_ON_SOLID: Final = LIGHT.line
"""Readable on every hue."""
BAR_PX: Final = 26
"""Height of one bar."""
_ROOM: Final = 2.4
"""The axis reaches so many times as far as the bars: each has its words beside it."""


@dataclass(frozen=True, slots=True)
class HopShare:
    """`share` of the sum of all that adds to the lag; None of a negative value, which is a fault of a clock."""

    hop: Hop
    p95_ms: float
    share: float | None


def shares(path: Mapping[Hop, float]) -> list[HopShare]:
    """Return the hops of a path, the largest first."""
    total = sum(value for value in path.values() if value > 0)
    found = [HopShare(hop, value, value / total if value >= 0 and total else None) for hop, value in path.items()]
    return sorted(found, key=lambda share: -share.p95_ms)


def pie_figure(found: list[HopShare], graph: Graph, dark: bool) -> go.Figure:
    """Return each hop's part of the whole, in the order of the flow."""
    of, hue = palette(dark), hues(graph.steps)
    known = [share for share in found if share.share]
    whole = Drawing(
        [
            pie(
                labels=[safe(share.hop.label) for share in known],
                values=[share.p95_ms for share in known],
                text=[
                    f"{safe(share.hop.label)}: {fmt.duration(share.p95_ms)}, {fmt.percent(share.share)}"
                    for share in known
                ],
                hovertemplate="%{text}<extra></extra>",
                texttemplate="%{percent:.0%}",
                textposition="inside",
                insidetextorientation="horizontal",
                textfont={"color": [_ON_SOLID if share.hop.kind == "process" else of.text for share in known]},
                hole=0.45,
                sort=False,
                marker={
                    "colors": [_colour(share.hop, hue) for share in known],
                    "pattern": {"shape": [hatch(share.hop.kind) for share in known], "size": 5},
                    "line": {"color": of.ground, "width": 1},
                },
            )
        ]
    )
    return whole.figure(
        **{**base_layout(of), "showlegend": False, "margin": {"l": 4, "r": 4, "t": 4, "b": 4}},
        uniformtext={"minsize": 11, "mode": "hide"},
    )


def bars_px(found: list[HopShare]) -> int:
    return BAR_PX * len(found) + 56


def bars_figure(found: list[HopShare], graph: Graph, dark: bool) -> go.Figure:
    """Return the hops by what they add, the largest on top, each with its lag and share in words."""
    of, hue = palette(dark), hues(graph.steps)
    values = [share.p95_ms for share in found]
    highest, lowest = max([0.0, *values]), min([0.0, *values])
    unit_ms, unit = lag_unit(highest)
    whole = Drawing(
        [
            bar(
                orientation="h",
                y=[safe(_short(share.hop.label)) for share in found],
                x=[share.p95_ms / unit_ms for share in found],
                text=[_describe(share) for share in found],
                textposition="outside",
                cliponaxis=False,
                hovertext=[f"{safe(share.hop.label)}: {_describe(share)}" for share in found],
                hovertemplate="%{hovertext}<extra></extra>",
                marker={
                    "color": [_colour(share.hop, hue) for share in found],
                    "pattern": {
                        "shape": [hatch(share.hop.kind) for share in found],
                        "fgcolor": [hue[share.hop.node] for share in found],
                        "size": 5,
                    },
                },
            )
        ]
    )
    return whole.figure(
        **{**base_layout(of), "showlegend": False, "margin": {"l": 8, "r": 8, "t": 4, "b": 36}},
        height=bars_px(found),
        bargap=0.25,
        yaxis={"autorange": "reversed", "automargin": True, "fixedrange": True, "ticks": ""},
        xaxis={
            "title": {"text": f"p95 ({unit})", "standoff": 4},
            "gridcolor": of.grid,
            "fixedrange": True,
            "range": [_ROOM * lowest / unit_ms, _ROOM * highest / unit_ms],
        },
    )


def _describe(share: HopShare) -> str:
    if share.share is None:
        return fmt.duration(share.p95_ms)
    return f"{fmt.duration(share.p95_ms)} · {fmt.percent(share.share)}"


def _colour(hop: Hop, hue: Mapping[str, str]) -> str:
    return hue[hop.node] if hop.kind == "process" else faded(hue[hop.node])


def _short(label: str, most: int = 30) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"
