"""How long the runs of a job took, run by run, and how much of that each of the slowest tasks had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import plotly.graph_objects as go

from dashboard.design import NODE_HUES, palette
from dashboard.figures.drawing import Drawing, bar, scatter
from dashboard.figures.look import base_layout, lag_unit, safe
from dashboard.request.zones import Zone
from lagloss_server.base import format as fmt
from lagloss_server.runs.dag_runs import DagRun, JobStats

HEIGHT_PX: Final = 260
_SHAPES: Final = ("", "/", ".", "\\", "x", "-", "+", "|")
"""Patterns of bars, one for each hue."""
_TASKS: Final = 6


def durations(stats: JobStats, runs: Sequence[DagRun], zone: Zone, dark: bool) -> go.Figure:
    """Draw runs in the order given, oldest first: the durations of the slowest tasks' tries on top of one another, a
    line of the whole run where it was not run again, and a mark over what failed."""
    colours = palette(dark)
    spent = [[task_try.duration_ms or 0 for task_try in run.tries] for run in runs]
    highest_ms = max((max(run.duration_ms or 0, sum(tries)) for run, tries in zip(runs, spent, strict=True)), default=0)
    unit_ms, unit = lag_unit(highest_ms)
    moments = [zone.clock(run.hour.to_s, date=True) for run in runs]
    drawing = Drawing()
    for index, task in enumerate(stats.tasks[:_TASKS]):
        spent_ms = [
            sum(task_try.duration_ms or 0 for task_try in run.tries if task_try.task == task.task) for run in runs
        ]
        drawing.add_trace(
            bar(
                x=moments,
                y=[ms / unit_ms for ms in spent_ms],
                customdata=[fmt.duration(ms) for ms in spent_ms],
                name=safe(task.task),
                marker={
                    "color": NODE_HUES[index],
                    "pattern": {"shape": _SHAPES[index], "fillmode": "overlay", "fgcolor": colours.ground, "size": 5},
                },
                hovertemplate="%{x}: %{customdata}",
            )
        )
    whole = [None if run.duration_ms is None or run.is_rerun else run.duration_ms / unit_ms for run in runs]
    drawing.add_trace(
        scatter(
            x=moments,
            y=whole,
            name="entire run",
            mode="lines+markers",
            line={"color": colours.line, "width": 1.5},
            customdata=[fmt.duration(run.duration_ms) for run in runs],
            hovertemplate="%{x}: %{customdata}",
        )
    )
    failed = [index for index, run in enumerate(runs) if run.state == "failed"]
    if failed:
        marker = {"symbol": "x", "size": 11, "color": colours.loss}
        tops = [whole[index] or 0.0 for index in failed]
        drawing.add_trace(
            scatter(x=[moments[index] for index in failed], y=tops, name="failed", mode="markers", marker=marker)
        )
    return drawing.figure(
        **base_layout(colours),
        height=HEIGHT_PX,
        margin={"l": 48, "r": 16, "t": 12, "b": 60},
        barmode="stack",
        hovermode="closest",
        xaxis={"type": "category", "title": {"text": "end of the hour"}, "nticks": 8, "showgrid": False},
        yaxis={"title": {"text": unit}, "gridcolor": colours.grid, "rangemode": "tozero"},
        dragmode=False,
    )
