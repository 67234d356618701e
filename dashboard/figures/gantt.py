"""Gantt charts: of one message, its time in nodes and on links since its event; of one run, the tries of its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import plotly.graph_objects as go

from dashboard import format as words
from dashboard.design import NODE_HUES, Palette, palette
from dashboard.figures.drawing import Drawing, Trace, bar, scatter
from dashboard.figures.look import base_layout, faded, lag_unit
from dashboard.queries.message_timeline import Stay
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.runs.dag_runs import DagRun, TaskTry

_NODE: Final = NODE_HUES[0]
_LINK: Final = NODE_HUES[2]
_LEGEND: Final = {
    "orientation": "h", "x": 0, "yref": "container", "y": 1, "yanchor": "top", "font": {"size": 11},
}  # fmt: skip
_ROW_PX: Final = 34


def gantt(
    stays: Sequence[Stay], missing: Mapping[str, str], event_ms: float, last_seen_ms: float, zone: Zone, dark: bool
) -> go.Figure:
    """`missing`: by place, its description. Times are counted from `event_ms` (epoch ms)."""
    colours = palette(dark)
    unit_ms, unit = lag_unit(max((stay.to_ms or stay.from_ms) - event_ms for stay in stays) if stays else 0.0)
    places = list(dict.fromkeys([*(stay.place for stay in stays), *missing]))
    drawing = Drawing()
    for kind, name, marker in (
        ("node", "time in the node", {"color": _NODE}),
        ("link", "time in the queue", {"color": faded(_LINK), "pattern": {"shape": "/", "fgcolor": _LINK, "size": 5}}),
    ):
        these = [stay for stay in stays if stay.kind == kind]
        if these:
            drawing.add_trace(_bars(these, name, marker, event_ms, unit_ms, zone))
    drawing.add_trace(_arrivals(stays, event_ms, unit_ms, colours.text))
    if missing:
        drawing.add_trace(_missing_marks(missing, last_seen_ms, event_ms, unit_ms, colours.loss))
    return _figure(drawing, [words.place_label(place) for place in places], f"{unit} since the event", colours)


def run_gantt(run: DagRun, now_ms: float, zone: Zone, dark: bool) -> go.Figure:
    """Draw the tries of a run's tasks by their state, each in a row of its own, in the order in which they began."""
    colours = palette(dark)
    begun = [task_try for task_try in run.tries if task_try.started_ms is not None]
    first_ms = min([task_try.started_ms for task_try in begun if task_try.started_ms is not None], default=run.due_ms)
    ends_ms = [now_ms if task_try.ended_ms is None else task_try.ended_ms for task_try in begun]
    unit_ms, unit = lag_unit(max(ends_ms, default=first_ms) - first_ms)
    drawing = Drawing()
    for state, marker in _run_looks(colours).items():
        these = [task_try for task_try in begun if task_try.state == state]
        if these:
            drawing.add_trace(_tries(these, state, marker, first_ms, now_ms, unit_ms, zone))
    return _figure(drawing, [_row(task_try) for task_try in begun], f"{unit} since the first task began", colours)


def _run_looks(palette: Palette) -> dict[str, dict[str, Any]]:
    """Return the marker of each state, which differ by pattern as well as by colour."""
    return {
        "success": {"color": palette.ok},
        "failed": {"color": faded(palette.loss), "pattern": {"shape": "x", "fgcolor": palette.loss, "size": 6}},
        "skipped": {"color": faded(palette.idle), "pattern": {"shape": ".", "fgcolor": palette.idle, "size": 5}},
        "running": {"color": faded(palette.open), "pattern": {"shape": "/", "fgcolor": palette.open, "size": 5}},
    }


def _tries(
    these: Sequence[TaskTry],
    state: str,
    marker: dict[str, Any],
    first_ms: float,
    now_ms: float,
    unit_ms: float,
    zone: Zone,
) -> Trace:
    def describe(task_try: TaskTry) -> str:
        at_s = (task_try.started_ms or first_ms) / 1_000
        took = "not ended" if task_try.ended_ms is None else fmt.duration(task_try.duration_ms)
        lines = (
            f"{_row(task_try)}: {state}, {took}",
            f"from {zone.moment(at_s, seconds=True)}",
            f"({utc(at_s, seconds=True)})",
        )
        return "<br>".join(escape(line) for line in lines)

    begins = [float(task_try.started_ms or first_ms) for task_try in these]
    ends = [float(now_ms if task_try.ended_ms is None else task_try.ended_ms) for task_try in these]
    return bar(
        orientation="h",
        y=[escape(_row(task_try)) for task_try in these],
        base=[(begin - first_ms) / unit_ms for begin in begins],
        x=[max(0.0, end - begin) / unit_ms for begin, end in zip(begins, ends, strict=True)],
        customdata=[describe(task_try) for task_try in these],
        name=state,
        width=0.55,
        marker=marker,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _row(task_try: TaskTry) -> str:
    return f"{task_try.label}, try {task_try.number}" if task_try.number > 1 else task_try.label


def _figure(drawing: Drawing, rows: Sequence[str], axis: str, palette: Palette) -> go.Figure:
    """Return the chart with these rows, the first on top."""
    return drawing.figure(
        **{
            **base_layout(palette),
            "hoverlabel": {**base_layout(palette)["hoverlabel"], "align": "left"},
            "legend": _LEGEND,
        },
        margin={"l": 20, "r": 16, "t": 34, "b": 48},
        height=110 + _ROW_PX * max(len(rows), 2),
        hovermode="closest",
        barmode="overlay",
        xaxis={
            "title": {"text": axis},
            "gridcolor": palette.grid,
            "zerolinecolor": palette.text,
            "rangemode": "tozero",
        },
        yaxis={
            "categoryorder": "array",
            "categoryarray": [escape(row) for row in reversed(rows)],
            "automargin": True,
            "showgrid": False,
        },
        dragmode=False,
    )


def _bars(
    these: Sequence[Stay], name: str, marker: dict[str, Any], event_ms: float, unit_ms: float, zone: Zone
) -> Trace:
    ended = [(stay, stay.to_ms) for stay in these if stay.to_ms is not None]
    return bar(
        orientation="h",
        y=[escape(words.place_label(stay.place)) for stay, _ in ended],
        base=[(stay.from_ms - event_ms) / unit_ms for stay, _ in ended],
        x=[(to_ms - stay.from_ms) / unit_ms for stay, to_ms in ended],
        customdata=[_describe(stay, zone) for stay, _ in ended],
        name=name,
        width=0.55,
        marker=marker,
        hovertemplate="%{customdata}<extra></extra>",
    )


def _arrivals(stays: Sequence[Stay], event_ms: float, unit_ms: float, colour: str) -> Trace:
    """Mark the beginning of each stay: a millisecond among minutes would be no visible bar."""
    return scatter(
        x=[(stay.from_ms - event_ms) / unit_ms for stay in stays],
        y=[escape(words.place_label(stay.place)) for stay in stays],
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
    again = f", occurrence {stay.turn}" if stay.turn > 1 else ""
    replay = f", replay {stay.replay}" if stay.replay else ""
    at_s = stay.from_ms / 1_000
    lines = (
        f"{words.place_label(stay.place)}{again}{replay}: {fmt.duration(stay.length_ms)}",
        f"from {zone.moment(at_s, seconds=True)}",
        f"({utc(at_s, seconds=True)})",
    )
    return "<br>".join(escape(line) for line in lines)
