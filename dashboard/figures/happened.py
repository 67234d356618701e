"""The strip of what happened: incidents as bars from their first window to their end, deploys as marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from dashboard.design import NODE_HUES, Palette
from dashboard.figures.drawing import Drawing, Trace, scatter
from dashboard.figures.look import safe
from dashboard.figures.time_axis import TimeAxis
from dashboard.queries.annotations import Deploy, DeployKind, Happenings
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import Incident

LANES: Final = 4
"""Incidents at the same time are drawn one below the other, in so many lanes; the rest shares the last."""
_SYMBOLS: Final[Mapping[DeployKind, str]] = {
    "definition": "star-diamond",
    "version": "diamond",
    "start": "circle",
    "restart": "circle-open",
    "scale-out": "triangle-up",
    "scale-in": "triangle-down",
}
RANGE: Final = [-LANES, 1.6]


def add(
    drawing: Drawing,
    happenings: Happenings,
    axis: TimeAxis,
    colours: Palette,
    now_s: float,
    yaxis: str,
    middles_s: Sequence[float] = (),
) -> None:
    """Add the strip to a figure on this axis of its. At `middles_s` (of the buckets) an incident says what it is."""
    # an axis without a trace is not drawn, and the time axis hangs on this one
    drawing.add_trace(scatter(x=[axis.at(axis.from_s)], y=[None], showlegend=False, hoverinfo="skip", yaxis=yaxis))
    if not happenings.incidents and not happenings.deploys:
        summary = "no incidents or deploys"
        drawing.add_annotation(
            x=0.5, xref="paper", y=-1, yref=yaxis, text=summary, showarrow=False, font={"color": colours.dim}
        )
    lanes: list[float] = []
    for incident in happenings.incidents:
        ends_s = end_s(incident, now_s)
        lane = _lane(lanes, incident.first_window_s, ends_s)
        drawing.add_trace(_incident(incident, ends_s, -lane, axis, colours, yaxis, middles_s))
    if happenings.deploys:
        drawing.add_trace(_deploys(happenings.deploys, axis, colours, yaxis))


def end_s(incident: Incident, now_s: float) -> float:
    """Return when it was over; now while it is open."""
    return now_s if incident.resolved_at is None else incident.resolved_at.timestamp()


def _lane(lanes: list[float], from_s: float, to_s: float) -> int:
    """Return the first lane that is free by then, which it takes."""
    for index, ends in enumerate(lanes):
        if ends <= from_s:
            lanes[index] = to_s
            return index
    if len(lanes) < LANES:
        lanes.append(to_s)
    return len(lanes) - 1


def _incident(
    incident: Incident,
    ends_s: float,
    y: float,
    axis: TimeAxis,
    colours: Palette,
    yaxis: str,
    middles_s: Sequence[float],
) -> Trace:
    first_s = max(incident.first_window_s, axis.from_s)
    last_s = max(first_s + WINDOW_S, min(ends_s, axis.to_s))
    points = [first_s, *(middle_s for middle_s in middles_s if first_s < middle_s < last_s), last_s]
    summary = f"{incident.severity}: {incident.rule}: {incident.text}"
    if incident.state == "open":
        summary += " (open)"
    return scatter(
        x=[axis.at(moment) for moment in points],
        y=[y] * len(points),
        mode="lines",
        line={"color": colours.loss if incident.severity == "critical" else colours.warning, "width": 6},
        text=[safe(summary)] * len(points),
        hovertemplate="%{text}<extra></extra>",
        name=safe(f"incident {incident.rule}"),
        uid=f"incident-{incident.id}",
        showlegend=False,
        yaxis=yaxis,
    )


def _deploys(deploys: Sequence[Deploy], axis: TimeAxis, colours: Palette, yaxis: str) -> Trace:
    return scatter(
        x=[axis.at(deploy.at_s) for deploy in deploys],
        y=[1] * len(deploys),
        mode="markers",
        marker={
            "symbol": [_SYMBOLS[deploy.kind] for deploy in deploys],
            "size": 9,
            "color": [colours.text if deploy.node is None else NODE_HUES[0] for deploy in deploys],
        },
        text=[safe(deploy.text) for deploy in deploys],
        hovertemplate="%{text}<extra></extra>",
        name="deploys, scaling",
        uid="deploys",
        yaxis=yaxis,
    )
