"""Error budgets burning down over a report's range."""

from __future__ import annotations

from typing import Any, Final

import plotly.graph_objects as go

from dashboard.figures.drawing import Drawing, scatter
from dashboard.figures.time_axis import TimeAxis
from dashboard.reports import Report
from dashboard.reports.model import BurnPoint
from dashboard.reports.wording import OBJECTIVES
from dashboard.request.zones import Zone, utc

_HUES: Final = {False: ("#c2255c", "#1864ab"), True: ("#ff8cab", "#74c0fc")}
_FILLS: Final = ("rgba(224,86,130,.2)", "rgba(77,140,210,.2)")
_DASHES: Final = ("solid", "dash")
_INK: Final = {False: "#2b2f36", True: "#d5d9e0"}
_GRID: Final = {False: "#e9ecef", True: "#363a42"}


def burn_down_figure(report: Report, dark: bool = False) -> go.Figure:
    """Return the share of each budget that is left: a line for what is certain, a band down to what cannot be ruled
    out. A gap is a time of which nothing is known."""
    zone = Zone.named(report.span.zone)
    axis = TimeAxis.over(zone, report.span.from_s, report.span.to_s)
    drawing = Drawing()
    for which, one in enumerate(report.whole.attainments):
        name, hue = OBJECTIVES[one.objective], _HUES[dark][which]
        for side, style in (("min", {"width": 0}), ("max", {"width": 2, "color": hue, "dash": _DASHES[which]})):
            drawing.add_trace(
                scatter(
                    x=[axis.at(point.at_s) for point in report.burn_down],
                    y=[_percent(point, which, side) for point in report.burn_down],
                    customdata=[f"{zone.moment(point.at_s)}<br>{utc(point.at_s)}" for point in report.burn_down],
                    mode="lines+markers" if side == "max" else "lines",  # a point between two gaps has no line
                    marker={"size": 4},
                    line=style,
                    name=name,
                    legendgroup=name,
                    showlegend=side == "max",
                    fill="tonexty" if side == "max" else None,
                    fillcolor=_FILLS[which],
                    hoverinfo="skip" if side == "min" else None,
                    hovertemplate=f"{name}: %{{y:.1f}} % left<br>%{{customdata}}<extra></extra>"
                    if side == "max"
                    else None,
                )
            )
    return drawing.figure(
        height=280,
        margin={"l": 60, "r": 16, "t": 16, "b": 40},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": _INK[dark]},
        legend={"orientation": "h", "y": 1.12},
        uirevision=f"{report.span.from_s} {report.span.to_s}",
        xaxis={"title": f"time, {axis.offset}", "gridcolor": _GRID[dark]},
        yaxis={
            "title": "budget left (%)",
            "range": [100 * report.burn_down_floor, 105],
            "gridcolor": _GRID[dark],
            "zerolinecolor": _INK[dark],
        },
    )


def _percent(point: BurnPoint, which: int, side: str) -> Any:
    left = point.left[which]
    return None if left is None else 100 * left[side]
