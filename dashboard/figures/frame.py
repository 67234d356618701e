"""What the panels share: what they are drawn from, lines with gaps, and points that say what is under the mouse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from dashboard.figures import stack
from dashboard.figures.look import Colours, colours, numbers
from dashboard.figures.time_axis import TimeAxis
from dashboard.reads.buckets import Bucket
from dashboard.reads.happenings import Happenings
from dashboard.reads.series import Series
from dashboard.zones import Zone
from lagloss.definition import Definition
from lagloss.rollup import PERIOD_S
from lagloss.wire import WINDOW_S

SLOWEST: Final = "slowest"
"""The path that is drawn when none is chosen: of each bucket the one to the delivery with the highest p95."""
_UNITS: Final = {WINDOW_S: "minute", PERIOD_S["hour"]: "hour", PERIOD_S["day"]: "day (UTC)"}


@dataclass(frozen=True)
class Frame:
    """All that the panels are drawn from. `path`: a delivery node's name, or SLOWEST."""

    definition: Definition
    series: Series
    happenings: Happenings
    zone: Zone
    now_s: float
    path: str = SLOWEST
    dark: bool = False

    @cached_property
    def axis(self) -> TimeAxis:
        span = self.series.span
        return TimeAxis.over(self.zone, span.from_s, span.to_s)

    @property
    def colours(self) -> Colours:
        return colours(self.dark)

    @property
    def unit(self) -> str:
        """What a bucket is called."""
        return _UNITS[self.series.bucket_s]

    def middle(self, bucket: Bucket) -> str:
        return self.axis.at(bucket.start_s + bucket.length_s / 2)

    @cached_property
    def middles(self) -> list[str]:
        """Of all buckets, on the axis."""
        return [self.middle(bucket) for bucket in self.series.buckets]


def carrier(frame: Frame, told: list[tuple[Bucket, float, str]], yaxis: str) -> go.Scatter:
    """Invisible points that say under the mouse what their panel shows there, and which bucket a click is on."""
    return go.Scatter(
        x=frame.middles,
        y=numbers(value for _, value, _ in told),
        customdata=np.array([(bucket.start_s, bucket.length_s, text) for bucket, _, text in told], object),
        hovertemplate="%{customdata[2]}<extra></extra>",
        mode="markers",
        marker={"opacity": 0, "size": 1},
        showlegend=False,
        name="",
        yaxis=yaxis,
    )


def line(frame: Frame, values: list[float | None], **look: Any) -> go.Scatter:
    """A line that ends where a bucket is missing or has no value."""
    x: list[str] = []
    y: list[float | None] = []
    before: int | None = None
    for bucket, value in zip(frame.series.buckets, values, strict=True):
        if before is not None and bucket.start_s != before:
            x.append(frame.axis.at(before))
            y.append(None)
        x.append(frame.middle(bucket))
        y.append(value)
        before = bucket.start_s + bucket.length_s
    few = len(x) <= stack.MAX_BARS
    mode = {"mode": "lines+markers", "marker": {"size": 4}} if few else {"mode": "lines"}
    return go.Scatter(x=x, y=numbers(y), connectgaps=False, hoverinfo="skip", **mode, **look)


def add_target(figure: go.Figure, frame: Frame, at: float, label: str, yaxis: str) -> None:
    """A dashed line across the panel, named."""
    look = {"color": frame.colours.target}
    figure.add_shape(
        type="line", xref="paper", x0=0, x1=1, yref=yaxis, y0=at, y1=at, line={**look, "dash": "dash", "width": 1.5}
    )
    figure.add_annotation(
        x=0, y=at, xref="paper", yref=yaxis, xanchor="left", yanchor="bottom", text=label, font=look,
        bgcolor=frame.colours.ground, opacity=0.9, showarrow=False, borderpad=0,
    )  # fmt: skip
