"""Error budgets burning down over a report's range."""

from __future__ import annotations

from typing import Any, Final

import plotly.graph_objects as go

from dashboard.design import palette, translucent
from dashboard.figures.drawing import Drawing, scatter
from dashboard.figures.look import base_layout
from dashboard.figures.time_axis import TimeAxis
from dashboard.reports import Report
from dashboard.reports.model import BurnPoint
from dashboard.reports.wording import OBJECTIVES
from dashboard.request.zones import Zone, utc

_DASHES: Final = ("solid", "dash")


def burn_down_figure(report: Report, dark: bool = False) -> go.Figure:
    """Return the share of each budget that is left: a line for what is certain, a band down to what cannot be ruled
    out. A gap is a time of which nothing is known."""
    colours = palette(dark)
    hues = (colours.target, colours.open)
    zone = Zone.named(report.span.zone)
    drawn = report.burn_down_range
    axis = TimeAxis.over(zone, drawn.from_s, drawn.to_s)
    drawing = Drawing()
    for which, attainment in enumerate(report.whole.attainments):
        name, hue = OBJECTIVES[attainment.objective], hues[which]
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
                    fillcolor=translucent(hue, 0.2),
                    hoverinfo="skip" if side == "min" else None,
                    hovertemplate=f"{name}: %{{y:.1f}} % left<br>%{{customdata}}<extra></extra>"
                    if side == "max"
                    else None,
                )
            )
    return drawing.figure(
        height=280,
        margin={"l": 60, "r": 16, "t": 16, "b": 40},
        **{**base_layout(colours), "legend": {"orientation": "h", "y": 1.12}},
        uirevision=f"{report.span.from_s} {report.span.to_s}",
        xaxis={
            "title": f"time, {axis.offset}",
            "gridcolor": colours.grid,
            "range": [axis.at(drawn.from_s), axis.at(drawn.to_s)],
        },
        yaxis={
            "title": "budget left (%)",
            "range": [100 * report.burn_down_floor, 105],
            "gridcolor": colours.grid,
            "zerolinecolor": colours.text,
        },
    )


def _percent(point: BurnPoint, which: int, side: str) -> Any:
    remaining = point.left[which]
    return None if remaining is None else 100 * getattr(remaining, side)
