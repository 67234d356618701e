"""The Gantt chart of one message: its time in nodes and on links, in the order of the flow, since its event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from dashboard import format as words
from dashboard.design import NODE_HUES, palette
from dashboard.figures.drawing import Drawing, Trace, bar, scatter
from dashboard.figures.look import base_layout, faded
from dashboard.queries.message_timeline import Stay
from dashboard.request.zones import Zone, utc
from lagloss_server import format as fmt

_NODE: Final = NODE_HUES[0]
_LINK: Final = NODE_HUES[2]
_LEGEND: Final = {
    "orientation": "h", "x": 0, "yref": "container", "y": 1, "yanchor": "top", "font": {"size": 11},
}  # fmt: skip
_ROW_PX: Final = 34


def gantt(
    found: Sequence[Stay], missing: Mapping[str, str], event_ms: float, last_seen_ms: float, zone: Zone, dark: bool
) -> go.Figure:
    """`missing`: by place, its description. Times are counted from `event_ms` (epoch ms)."""
    of = palette(dark)
    unit_ms, unit = _unit(max((stay.to_ms or stay.from_ms) - event_ms for stay in found) if found else 0.0)
    places = list(dict.fromkeys([*(stay.place for stay in found), *missing]))
    drawing = Drawing()
    for kind, name, marker in (
        ("node", "time in the node", {"color": _NODE}),
        ("link", "time in the queue", {"color": faded(_LINK), "pattern": {"shape": "/", "fgcolor": _LINK, "size": 5}}),
    ):
        these = [stay for stay in found if stay.kind == kind]
        if these:
            drawing.add_trace(_bars(these, name, marker, event_ms, unit_ms, zone))
    drawing.add_trace(_arrivals(found, event_ms, unit_ms, of.text))
    if missing:
        drawing.add_trace(_missing_marks(missing, last_seen_ms, event_ms, unit_ms, of.loss))
    return drawing.figure(
        **{**base_layout(of), "hoverlabel": {**base_layout(of)["hoverlabel"], "align": "left"}, "legend": _LEGEND},
        margin={"l": 20, "r": 16, "t": 34, "b": 48},
        height=110 + _ROW_PX * max(len(places), 2),
        hovermode="closest",
        barmode="overlay",
        xaxis={
            "title": {"text": f"{unit} since the event"},
            "gridcolor": of.grid,
            "zerolinecolor": of.text,
            "rangemode": "tozero",
        },
        yaxis={
            "categoryorder": "array",
            "categoryarray": [escape(words.place_label(place)) for place in reversed(places)],
            "automargin": True,
            "showgrid": False,
        },
        dragmode=False,
    )


def _bars(
    these: Sequence[Stay], name: str, marker: dict[str, Any], event_ms: float, unit_ms: float, zone: Zone
) -> Trace:
    known = [(stay, stay.to_ms) for stay in these if stay.to_ms is not None]
    return bar(
        orientation="h",
        y=[escape(words.place_label(stay.place)) for stay, _ in known],
        base=[(stay.from_ms - event_ms) / unit_ms for stay, _ in known],
        x=[(to_ms - stay.from_ms) / unit_ms for stay, to_ms in known],
        customdata=[_describe(stay, zone) for stay, _ in known],
        name=name,
        width=0.55,
        marker=marker,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _arrivals(found: Sequence[Stay], event_ms: float, unit_ms: float, colour: str) -> Trace:
    """Mark the beginning of each stay: a millisecond among minutes would be no visible bar."""
    return scatter(
        x=[(stay.from_ms - event_ms) / unit_ms for stay in found],
        y=[escape(words.place_label(stay.place)) for stay in found],
        mode="markers",
        name="arrived",
        marker={"symbol": "line-ns-open", "size": 14, "color": colour, "line": {"width": 2, "color": colour}},
        hoverinfo="skip",
    )


def _missing_marks(
    missing: Mapping[str, str], last_seen_ms: float, event_ms: float, unit_ms: float, colour: str
) -> Trace:
    return scatter(
        x=[(last_seen_ms - event_ms) / unit_ms] * len(missing),
        y=[escape(words.place_label(place)) for place in missing],
        mode="markers+text",
        name="missing",
        text=[f"{escape(summary)} " for summary in missing.values()],
        textposition="middle left",  # it is the last that is known: right of it the figure ends
        textfont={"color": colour},
        marker={"symbol": "x", "size": 12, "color": colour},
        cliponaxis=False,
        hovertemplate="%{text}<extra></extra>",
    )


def _describe(stay: Stay, zone: Zone) -> str:
    again = f", time {stay.turn}" if stay.turn > 1 else ""
    replay = f", replay {stay.replay}" if stay.replay else ""
    at_s = stay.from_ms / 1_000
    lines = (
        f"{words.place_label(stay.place)}{again}{replay}: {fmt.duration(stay.length_ms)}",
        f"from {zone.moment(at_s, seconds=True)}",
        f"({utc(at_s, seconds=True)})",
    )
    return "<br>".join(escape(line) for line in lines)


def _unit(highest_ms: float) -> tuple[float, str]:
    if highest_ms < 2_000:
        return 1.0, "ms"
    return (1_000.0, "s") if highest_ms < 300_000 else (60_000.0, "min")
