"""Charts of experiments: well-formed, in their frame, and the same look for the same label."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline_under_test.experiments.chart import (
    HEIGHT,
    LEFT,
    TICKS,
    TOP,
    WIDTH,
    Chart,
    ChartLine,
    ChartPanel,
    said,
    ticks,
)
from pipeline_under_test.experiments.cpu_misleads import CpuSample, chart, figures

SVG = "{http://www.w3.org/2000/svg}"
values = st.floats(0, 1e6)


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_ticks_are_a_few_round_steps_that_hold_all_values(one: float, other: float) -> None:
    least, most = sorted((one, other))
    found = ticks(least, most)
    assert found[0] <= least + 1e-9
    assert found[-1] >= most - 1e-6 * max(1.0, most)
    assert 2 <= len(found) <= TICKS + 3


@example([(1.4, 0.0)])  # just below a multiple of the ticks' step
@given(st.lists(st.tuples(values, values), min_size=1, max_size=20))
def test_every_point_is_drawn_inside_its_panel(points: list[tuple[float, float]]) -> None:
    drawn = ET.fromstring(Chart("a chart", "s", [ChartPanel("y", [ChartLine("a", points)])]).svg())
    [line] = drawn.iter(f"{SVG}polyline")
    pairs = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(pairs) == len(points)
    for x, y in pairs:
        assert LEFT - 0.1 <= x <= WIDTH
        assert TOP - 0.1 <= y <= TOP + HEIGHT + 0.1


def test_a_label_looks_the_same_in_all_panels_and_differs_from_others_by_more_than_colour() -> None:
    one, other = ChartLine("a <b>", [(0, 1), (1, 2)]), ChartLine("other", [(0, 3), (1, 1)])
    drawn = ET.fromstring(
        Chart("x & y", "s", [ChartPanel("1", [one, other]), ChartPanel("2", [other], (9, "most"))]).svg()
    )
    looks = [(line.attrib["stroke"], line.attrib["stroke-dasharray"]) for line in drawn.iter(f"{SVG}polyline")]
    assert looks[1] == looks[2]
    assert looks[0][0] != looks[1][0]
    assert looks[0][1] != looks[1][1]
    said = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {"x & y", "a <b>", "other", "1", "2", "s", "most"} <= set(said)
    assert said.count("other") == 1  # the legend names each once


def test_a_mark_above_all_points_is_drawn_too() -> None:
    drawn = ET.fromstring(
        Chart("c", "s", [ChartPanel("y", [ChartLine("a", [(0, 0.1), (1, 0.2)])], (80, "a mark"))]).svg()
    )
    labels = [text.text for text in drawn.iter(f"{SVG}text")]
    assert "80" in labels


@given(st.lists(values, min_size=1, max_size=4), st.integers(1, 3))
def test_bars_stand_side_by_side_inside_their_panel_each_with_its_value_above(ys: list[float], lines: int) -> None:
    names = [f"kind {at}" for at in range(len(ys))]
    made = [ChartLine(f"line {number}", list(enumerate(ys))) for number in range(lines)]
    drawn = ET.fromstring(Chart("c", "kinds", [ChartPanel("y", made)], names).svg())
    panel = next(drawn.iter(f"{SVG}g"))
    bars = [
        {name: float(bar.attrib[name]) for name in ("x", "y", "width", "height")} for bar in panel.iter(f"{SVG}rect")
    ]
    assert len(bars) == len(ys) * lines
    for bar in bars:
        assert bar["y"] >= TOP - 0.1
        assert bar["y"] + bar["height"] == pytest.approx(TOP + HEIGHT, abs=0.11)
    bars.sort(key=lambda bar: bar["x"])
    assert bars[0]["x"] >= LEFT
    for bar, right in pairwise(bars):
        assert bar["x"] + bar["width"] <= right["x"]
    assert bars[-1]["x"] + bars[-1]["width"] <= WIDTH
    said_there = [text.text for text in drawn.iter(f"{SVG}text")]
    assert {*names, *map(said, ys)} <= set(said_there)


def test_a_higher_value_has_a_higher_bar() -> None:
    drawn = ET.fromstring(Chart("c", "kinds", [ChartPanel("y", [ChartLine("a", [(0, 1), (1, 2)])])], ["x", "y"]).svg())
    low, high = (float(bar.attrib["height"]) for bar in next(drawn.iter(f"{SVG}g")).iter(f"{SVG}rect"))
    assert high == pytest.approx(2 * low, abs=0.2)


def test_the_figures_of_an_experiment_are_of_its_end_and_its_worst_moment() -> None:
    samples = [CpuSample(float(at), 100, 1 + (at > 30), 10 * at, lag_s=abs(50.0 - at), cpu=0.2) for at in range(61)]
    found = figures({"cpu": samples})["cpu"]
    assert found["processes_at_end"] == 2
    assert found["lag_s_highest"] == 50
    assert found["lag_s_at_end"] == pytest.approx(4, abs=2)
    assert found["cpu_at_end"] == 0.2
    assert len(list(ET.fromstring(chart({"cpu": samples, "queue-lag": samples}).svg()).iter(f"{SVG}polyline"))) == 8
