"""Shared parts of the panels: their data, lines with gaps, and points that say what is under the mouse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np

from dashboard.design import Palette, palette
from dashboard.figures import stack
from dashboard.figures.drawing import Drawing, Trace, scatter
from dashboard.figures.look import moments, numbers
from dashboard.figures.time_axis import TimeAxis
from dashboard.queries.annotations import Happenings
from dashboard.queries.consumer_lag import LagBucket, Of
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriods
from dashboard.request.zones import Zone
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition
from lagloss_server.model.time_range import TimeRange
from lagloss_server.sums.rollup import PERIOD_S

SLOWEST: Final = "slowest"
"""The path that is drawn when none is chosen: of each bucket the one to the delivery with the highest p95."""
_LABELLED: Final = 6
"""A step of a target is named where it lasts for at least one in so many parts of the span."""
_UNITS: Final = {WINDOW_S: "minute", PERIOD_S["hour"]: "hour", PERIOD_S["day"]: "day (UTC)"}


class ShadedRange(Protocol):
    """[start_s, start_s + length_s) in epoch s, of which something is known."""

    @property
    def start_s(self) -> int: ...

    @property
    def length_s(self) -> int: ...


@dataclass(frozen=True)
class FigureFrame:
    """All that the panels are drawn from. `definition`: the newest; `path`: a delivery node's name, or SLOWEST."""

    definition: Definition
    series: Series
    sla_periods: SlaPeriods
    happenings: Happenings
    zone: Zone
    now_s: float
    path: str = SLOWEST
    dark: bool = False
    consumer_lag: Mapping[Of, Sequence[LagBucket]] = field(default_factory=dict)
    """By node."""

    @cached_property
    def axis(self) -> TimeAxis:
        span = self.series.span
        return TimeAxis.over(self.zone, span.from_s, span.to_s)

    @property
    def colours(self) -> Palette:
        return palette(self.dark)

    @property
    def unit(self) -> str:
        """Return the label of a bucket."""
        return _UNITS[self.series.bucket_s]

    def middle(self, bucket: ShadedRange) -> str:
        return self.axis.at(bucket.start_s + bucket.length_s / 2)


@dataclass(frozen=True, slots=True)
class Step(TimeRange):
    """A target on its panel's axis, and its name, for a time range. `dash`: as plotly calls it."""

    at: float
    label: str
    dash: str = "dash"


def carrier(frame: FigureFrame, summary: Sequence[tuple[ShadedRange, float | None, str]], yaxis: str) -> Trace:
    """Invisible points that say under the mouse what their panel shows there, and which bucket a click is on."""
    return scatter(
        x=moments(frame.middle(bucket) for bucket, _, _ in summary),
        y=numbers(value for _, value, _ in summary),
        customdata=np.array([(bucket.start_s, bucket.length_s, text) for bucket, _, text in summary], object),
        hovertemplate="%{customdata[2]}<extra></extra>",
        mode="lines",  # one element of the page, where markers would be one each
        line={"width": 0},
        showlegend=False,
        name="",
        yaxis=yaxis,
    )


def line(
    frame: FigureFrame, values: Sequence[float | None], ranges: Sequence[ShadedRange] | None = None, **look: Any
) -> Trace:
    """Return a line that ends where a bucket (by default of the series) is missing or has no value."""
    x: list[str] = []
    y: list[float | None] = []
    before: int | None = None
    for bucket, value in zip(frame.series.buckets if ranges is None else ranges, values, strict=True):
        if before is not None and bucket.start_s != before:
            x.append(frame.axis.at(before))
            y.append(None)
        x.append(frame.middle(bucket))
        y.append(value)
        before = bucket.start_s + bucket.length_s
    few = len(x) <= stack.MAX_BARS
    mode = {"mode": "lines+markers", "marker": {"size": 4}} if few else {"mode": "lines"}
    return scatter(x=moments(x), y=numbers(y), connectgaps=False, hoverinfo="skip", **mode, **look)


def merged(steps: Sequence[Step]) -> list[Step]:
    """Return those that follow each other at the same target as one."""
    merged_steps: list[Step] = []
    for step in steps:
        if merged_steps and merged_steps[-1].to_s == step.from_s and merged_steps[-1].label == step.label:
            step = replace(step, from_s=merged_steps.pop().from_s)
        merged_steps.append(step)
    return merged_steps


def add_target(drawing: Drawing, frame: FigureFrame, steps: Sequence[Step], yaxis: str) -> None:
    """Return a dashed line across the panel in steps, each named that is long enough, and the newest."""
    look = {"color": frame.colours.target}
    for index, step in enumerate(steps):
        ends = {"x0": frame.axis.at(step.from_s), "x1": frame.axis.at(step.to_s)}
        style = {**look, "dash": step.dash, "width": 1.5}
        drawing.add_shape(type="line", xref="x", yref=yaxis, y0=step.at, y1=step.at, line=style, **ends)
        if index and steps[index - 1].to_s == step.from_s:
            rise = {"x0": ends["x0"], "x1": ends["x0"], "y0": steps[index - 1].at, "y1": step.at}
            drawing.add_shape(type="line", xref="x", yref=yaxis, line=style, **rise)
        is_long = step.length_s >= frame.series.span.length_s / _LABELLED
        if is_long or step is steps[-1]:
            place = {"x": ends["x0"], "xanchor": "left"} if is_long else {"x": ends["x1"], "xanchor": "right"}
            drawing.add_annotation(
                **place, y=step.at, xref="x", yref=yaxis, yanchor="bottom", text=step.label, font=look,
                bgcolor=frame.colours.ground, opacity=0.9, showarrow=False, borderpad=0,
            )  # fmt: skip
