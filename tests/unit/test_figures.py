"""The charts, without a browser or a server."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import pytest

from dashboard.figures_old import Frame, lag_figure, loss_figure
from dashboard.view import View
from lagloss.definition import Definition
from tests.window_documents import chain, clicks, document

START = 1_795_250_400
CHAIN_LAGS = {"src.in": 1.0, "src.out": 2.0, "mid.in": 3.0, "mid.out": 4.0, "snk.in": 8.0, "snk.out": 10.0}
"""The talk's example: lag-in 1, 3, 8 ms and lag-out 2, 4, 10 ms."""


def frame(definition: Definition, windows: list[dict[str, Any]], **more: Any) -> Frame:
    path = more.pop("path", "slowest")
    return Frame(definition, windows, View(definition.name, path=path), START, START + 3_600, **more)


def traces(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def clicks_lags(ga_ms: float, fb_ms: float) -> dict[str, float]:
    lags = {"col-service.in": 10.0, "col-service.out": 20.0, "event-norm.in": 50.0, "event-norm.out": 60.0}
    lags |= {"event-router.in": 100.0, "event-router.out:conn-ga": 110.0, "event-router.out:conn-fb": 110.0}
    return lags | {"conn-ga.in": 200.0, "conn-ga.out": ga_ms, "conn-fb.in": 150.0, "conn-fb.out": fb_ms}


def test_the_stack_of_a_chain_adds_up_to_the_e2e_p95_in_the_order_of_the_flow() -> None:
    figure = lag_figure(frame(chain(), [document(chain(), START, lags_ms=CHAIN_LAGS)]))
    bars = [trace for trace in figure.data if isinstance(trace, go.Bar)]
    assert [(bar.name, bar.y[0]) for bar in bars] == [
        ("until src takes it in", 1.0),
        ("process src", 1.0),
        ("queue src → mid", 1.0),
        ("process mid", 1.0),
        ("queue mid → snk", 4.0),
        ("process snk", 2.0),
    ]
    assert traces(figure)["E2E p95"].y[0] == sum(bar.y[0] for bar in bars) == 10.0


def test_each_minute_stacks_the_path_to_the_delivery_with_the_highest_p95() -> None:
    slow_ga = document(clicks(), START, lags_ms=clicks_lags(900.0, 300.0))
    slow_fb = document(clicks(), START + 60, lags_ms=clicks_lags(250.0, 700.0))
    bars = traces(lag_figure(frame(clicks(), [slow_ga, slow_fb])))
    assert list(bars["process conn-ga"].y) == [700.0, None]
    assert list(bars["process conn-fb"].y) == [None, 550.0]
    assert list(bars["E2E p95"].y) == [900.0, 700.0]


def test_a_chosen_path_is_stacked_in_every_minute() -> None:
    window = document(clicks(), START, lags_ms=clicks_lags(900.0, 300.0))
    bars = traces(lag_figure(frame(clicks(), [window], path="conn-fb")))
    assert "process conn-ga" not in bars
    assert list(bars["process conn-fb"].y) == [150.0]


def test_negative_hops_are_drawn_as_they_are() -> None:
    lags = {**CHAIN_LAGS, "mid.in": -30.0, "mid.out": -20.0}
    figure = lag_figure(frame(chain(), [document(chain(), START, lags_ms=lags)]))
    assert figure.layout.barmode == "relative"
    assert traces(figure)["queue src → mid"].y[0] == -32.0
    assert traces(figure)["queue src → mid"].customdata[0] == "-32 ms"


def test_long_lags_are_told_in_seconds() -> None:
    lags = {name: 1_000 * lag for name, lag in CHAIN_LAGS.items()}
    figure = lag_figure(frame(chain(), [document(chain(), START, lags_ms=lags)]))
    assert "(s)" in figure.layout.yaxis.title.text
    assert traces(figure)["E2E p95"].y[0] == 10.0
    assert traces(figure)["queue mid → snk"].customdata[0] == "4 s"


def test_the_lag_target_is_a_line_or_named_at_the_rim_when_it_would_flatten_the_bars() -> None:
    near = document(chain(), START, lags_ms={**CHAIN_LAGS, "snk.out": 4_000.0})
    far = document(chain(), START, lags_ms=CHAIN_LAGS)
    line = lag_figure(frame(chain(), [near]))
    assert [shape.y0 for shape in line.layout.shapes if shape.line.dash == "dash"] == [5.0]
    rim = lag_figure(frame(chain(), [far]))
    assert not [shape for shape in rim.layout.shapes if shape.line.dash == "dash"]
    assert "beyond this scale" in rim.layout.annotations[0].text


def test_a_missing_minute_breaks_the_e2e_line() -> None:
    windows = [document(chain(), START + 60 * minute, lags_ms=CHAIN_LAGS) for minute in (0, 1, 3)]
    line = traces(lag_figure(frame(chain(), windows)))["E2E p95"]
    assert list(line.y) == [10.0, 10.0, None, 10.0]
    assert line.connectgaps is False


def test_loss_is_a_certain_bar_and_a_hatched_interval_up_to_what_cannot_be_ruled_out() -> None:
    window = document(chain(), START, verdict="loss", messages=10, lost={"mid": (1, 3)})
    bars = traces(loss_figure(frame(chain(), [window])))
    assert bars["lost for certain"].y[0] == pytest.approx(10)
    assert bars["perhaps lost (up to lost.max)"].y[0] == pytest.approx(20)
    assert bars["lost for certain"].customdata[0] == "10 % – 30 % (1–3 of 10)"


def test_open_idle_and_unknown_minutes_draw_no_zero_and_are_told_apart_below() -> None:
    windows = [
        document(chain(), START, verdict=None),
        document(chain(), START + 60, verdict="unknown", reasons=("evidence:src",)),
        document(chain(), START + 120, verdict="unknown", lost={"mid": (0, 50)}),
        document(chain(), START + 180, verdict="idle", messages=0),
        document(chain(), START + 240, verdict="ok"),
    ]
    drawn = traces(loss_figure(frame(chain(), windows)))
    assert list(drawn["lost for certain"].y) == [None, None, 0.0, None, 0.0]
    assert list(drawn["perhaps lost (up to lost.max)"].y) == [None, None, 5.0, None, None]
    assert {"open", "unknown", "idle", "ok"} <= set(drawn)
    assert len(drawn["unknown"].x) == 2
    assert len({drawn[verdict].marker.symbol for verdict in ("open", "unknown", "idle", "ok")}) == 4


def test_the_loss_target_is_always_in_view() -> None:
    figure = loss_figure(frame(chain(), [document(chain(), START)]))
    [target] = [shape.y0 for shape in figure.layout.shapes if shape.line.dash == "dash"]
    assert target == 1.0
    assert max(figure.data[2].y) > target


@pytest.mark.parametrize("draw", [lag_figure, loss_figure])
def test_history_is_shaded_and_named_in_both_charts(draw: Any) -> None:
    windows = [document(chain(), START + 60 * minute, history=minute < 10) for minute in range(12)]
    figure = draw(frame(chain(), windows))
    [shade] = [shape for shape in figure.layout.shapes if shape.layer == "below"]
    assert (shade.x0, shade.x1) == ("2026-11-21 08:40:00", "2026-11-21 08:50:00")
    assert shade.label.text == "history"
    assert any("history" in name for name in traces(figure))


@pytest.mark.parametrize("draw", [lag_figure, loss_figure])
def test_a_refresh_keeps_zoom_and_another_range_does_not(draw: Any) -> None:
    windows = [document(chain(), START, lags_ms=CHAIN_LAGS)]
    first = draw(frame(chain(), windows))
    again = draw(frame(chain(), [*windows, document(chain(), START + 60, lags_ms=CHAIN_LAGS)]))
    other = draw(Frame(chain(), windows, View("chain", "3h"), START, START + 10_800))
    assert first.layout.uirevision == again.layout.uirevision != other.layout.uirevision


@pytest.mark.parametrize("draw", [lag_figure, loss_figure])
def test_nothing_to_draw_is_an_empty_chart(draw: Any) -> None:
    figure = draw(frame(clicks(), [], dark=True, chosen_s=START))
    assert any(list(trace.x) == ["2026-11-21 08:40:00", "2026-11-21 09:40:00"] for trace in figure.data)
    assert figure.layout.xaxis.range is None  # one that moves on with time would undo a reader's zoom
