"""The linked panels of a pipeline: messages, lag, loss and what happened, over one time axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from dashboard import words
from dashboard.figures import happened, stack
from dashboard.figures.look import CERTAIN, Colours, Numbers, base_layout, colours, hues, lag_unit, numbers, safe
from dashboard.figures.time_axis import TimeAxis
from dashboard.reads.buckets import Bucket
from dashboard.reads.happenings import Happenings
from dashboard.reads.series import Series
from dashboard.words import VERDICTS
from dashboard.zones import Zone, utc
from lagloss import hops
from lagloss.definition import Definition
from lagloss.graph import Graph
from lagloss.hops import Hop
from lagloss.rollup import PERIOD_S
from lagloss.wire import WINDOW_S

SLOWEST: Final = "slowest"
"""The path that is drawn when none is chosen: of each bucket the one to the delivery with the highest p95."""
_UNITS: Final = {WINDOW_S: "minute", PERIOD_S["hour"]: "hour", PERIOD_S["day"]: "day (UTC)"}
_DOMAINS: Final = {"y": (0.8, 1.0), "y2": (0.42, 0.755), "y3": (0.195, 0.375), "y4": (0.135, 0.17), "y5": (0.0, 0.11)}
"""From top to bottom: messages, lag, loss, verdicts, happenings."""
_SLA_SHOWN_UP_TO: Final = 3.0
"""A lag target beyond this multiple of the highest value is named at the rim instead of flattening the bars."""


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

    def middle(self, bucket: Bucket) -> float:
        return self.axis.at(bucket.start_s + bucket.length_s / 2)

    @cached_property
    def middles(self) -> Numbers:
        """Of all buckets, on the axis."""
        return numbers(self.middle(bucket) for bucket in self.series.buckets)


def panels_figure(frame: Frame) -> go.Figure:
    """One figure, so that what is under the mouse is told of all panels, and a zoom is one of all."""
    figure = go.Figure()
    _add_messages(figure, frame)
    top, title = _add_lags(figure, frame)
    top_loss = _add_loss(figure, frame)
    _add_verdicts(figure, frame)
    middles = [bucket.start_s + bucket.length_s / 2 for bucket in frame.series.buckets]
    happened.add(figure, frame.happenings, frame.axis, frame.colours, frame.now_s, "y5", middles)
    figure.update_layout(**_layout(frame, title, top, top_loss))
    _shade_history(figure, frame)
    return figure


def _layout(frame: Frame, lag_title: str, top_lag: float | None, top_loss: float) -> dict[str, Any]:
    of, series = frame.colours, frame.series

    def y(title: str, name: str, **more: Any) -> dict[str, Any]:
        shown = {
            "title": {"text": title, "standoff": 6},
            "gridcolor": of.grid,
            "zerolinecolor": of.dim,
            "nticks": 6,
            "automargin": True,
        }
        return {**shown, "domain": _DOMAINS[name], "fixedrange": True, "rangemode": "tozero", **more}

    strip = {"visible": False, "range": [-1, 1]}
    return {
        **base_layout(of),
        "margin": {"l": 40, "r": 12, "t": 8, "b": 44},
        "plot_bgcolor": of.ground,  # by it plotly chooses the colour around the line under the mouse
        "paper_bgcolor": of.ground,
        "barmode": "relative",
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverdistance": 60,
        "dragmode": "zoom",
        "xaxis": {**frame.axis.layout(of, f", one {frame.unit}"), "anchor": "y5"},
        "yaxis": y(f"messages<br>a {frame.unit}", "y", tickformat=",d"),
        "yaxis2": y(lag_title, "y2", **({} if top_lag is None else {"range": [0, top_lag]})),
        "yaxis3": y("loss<br>(%)", "y3", range=[0, top_loss]),
        "yaxis4": y("", "y4", **strip),
        "yaxis5": y("", "y5", **{**strip, "range": happened.RANGE}),
        "legend": {**base_layout(of)["legend"], "orientation": "h", "yref": "container", "y": 1, "yanchor": "top"},
        # what a reader hid in the legend stays hidden over refreshes and zooms
        "uirevision": series.pipeline,
        "meta": {"offset_s": frame.axis.offset_s},
    }


def _carrier(frame: Frame, told: list[tuple[Bucket, float, str]], yaxis: str) -> go.Scatter:
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


def _line(frame: Frame, values: list[float | None], **look: Any) -> go.Scatter:
    """A line that ends where a bucket is missing or has no value."""
    x: list[float] = []
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
    return go.Scatter(x=np.array(x), y=numbers(y), connectgaps=False, hoverinfo="skip", **mode, **look)


def _add_messages(figure: go.Figure, frame: Frame) -> None:
    found = frame.series.buckets
    hue = hues(("expected", "seen"))
    expected: list[float | None] = [bucket.messages for bucket in found]
    seen: list[float | None] = [bucket.reached_an_end for bucket in found]
    figure.add_trace(
        _line(
            frame, seen, name="seen to an end", uid="seen", line={"color": hue["seen"], "width": 1.5},
            fill="tozeroy", fillcolor="rgba(31,161,135,.18)", yaxis="y",
        )
    )  # fmt: skip
    figure.add_trace(
        _line(
            frame, expected, name="messages expected", uid="expected",
            line={"color": frame.colours.text, "width": 1.5, "dash": "dot"}, yaxis="y",
        )
    )  # fmt: skip
    figure.add_trace(_carrier(frame, [(bucket, bucket.messages, _messages_told(bucket)) for bucket in found], "y"))


def _messages_told(bucket: Bucket) -> str:
    ends = [(bucket.delivered, "delivered"), (bucket.filtered, "filtered"), (bucket.dead, "dead"),
            (bucket.pending, "pending")]  # fmt: skip
    rest = ", ".join(f"{words.count(number)} {word}" for number, word in ends if number or word == "delivered")
    told = f"<b>{words.messages(bucket.messages)} expected</b>: {rest}"
    whole = bucket.length_s // WINDOW_S
    return f"{utc(bucket.start_s)}<br>{told}" + (f"<br>{bucket.minutes} of {whole} minutes" if whole > 1 else "")


def _add_lags(figure: go.Figure, frame: Frame) -> tuple[float | None, str]:
    """The top of the axis (None: plotly's choice) and its title.

    p95s do not add up exactly where routes part, so the E2E line, read from the merged sketch, is the truth.
    """
    graph, found = Graph(frame.definition), frame.series.buckets
    delivery = None if frame.path == SLOWEST else frame.path
    stacks = [hops.path_ms(bucket.lags, graph, delivery) for bucket in found]
    sla = frame.definition.spec.sla.lag
    percentile = f"p{sla.percentile:g}" if sla.percentile in (50, 95, 99) else "p95"
    e2e = [getattr(bucket.e2e_ms, percentile) for bucket in found]
    lines = [lag for lag in e2e if lag is not None]
    highest = max([0.0, *lines, *(sum(lag for lag in each.values() if lag > 0) for each in stacks)])
    lowest = min([0.0, *lines, *(sum(lag for lag in each.values() if lag < 0) for each in stacks)])
    unit_ms, unit = lag_unit(highest)
    starts = [bucket.start_s for bucket in found]
    bars = stack.traces(
        hops.hops(graph), stacks, starts, frame.series.bucket_s, frame.axis, unit_ms, hues(graph.steps), "y2"
    )
    figure.add_traces(bars)
    drawn = [None if lag is None else lag / unit_ms for lag in e2e]
    line = {"color": frame.colours.line, "width": 2}
    figure.add_trace(_line(frame, drawn, name=f"E2E {percentile}", uid="e2e", line=line, yaxis="y2"))
    told = [
        (bucket, (lag or 0.0) / unit_ms, _lags_told(bucket, each, percentile, hops.hops(graph)))
        for bucket, lag, each in zip(found, e2e, stacks, strict=True)
    ]
    figure.add_trace(_carrier(frame, told, "y2"))
    label = f"SLA p{sla.percentile:g} ≤ {words.lag(sla.target)}"
    _add_lag_target(figure, frame, sla.target, label, highest, unit_ms)
    in_view = sla.target if sla.target <= _SLA_SHOWN_UP_TO * highest else 0.0
    top = None if lowest < 0 or not highest else 1.1 * max(highest, in_view) / unit_ms
    return top, f"lag, {percentile}<br>({unit})"


def _lags_told(bucket: Bucket, on_path: Mapping[Hop, float], percentile: str, order: list[Hop]) -> str:
    told = [f"<b>E2E {percentile} {words.lag(getattr(bucket.e2e_ms, percentile))}</b>"]
    told += [f"{safe(hop.label)} {words.lag(on_path[hop])}" for hop in order if hop in on_path]
    return "<br>".join(told)


def _add_lag_target(
    figure: go.Figure, frame: Frame, target_ms: float, label: str, highest_ms: float, unit_ms: float
) -> None:
    font = {"color": frame.colours.target}
    if target_ms <= _SLA_SHOWN_UP_TO * highest_ms:
        _add_target(figure, frame, target_ms / unit_ms, label, "y2")
    else:
        figure.add_annotation(
            x=1, y=1, xref="paper", yref="y2 domain", yanchor="bottom", xanchor="right",
            text=f"{label} ↑ beyond this scale", font=font, showarrow=False,
        )  # fmt: skip


def _add_target(figure: go.Figure, frame: Frame, at: float, label: str, yaxis: str) -> None:
    look = {"color": frame.colours.target}
    figure.add_shape(
        type="line", xref="paper", x0=0, x1=1, yref=yaxis, y0=at, y1=at, line={**look, "dash": "dash", "width": 1.5}
    )
    figure.add_annotation(
        x=0, y=at, xref="paper", yref=yaxis, xanchor="left", yanchor="bottom", text=label, font=look,
        bgcolor=frame.colours.ground, opacity=0.9, showarrow=False, borderpad=0,
    )  # fmt: skip


def _add_loss(figure: go.Figure, frame: Frame) -> float:
    """Certain loss as solid bars, what cannot be ruled out as hatched ones on them; the top of the axis, in per cent.

    A bucket without a bar is told as ok, idle, open or unknown by the strip below.
    """
    found, target = frame.series.buckets, 100 * frame.definition.spec.sla.loss.max
    drawn = [drawn_loss(bucket) for bucket in found]
    shared = {"x": frame.middles, "width": 1_000 * frame.series.bucket_s * 0.87, "yaxis": "y3", "hoverinfo": "skip"}
    figure.add_trace(
        go.Bar(
            y=numbers(None if loss is None else 100 * loss[0] for loss in drawn),
            name="lost for certain", uid="certain", marker={"color": CERTAIN, "line": {"width": 0}}, **shared,
        )
    )  # fmt: skip
    pattern = {"shape": "/", "fgcolor": CERTAIN, "size": 5}
    figure.add_trace(
        go.Bar(
            y=numbers(None if loss is None or loss[1] <= loss[0] else 100 * (loss[1] - loss[0]) for loss in drawn),
            name="perhaps lost", uid="perhaps",
            marker={"color": "rgba(224,49,49,.22)", "line": {"width": 0}, "pattern": pattern}, **shared,
        )
    )  # fmt: skip
    figure.add_trace(_carrier(frame, [(bucket, 0.0, _loss_told(bucket)) for bucket in found], "y3"))
    _add_target(figure, frame, target, f"SLA loss ≤ {words.share(target / 100)}", "y3")
    return max([1.6 * target, 0.01, *(115 * loss[1] for loss in drawn if loss is not None)])


def drawn_loss(bucket: Bucket) -> tuple[float, float] | None:
    """(min, max) of the loss ratio; None where it is not known: open, no messages, or unknown with nothing to show.

    An unknown minute whose interval starts at 0 draws the interval only, and one without any loss draws nothing: its 0
    is not a finding.
    """
    ratio = bucket.loss_ratio
    if ratio is None or (set(bucket.verdicts) <= {"unknown", "idle"} and not ratio[1]):
        return None
    return ratio


def _loss_told(bucket: Bucket) -> str:
    """Its verdicts, and what was lost of how many."""
    many = len(bucket.verdicts) > 1 or bucket.minutes > 1
    verdicts = ", ".join(
        f"{f'{number} × ' if many else ''}{VERDICTS[verdict].icon} {VERDICTS[verdict].word}"
        for verdict, number in bucket.verdicts.items()
    )
    return f"<b>loss {_loss_words(bucket)}</b> · {verdicts}"


def _loss_words(bucket: Bucket) -> str:
    if bucket.lost is None:
        return "not judged yet"
    ratio = bucket.loss_ratio
    lost = words.interval({"min": bucket.lost.min, "max": bucket.lost.max})
    share = words.share_interval(None if ratio is None else {"min": ratio[0], "max": ratio[1]})
    return f"{share} ({lost} of {words.count(bucket.messages)})"


def _add_verdicts(figure: go.Figure, frame: Frame) -> None:
    """A mark a bucket: its worst verdict."""
    size = 8 if len(frame.series.buckets) <= stack.MAX_BARS else 5
    for verdict, look in VERDICTS.items():
        of_this = [bucket for bucket in frame.series.buckets if bucket.verdict == verdict]
        if not of_this:
            continue
        border = 1.5 if look.symbol.endswith("-open") else 0
        figure.add_trace(
            go.Scatter(
                x=numbers(frame.middle(bucket) for bucket in of_this),
                y=np.zeros(len(of_this)),
                name=look.word.lower(), uid=f"verdict-{verdict}", mode="markers", yaxis="y4", hoverinfo="skip",
                marker={"color": look.hex, "symbol": look.symbol, "size": size,
                        "line": {"color": look.hex, "width": border}},
            )
        )  # fmt: skip


def _shade_history(figure: go.Figure, frame: Frame) -> None:
    """Behind what was back-filled: sent after the fact, and not paged."""
    for first_s, end_s in history_runs(frame.series.buckets):
        label = {"text": "history: back-filled", "textposition": "top left", "font": {"size": 11}}
        figure.add_shape(
            type="rect", xref="x", yref="paper", y0=0, y1=1, x0=frame.axis.at(first_s), x1=frame.axis.at(end_s),
            fillcolor=frame.colours.history, line={"width": 0}, layer="below",
            label=label if end_s - first_s >= frame.series.span.length_s / 6 else None,
        )  # fmt: skip


def history_runs(found: tuple[Bucket, ...]) -> list[tuple[int, int]]:
    """Back-filled buckets that follow each other, as [first, end) in epoch s."""
    runs: list[tuple[int, int]] = []
    for bucket in found:
        if bucket.history:
            joins = bool(runs) and runs[-1][1] == bucket.start_s
            first_s = runs.pop()[0] if joins else bucket.start_s
            runs.append((first_s, bucket.start_s + bucket.length_s))
    return runs
