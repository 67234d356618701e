"""The charts, as pure functions of window documents. A minute's marks stand in its middle; gaps stay gaps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import plotly.graph_objects as go

from dashboard import words
from dashboard.flow import Hop, hops, path_values_ms
from dashboard.view import SLOWEST, WINDOW_S, View
from dashboard.words import VERDICTS, Document
from lagloss.definition import Definition
from lagloss.graph import Graph

_BAR_MS: Final = 52_000
_HUES: Final = ("#4c78d8", "#1fa187", "#d9822b", "#a05fc4", "#4fa8c9", "#c2557e", "#8a8d2f", "#7a6ff0")
"""One a node, told apart by colour-blind readers too, and readable on white and on near-black."""
_CERTAIN: Final = "#e03131"
_SLA_SHOWN_UP_TO: Final = 3.0
"""A lag target beyond this multiple of the highest value is named at the rim instead of flattening the bars."""


@dataclass(frozen=True, slots=True)
class Colours:
    text: str
    grid: str
    zero: str
    ground: str
    line: str
    target: str
    history: str
    chosen: str


_LIGHT: Final = Colours(
    "#2b2f36", "#e9ecef", "#868e96", "#ffffff", "#111418", "#c2255c", "rgba(90,100,120,.10)", "#1c7ed6"
)
_DARK: Final = Colours(
    "#d5d9e0", "#363a42", "#868e96", "#242424", "#f8f9fa", "#ff6b95", "rgba(200,210,235,.10)", "#74c0fc"
)


@dataclass(frozen=True, slots=True)
class Frame:
    """What both charts share: the pipeline, its windows oldest first, and how they are looked at."""

    definition: Definition
    windows: Sequence[Document]
    view: View
    from_s: int
    to_s: int
    chosen_s: int | None = None
    dark: bool = False

    @property
    def colours(self) -> Colours:
        return _DARK if self.dark else _LIGHT


def lag_figure(frame: Frame) -> go.Figure:
    """Per-hop lag stacked along one path a minute, the true E2E p95 and the target.

    Where the pipeline branches, the stack follows the path to the chosen delivery, or each minute's slowest one. p95s
    do not add up exactly where routes part, so the E2E line, read from the merged sketch, is the truth.
    """
    graph = Graph(frame.definition)
    delivery = None if frame.view.path == SLOWEST else frame.view.path
    stacks = [path_values_ms(window, graph, delivery) for window in frame.windows]
    sla = frame.definition.spec.sla.lag
    percentile = f"p{sla.percentile:g}" if sla.percentile in (50, 95, 99) else "p95"
    e2e = [window["e2e_lag_ms"][percentile] for window in frame.windows]
    highest = max([0.0, *(value for value in e2e if value is not None), *map(_height, stacks)])
    unit_ms, unit = _lag_unit(highest)
    figure = _empty_figure(frame, f"lag, {percentile} ({unit})")
    hue = {node: _HUES[at % len(_HUES)] for at, node in enumerate(graph.steps)}
    for hop in hops(graph):
        if any(hop in stack for stack in stacks):
            figure.add_trace(_hop_bars(frame, hop, [stack.get(hop) for stack in stacks], unit_ms, hue[hop.node]))
    figure.add_trace(
        go.Scatter(
            **_with_gaps(frame, e2e, lambda value: value / unit_ms, words.lag),
            name=f"E2E {percentile}",
            mode="lines+markers",
            line={"color": frame.colours.line, "width": 2},
            marker={"size": 4},
            hovertemplate="<b>%{customdata}</b>",
        )
    )
    _stretch(figure, frame, 1.08 * sla.target / unit_ms if sla.target <= _SLA_SHOWN_UP_TO * highest else 0)
    _add_lag_target(figure, frame, sla.target, f"SLA p{sla.percentile:g} ≤ {words.lag(sla.target)}", highest, unit_ms)
    _mark_windows(figure, frame)
    figure.update_layout(barmode="relative")
    return figure


def loss_figure(frame: Frame) -> go.Figure:
    """Loss a minute in per cent: certain as a solid bar, what cannot be ruled out as a hatched one, and the target.

    A strip below says each minute's verdict, so that a minute without a bar is known as ok, idle, open or unknown.
    """
    figure = _empty_figure(frame, "loss (% of messages)")
    target = frame.definition.spec.sla.loss.max
    drawn = [_drawn_loss(window) for window in frame.windows]
    at = [_middle(words.start_s(window)) for window in frame.windows]
    told = [_loss_told(window) for window in frame.windows]
    figure.add_trace(
        go.Bar(
            x=at,
            y=[None if loss is None else 100 * loss[0] for loss in drawn],
            customdata=told,
            name="lost for certain",
            width=_BAR_MS,
            marker={"color": _CERTAIN},
            hovertemplate="%{customdata}",
        )
    )
    figure.add_trace(
        go.Bar(
            x=at,
            y=[None if loss is None or loss[1] <= loss[0] else 100 * (loss[1] - loss[0]) for loss in drawn],
            name="perhaps lost (up to lost.max)",
            width=_BAR_MS,
            marker={
                "color": "rgba(224,49,49,.22)",
                "line": {"color": _CERTAIN, "width": 1},
                "pattern": {"shape": "/", "fgcolor": _CERTAIN, "size": 5},
            },
            hoverinfo="skip",
        )
    )
    top = max([1.35 * 100 * target, 0.01, *(115 * loss[1] for loss in drawn if loss is not None)])
    figure.add_hline(
        y=100 * target,
        line={"color": frame.colours.target, "dash": "dash", "width": 1.5},
        annotation={
            "text": f"SLA loss ≤ {words.share(target)}",
            "font": {"color": frame.colours.target},
            "bgcolor": frame.colours.ground,
            "opacity": 0.9,
        },
        annotation_position="top left",
    )
    _stretch(figure, frame, top)
    _add_verdict_strip(figure, frame)
    _mark_windows(figure, frame)
    figure.update_layout(
        barmode="stack",
        yaxis={"domain": [0.2, 1], "ticksuffix": " %"},
        yaxis2={"domain": [0, 0.1], "range": [-1, 1], "visible": False, "fixedrange": True},
        xaxis={"anchor": "y2"},
    )
    return figure


def _empty_figure(frame: Frame, y_title: str) -> go.Figure:
    colours = frame.colours
    figure = go.Figure()
    figure.update_layout(
        template="none",
        font={"family": "system-ui, sans-serif", "size": 12, "color": colours.text},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 56, "r": 12, "t": 26, "b": 30},
        hovermode="x unified",
        hoverlabel={"bgcolor": colours.ground, "font": {"color": colours.text}, "namelength": -1},
        legend={
            "orientation": "h",
            "x": 0,
            # above the plot, however many rows it takes: below it, it would share a margin with the times
            "yref": "container",
            "y": 1,
            "yanchor": "top",
            "font": {"size": 11},
            "traceorder": "normal",
        },
        xaxis={
            "type": "date",
            "hoverformat": "%Y-%m-%d %H:%M UTC, one minute",
            "tickformatstops": [
                {"dtickrange": [None, 43_200_000], "value": "%H:%M"},
                {"dtickrange": [43_200_000, None], "value": "%b %-d"},
            ],
            "showgrid": False,
            "ticks": "outside",
            "tickcolor": colours.grid,
            "linecolor": colours.grid,
            "nticks": 8,
        },
        yaxis={
            "title": {"text": y_title, "standoff": 6},
            "gridcolor": colours.grid,
            "zerolinecolor": colours.zero,
            "rangemode": "tozero",
            "automargin": True,
        },
        # hidden traces (and zoom, see assets/lagloss.js) stay over refreshes until another pipeline or range is chosen
        uirevision=f"{frame.view.pipeline}|{frame.view.range}",
        selectionrevision="never",
        dragmode="zoom",
    )
    return figure


def _hop_bars(frame: Frame, hop: Hop, values_ms: list[float | None], unit_ms: float, hue: str) -> go.Bar:
    """Process time is solid in the node's colour; waiting is hatched in the colour of the node that takes it in."""
    solid = hop.kind == "process"
    return go.Bar(
        x=[_middle(words.start_s(window)) for window in frame.windows],
        y=[None if value is None else value / unit_ms for value in values_ms],
        customdata=[words.lag(value) for value in values_ms],
        name=hop.label,
        uid=f"{hop.kind}-{hop.source}-{hop.node}",  # what a reader hid stays hidden when other hops are drawn
        width=_BAR_MS,
        marker={
            "color": hue if solid else _faded(hue),
            "line": {"width": 0},
            "pattern": {"shape": {"process": "", "queue": "/", "arrival": "."}[hop.kind], "fgcolor": hue, "size": 5},
        },
        hovertemplate="%{customdata}",
    )


def _with_gaps(
    frame: Frame, values: Sequence[float | None], drawn: Callable[[float], float], told: Callable[[float | None], str]
) -> dict[str, Any]:
    """x, y and customdata of a line, broken where a minute has no value or no window."""
    x: list[str] = []
    y: list[float | None] = []
    texts: list[str] = []
    before: int | None = None
    for window, value in zip(frame.windows, values, strict=True):
        at = words.start_s(window)
        if before is not None and at - before > WINDOW_S:
            x.append(_middle(before + WINDOW_S))
            y.append(None)
            texts.append(words.NOTHING)
        x.append(_middle(at))
        y.append(None if value is None else drawn(value))
        texts.append(told(value))
        before = at
    return {"x": x, "y": y, "customdata": texts, "connectgaps": False}


def _stretch(figure: go.Figure, frame: Frame, top: float) -> None:
    """Makes the axes reach over the whole range and up to `top`.

    With an invisible line and not with the axes' `range`: so an axis that has a range of its own is one that a reader
    zoomed, and is kept over refreshes (assets/lagloss.js).
    """
    figure.add_trace(
        go.Scatter(
            x=[_utc(frame.from_s), _utc(frame.to_s)],
            y=[0, top],
            mode="lines",
            opacity=0,
            hoverinfo="skip",
            showlegend=False,
            name="",
        )
    )


def _add_lag_target(
    figure: go.Figure, frame: Frame, target_ms: float, label: str, highest_ms: float, unit_ms: float
) -> None:
    look = {"color": frame.colours.target}
    if target_ms <= _SLA_SHOWN_UP_TO * highest_ms:
        figure.add_hline(
            y=target_ms / unit_ms,
            line={**look, "dash": "dash", "width": 1.5},
            annotation={"text": label, "font": look, "bgcolor": frame.colours.ground, "opacity": 0.9},
            annotation_position="top left",
        )
    else:
        text = f"{label} ↑ beyond this scale"
        figure.add_annotation(
            x=1,
            y=1,
            xref="paper",
            yref="paper",
            yanchor="bottom",
            xanchor="right",
            text=text,
            font=look,
            showarrow=False,
        )


def _add_verdict_strip(figure: go.Figure, frame: Frame) -> None:
    for verdict, look in VERDICTS.items():
        of_this = [window for window in frame.windows if words.verdict_of(window) == verdict]
        if of_this:
            figure.add_trace(
                go.Scatter(
                    x=[_middle(words.start_s(window)) for window in of_this],
                    y=[0] * len(of_this),
                    customdata=[look.word] * len(of_this),
                    yaxis="y2",
                    name=look.word.lower(),
                    mode="markers",
                    marker={
                        "color": look.hex,
                        "symbol": look.symbol,
                        "size": 8 if len(frame.windows) <= 120 else 5,
                        "line": {"color": look.hex, "width": 1.5 if look.symbol.endswith("-open") else 0},
                    },
                    hovertemplate="verdict %{customdata}<extra></extra>",
                )
            )


def _mark_windows(figure: go.Figure, frame: Frame) -> None:
    """Shades runs of history windows, says what the shade means, and frames the chosen minute."""
    runs = _runs([words.start_s(window) for window in frame.windows if window.get("history")])
    for first_s, last_s in runs:
        label = {"text": "history", "textposition": "top left", "font": {"size": 11, "color": frame.colours.zero}}
        figure.add_shape(
            type="rect",
            xref="x",
            yref="paper",
            y0=0,
            y1=1,
            x0=_utc(first_s),
            x1=_utc(last_s + WINDOW_S),
            fillcolor=frame.colours.history,
            line={"width": 0},
            layer="below",
            label=label if last_s - first_s >= 5 * WINDOW_S else None,
        )
    if runs:
        figure.add_trace(
            go.Scatter(
                x=[None],
                y=[None],
                name="history: back-filled, sent after the fact",
                mode="markers",
                marker={"symbol": "square", "size": 11, "color": frame.colours.history.replace(".10", ".35")},
                hoverinfo="skip",
            )
        )
    if frame.chosen_s is not None:
        figure.add_shape(
            type="rect",
            xref="x",
            yref="paper",
            y0=0,
            y1=1,
            x0=_utc(frame.chosen_s),
            x1=_utc(frame.chosen_s + WINDOW_S),
            line={"color": frame.colours.chosen, "width": 1.5},
        )


def _drawn_loss(window: Document) -> tuple[float, float] | None:
    """(min, max) of the loss ratio; None where it is not known: open, no messages, or unknown with nothing to show.

    An unknown window whose interval starts at 0 draws the interval only, and one without any loss draws nothing: its 0
    is not a finding.
    """
    ratio = window["loss_ratio"]
    if ratio is None or ratio["min"] is None:
        return None
    if window["verdict"] == "unknown" and not ratio["max"]:
        return None
    return ratio["min"], ratio["max"]


def _loss_told(window: Document) -> str:
    if window["lost"] is None:
        return "not closed yet"
    lost, messages = words.interval(window["lost"]), words.count(window["messages"])
    told = f"{words.share_interval(window['loss_ratio'])} ({lost} of {messages})"
    return f"{told}, {words.count(window['pending'])} pending" if window["pending"] else told


def _height(stack: dict[Hop, float]) -> float:
    return sum(value for value in stack.values() if value > 0)


def _lag_unit(highest_ms: float) -> tuple[float, str]:
    if highest_ms < 2_000:
        return 1.0, "ms"
    return (1_000.0, "s") if highest_ms < 300_000 else (60_000.0, "min")


def _runs(starts: list[int]) -> list[tuple[int, int]]:
    """Consecutive minutes as (first, last)."""
    runs: list[tuple[int, int]] = []
    for at in starts:
        if runs and at - runs[-1][1] == WINDOW_S:
            runs[-1] = (runs[-1][0], at)
        else:
            runs.append((at, at))
    return runs


def _faded(hue: str) -> str:
    red, green, blue = (int(hue[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},.28)"


def _utc(epoch_s: float) -> str:
    """Plotly shows date strings as they stand, without a zone."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _middle(window_start_s: int) -> str:
    return _utc(window_start_s + WINDOW_S // 2)
