"""The linked panels of a pipeline: messages, lag, loss and what happened, over one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import plotly.graph_objects as go

from dashboard.design import hues, translucent
from dashboard.figures import happened, loss, stack
from dashboard.figures.consumer_lag import add_consumer_lag, is_shown
from dashboard.figures.drawing import Drawing
from dashboard.figures.frame import SLOWEST, FigureFrame, Step, add_target, carrier, line, merged
from dashboard.figures.look import base_layout, lag_unit, safe
from dashboard.queries.buckets import Bucket
from dashboard.queries.sla_periods import SlaPeriod, is_held, target_percentile
from dashboard.request.zones import utc
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.model import hops
from lagloss_server.model.hops import Hop
from lagloss_server.model.time_range import TimeRange

_DOMAINS: Final[dict[str, tuple[float, float]]] = {
    "y": (0.8, 1.0),
    "y2": (0.42, 0.755),
    "y3": (0.195, 0.375),
    "y4": (0.135, 0.17),
    "y5": (0.0, 0.11),
}
"""From top to bottom: messages, lag, loss, verdicts, happenings."""
HEIGHT_PX: Final = 938
_CONSUMER_LAG_PX: Final = 140
"""Height that the panel of consumer lag takes below that of lag, with the space around it."""
_LEGEND_PX: Final = 48
"""Two lines; hops are named by the graph of the flow, by their shares and under the mouse."""
_TITLE_PX: Final = 44
"""Two lines, and the space around them."""
_CHARACTER_PX: Final = 7
_LABEL_CHARACTERS: Final = 6
"""In the longest label of an axis that does not count (`0.005`, `-10.0`)."""
_LEGEND: Final[Mapping[str, Any]] = {
    "orientation": "h", "xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom",
    "maxheight": _LEGEND_PX,
}  # fmt: skip
"""Below the panels, which are looked at first."""
_UNKNOWN_MESSAGES: Final = f"<b>{fmt.NOTHING} messages</b>: unknown, no reports"
_SLA_SHOWN_UP_TO: Final = 3.0
"""A lag target beyond this multiple of the highest value is named at the rim instead of flattening the bars."""


def panels_figure(frame: FigureFrame) -> go.Figure:
    """Draw all panels as one figure, so that hovering and zooming apply to all of them."""
    drawing = Drawing()
    _add_messages(drawing, frame)
    top, title = _add_lags(drawing, frame)
    if is_shown(frame):
        add_consumer_lag(drawing, frame, "y6")
    top_loss = loss.add_loss(drawing, frame)
    loss.add_verdicts(drawing, frame)
    middles = [bucket.start_s + bucket.length_s / 2 for bucket in frame.series.buckets]
    happened.add(drawing, frame.happenings, frame.axis, frame.colours, frame.now_s, "y5", middles)
    _shade_history(drawing, frame)
    return drawing.figure(**_layout(frame, title, top, top_loss))


def height_px(frame: FigureFrame) -> int:
    """Return how high the figure is to be."""
    return HEIGHT_PX + (_CONSUMER_LAG_PX if is_shown(frame) else 0)


def _domains(frame: FigureFrame) -> dict[str, tuple[float, float]]:
    """Return the share of the height that each panel has. Where consumer lag is shown, the others keep their height."""
    if not is_shown(frame):
        return _DOMAINS
    height = height_px(frame)

    def moved(name: str, by_px: int) -> tuple[float, float]:
        bottom, top = _DOMAINS[name]
        return (bottom * HEIGHT_PX + by_px) / height, (top * HEIGHT_PX + by_px) / height

    domains = {name: moved(name, _CONSUMER_LAG_PX if name in ("y", "y2") else 0) for name in _DOMAINS}
    return {**domains, "y6": (domains["y3"][1] + 35 / height, domains["y2"][0] - 40 / height)}


def _layout(frame: FigureFrame, lag_title: str, top_lag: float | None, top_loss: float) -> dict[str, Any]:
    colours, series, domains = frame.colours, frame.series, _domains(frame)

    def y(title: str, name: str, **more: Any) -> dict[str, Any]:
        shown = {
            "title": {"text": title, "standoff": 6},
            "gridcolor": colours.grid,
            "zerolinecolor": colours.dim,
            "nticks": 6,
            "ticklabeloverflow": "allow",  # else plotly measures every label each time
        }
        return {**shown, "domain": domains[name], "fixedrange": True, "rangemode": "tozero", **more}

    strip = {"showgrid": False, "zeroline": False, "tickvals": [0], "tickfont": {"size": 11}}
    time_axis = frame.axis.layout(colours, f", one {frame.unit}")
    return {
        **base_layout(colours),
        "margin": {"l": _left_px(frame), "r": 20, "t": 8, "b": _LEGEND_PX + 44, "autoexpand": False},
        "plot_bgcolor": colours.ground,  # by it plotly chooses the colour around the line under the mouse
        "paper_bgcolor": colours.ground,
        "barmode": "relative",
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverdistance": 60,
        "dragmode": "zoom",
        "xaxis": {**time_axis, "anchor": "y5", "ticklabeloverflow": "allow"},
        "yaxis": y(f"messages<br>per {frame.unit}", "y", tickformat=",d"),
        "yaxis2": y(lag_title, "y2", **({} if top_lag is None else {"range": [0, top_lag]})),
        "yaxis3": y("loss<br>(%)", "y3", range=[0, top_loss]),
        "yaxis4": y("", "y4", **strip, range=[-1, 1], ticktext=["verdict"]),
        "yaxis5": y("", "y5", **strip, range=happened.RANGE, ticktext=["deploys,<br>incidents"]),
        **({"yaxis6": y("consumer lag<br>(offsets)", "y6", nticks=4, tickformat=",d")} if "y6" in domains else {}),
        "legend": {**base_layout(colours)["legend"], **_LEGEND},
        # what a reader hid in the legend stays hidden over refreshes and zooms
        "uirevision": series.pipeline,
        "meta": {"offset_s": frame.axis.offset_s},
    }


def _left_px(frame: FigureFrame) -> int:
    """Return the width of titles and tick labels beside the panels. Plotly would draw everything twice to find it."""
    counts = [bucket.messages or 0 for bucket in frame.series.buckets]
    counts += [lag.offsets_max or 0 for lags in frame.consumer_lag.values() for lag in lags]
    longest = max(_LABEL_CHARACTERS, len(f"{max(counts, default=0):,}"))
    return _TITLE_PX + _CHARACTER_PX * longest


def _add_messages(drawing: Drawing, frame: FigureFrame) -> None:
    buckets = frame.series.buckets
    hue = hues(("expected", "seen"))
    expected: list[float | None] = [bucket.messages for bucket in buckets]
    delivered: list[float | None] = [bucket.reached_an_end for bucket in buckets]
    drawing.add_trace(
        line(
            frame, delivered, name="completed", uid="seen", line={"color": hue["seen"], "width": 1.5},
            fill="tozeroy", fillcolor=translucent(hue["seen"], 0.18), yaxis="y",
        )
    )  # fmt: skip
    drawing.add_trace(
        line(
            frame, expected, name="messages expected", uid="expected",
            line={"color": frame.colours.text, "width": 1.5, "dash": "dot"}, yaxis="y",
        )
    )  # fmt: skip
    drawing.add_trace(
        carrier(frame, [(bucket, bucket.messages, _describe_messages(bucket)) for bucket in buckets], "y")
    )


def _describe_messages(bucket: Bucket) -> str:
    ends = [(bucket.delivered, "delivered"), (bucket.filtered, "filtered"), (bucket.dead, "dead-lettered"),
            (bucket.pending, "pending")]  # fmt: skip
    rest = ", ".join(f"{fmt.count(number)} {word}" for number, word in ends if number or word == "delivered")
    summary = (
        _UNKNOWN_MESSAGES
        if bucket.messages is None
        else f"<b>{fmt.counted(bucket.messages, 'message')} expected</b>: {rest}"
    )
    whole = bucket.length_s // WINDOW_S
    return f"{utc(bucket.start_s)}<br>{summary}" + (f"<br>{bucket.minutes} of {whole} minutes" if whole > 1 else "")


def _add_lags(drawing: Drawing, frame: FigureFrame) -> tuple[float | None, str]:
    """Return the top of the axis (None: plotly's choice) and its title.

    p95s do not add up exactly where routes part, so the E2E line, read from the merged sketch, is the truth.
    """
    graph, buckets = frame.definition.graph, frame.series.buckets
    delivery = None if frame.path == SLOWEST else frame.path
    stacks = [hops.path_ms(bucket.lags, graph, delivery) for bucket in buckets]
    percentiles = ", then ".join(frame.sla_periods.percentiles)
    e2e = [frame.sla_periods.lag_ms(bucket) for bucket in buckets]
    lines = [lag for lag in e2e if lag is not None]
    highest = max([0.0, *lines, *(sum(lag for lag in lags.values() if lag > 0) for lags in stacks)])
    lowest = min([0.0, *lines, *(sum(lag for lag in lags.values() if lag < 0) for lags in stacks)])
    unit_ms, unit = lag_unit(highest)
    starts = [bucket.start_s for bucket in buckets]
    panel = stack.LagPanel(starts, frame.series.bucket_s, frame.axis, "y2", unit_ms)
    drawing.add_traces(stack.traces(panel, hops.hops(graph), stacks, hues(graph.steps)))
    drawn = [None if lag is None else lag / unit_ms for lag in e2e]
    look = {"color": frame.colours.line, "width": 2}
    drawing.add_trace(line(frame, drawn, name=f"E2E {percentiles}", uid="e2e", line=look, yaxis="y2"))
    summary: list[tuple[Bucket, float | None, str]] = [
        (bucket, (lag or 0.0) / unit_ms, _describe_lags(frame, bucket, edge, hops.hops(graph)))
        for bucket, lag, edge in zip(buckets, e2e, stacks, strict=True)
    ]
    drawing.add_trace(carrier(frame, summary, "y2"))
    in_view = _add_lag_targets(drawing, frame, highest, unit_ms)
    top = None if lowest < 0 or not highest else 1.1 * max(highest, in_view) / unit_ms
    return top, f"lag, p95<br>({unit})" if percentiles == "p95" else f"E2E {percentiles},<br>hops p95 ({unit})"


def _describe_lags(frame: FigureFrame, bucket: Bucket, on_path: Mapping[Hop, float], order: list[Hop]) -> str:
    summary = [f"<b>E2E {frame.sla_periods.percentile(bucket)} {fmt.duration(frame.sla_periods.lag_ms(bucket))}</b>"]
    summary += [f"{safe(hop.label)} {fmt.duration(on_path[hop])}" for hop in order if hop in on_path]
    return "<br>".join(summary)


def _add_lag_targets(drawing: Drawing, frame: FigureFrame, highest_ms: float, unit_ms: float) -> float:
    """Return the highest target (ms) that is in view. One beyond is named at the rim if it is the newest."""
    in_view = [period for period in frame.sla_periods.parts if period.sla.lag.target <= _SLA_SHOWN_UP_TO * highest_ms]
    steps = [
        Step(period.from_s, period.to_s, period.sla.lag.target / unit_ms, _lag_target(period),
             "dash" if is_held(period.sla.lag) else "dot")
        for period in in_view
    ]  # fmt: skip
    add_target(drawing, frame, merged(steps), "y2")
    newest = frame.sla_periods.parts[-1]
    if newest not in in_view:
        drawing.add_annotation(
            x=1, y=1, xref="paper", yref="y2 domain", yanchor="bottom", xanchor="right",
            text=f"{_lag_target(newest)} ↑ off the scale", font={"color": frame.colours.target}, showarrow=False,
        )  # fmt: skip
    return max((float(period.sla.lag.target) for period in in_view), default=0.0)


def _lag_target(period: SlaPeriod) -> str:
    """With the percentile that it is of; where results do not hold that, the line above is no measure of it."""
    lag = period.sla.lag
    label = f"SLA {fmt.percentile(lag.percentile)} ≤ {fmt.duration(lag.target)}"
    return label if is_held(lag) else f"{label}, measured by the on-time share; the line shows {target_percentile(lag)}"


def _shade_history(drawing: Drawing, frame: FigureFrame) -> None:
    """Behind what was back-filled: sent after the fact, and not paged."""
    for run in history_runs(frame.series.buckets):
        label = {"text": "back-filled history", "textposition": "top left", "font": {"size": 11}}
        drawing.add_shape(
            type="rect", xref="x", yref="paper", y0=0, y1=1, x0=frame.axis.at(run.from_s), x1=frame.axis.at(run.to_s),
            fillcolor=frame.colours.shade, line={"width": 0}, layer="below",
            label=label if run.length_s >= frame.series.span.length_s / 6 else None,
        )  # fmt: skip


def history_runs(buckets: tuple[Bucket, ...]) -> list[TimeRange]:
    """Return the ranges of back-filled buckets that follow each other."""
    runs: list[TimeRange] = []
    for bucket in buckets:
        if bucket.history:
            joins = bool(runs) and runs[-1].to_s == bucket.start_s
            from_s = runs.pop().from_s if joins else bucket.start_s
            runs.append(TimeRange(from_s, bucket.start_s + bucket.length_s))
    return runs
