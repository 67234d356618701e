"""The linked panels, without a browser or a server."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.design import hues
from dashboard.figures import flow_graph, shares, sparkline, stack
from dashboard.figures.frame import SLOWEST, FigureFrame
from dashboard.figures.loss import drawn_loss, marked_buckets
from dashboard.figures.panels import height_px, history_runs, panels_figure
from dashboard.figures.time_axis import TimeAxis, drawn_s
from dashboard.pages.pipeline import parts as pipeline_parts
from dashboard.pages.pipeline.tables import share_row, worst
from dashboard.queries import buckets
from dashboard.queries.annotations import Deploy, Happenings
from dashboard.queries.consumer_lag import ConsumerLag, LagBucket, Of
from dashboard.queries.pipeline_status import Hour, Targets
from dashboard.queries.series import Series
from dashboard.queries.sla_periods import SlaPeriods, sla_periods_of
from dashboard.request.shown_range import ShownRange
from dashboard.request.zones import Zone
from lagloss_server.model import hops
from lagloss_server.model.definition import Definition, StoredPipeline, parse_definition
from lagloss_server.model.hops import Hop
from lagloss_server.model.time_range import TimeRange
from lagloss_server.sums.rollup import Rollup
from tests.support.window_documents import CHAIN, chain, clicks, document, window_of

START = 1_795_250_400
CHAIN_LAGS = {"src.in": 1.0, "src.out": 2.0, "mid.in": 3.0, "mid.out": 4.0, "snk.in": 8.0, "snk.out": 10.0}
"""The talk's example: lag-in 1, 3, 8 ms and lag-out 2, 4, 10 ms."""


HOUR = ShownRange(START, START + 3_600)


def frame(definition: Definition, windows: list[dict[str, Any]], **more: Any) -> FigureFrame:
    found = tuple(
        buckets.of_window(window_of(window), definition.graph, history=window["history"]) for window in windows
    )
    series = Series(definition.name, ShownRange(START, START + 3_600), 60, found, None)
    given_: dict[str, Any] = {"happenings": Happenings(), "zone": Zone.named("Europe/Berlin"), "now_s": START}
    more.setdefault("sla_periods", sla_periods((0, definition)))
    return FigureFrame(definition, series, **{**given_, **more})


def sla_periods(*applied: tuple[int, Definition]) -> SlaPeriods:
    """Of versions that were applied so many seconds after START."""
    given_ = enumerate(applied, 1)
    return sla_periods_of([StoredPipeline(one.name, at, 1_000 * (START + s), one) for at, (s, one) in given_], HOUR)


def promising(percentile: float, target: str, loss: float = 0.01) -> Definition:
    """The chain with another SLA."""
    return parse_definition(
        CHAIN.replace("percentile: 95, target: 5s", f"percentile: {percentile}, target: {target}").replace(
            "max: 0.01", f"max: {loss}"
        )
    )


def traces(figure: go.Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def known(values: Any) -> list[float | None]:
    return [None if value is None or math.isnan(value) else float(value) for value in values]


def told(figure: go.Figure, yaxis: str) -> list[str]:
    """What is said under the mouse in one panel, bucket by bucket."""
    [carrier] = [trace for trace in figure.data if trace.yaxis == yaxis and trace.customdata is not None]
    return [text for _, _, text in carrier.customdata]


def clicks_lags(ga_ms: float, fb_ms: float) -> dict[str, float]:
    lags = {"col-service.in": 10.0, "col-service.out": 20.0, "event-norm.in": 50.0, "event-norm.out": 60.0}
    lags |= {"event-router.in": 100.0, "event-router.out:conn-ga": 110.0, "event-router.out:conn-fb": 110.0}
    return lags | {"conn-ga.in": 200.0, "conn-ga.out": ga_ms, "conn-fb.in": 150.0, "conn-fb.out": fb_ms}


def test_the_stack_of_a_chain_adds_up_to_the_e2e_p95_in_the_order_of_the_flow() -> None:
    figure = panels_figure(frame(chain(), [document(chain(), START, lags_ms=CHAIN_LAGS)]))
    bars = [trace for trace in figure.data if isinstance(trace, go.Bar) and trace.yaxis == "y2"]
    assert [(bar.name, bar.y[0]) for bar in bars] == [
        ("arrival at src", 1.0),
        ("process src", 1.0),
        ("queue src → mid", 1.0),
        ("process mid", 1.0),
        ("queue mid → snk", 4.0),
        ("process snk", 2.0),
    ]
    assert traces(figure)["E2E p95"].y[0] == sum(bar.y[0] for bar in bars) == 10.0


def test_each_minute_stacks_the_slowest_path_or_the_chosen_one() -> None:
    slow_ga = document(clicks(), START, lags_ms=clicks_lags(900.0, 300.0))
    slow_fb = document(clicks(), START + 60, lags_ms=clicks_lags(250.0, 700.0))
    bars = traces(panels_figure(frame(clicks(), [slow_ga, slow_fb], path=SLOWEST)))
    assert known(bars["process conn-ga"].y) == [700.0, None]
    assert known(bars["process conn-fb"].y) == [None, 550.0]
    chosen = traces(panels_figure(frame(clicks(), [slow_ga, slow_fb], path="conn-fb")))
    assert "process conn-ga" not in chosen
    assert list(chosen["process conn-fb"].y) == [150.0, 550.0]


def test_negative_hops_are_drawn_and_told_as_they_are() -> None:
    lags = {**CHAIN_LAGS, "mid.in": -30.0, "mid.out": -20.0}
    figure = panels_figure(frame(chain(), [document(chain(), START, lags_ms=lags)]))
    assert figure.layout.barmode == "relative"
    assert traces(figure)["queue src → mid"].y[0] == -32.0
    assert "queue src → mid -32 ms" in told(figure, "y2")[0]


def test_a_missing_minute_breaks_the_lines() -> None:
    windows = [document(chain(), START + 60 * minute, lags_ms=CHAIN_LAGS) for minute in (0, 1, 3)]
    drawn = traces(panels_figure(frame(chain(), windows)))
    for name, value in (("E2E p95", 10.0), ("messages expected", 1_000.0)):
        assert known(drawn[name].y) == [value, value, None, value]
        assert drawn[name].connectgaps is False


def test_many_buckets_are_areas_that_cover_no_gap() -> None:
    minutes = [minute for minute in range(200) if not 50 <= minute < 60]
    windows = [document(chain(), START + 60 * minute, lags_ms=CHAIN_LAGS) for minute in minutes]
    figure = panels_figure(frame(chain(), windows))
    area = traces(figure)["process src"]
    assert area.fill == "toself"
    at = TimeAxis.over(Zone.named("Europe/Berlin"), START, START + 3_600).at
    runs: list[list[str]] = [[]]
    for x in area.x:
        if x is None:
            runs.append([])
        else:
            runs[-1].append(x)
    assert [(min(run), max(run)) for run in runs] == [
        (at(START), at(START + 50 * 60)),
        (at(START + 60 * 60), at(START + 200 * 60)),
    ]


lags = st.none() | st.floats(-1_000, 1_000)


@given(st.lists(st.lists(lags, min_size=3, max_size=3), max_size=12))
def test_positive_hops_are_stacked_up_and_negative_ones_down(rows: list[list[float | None]]) -> None:
    order = [Hop("process", name) for name in "abc"]
    stacks = [{hop: value for hop, value in zip(order, row, strict=True) if value is not None} for row in rows]
    edges = stack.stacked(order, stacks)
    for at, row in enumerate(rows):
        for place, value in enumerate(row):
            edge = edges[order[place]][at]
            if value is None:
                assert edge is None
                continue
            below = [other for other in row[:place] if other is not None and (other >= 0) == (value >= 0)]
            assert edge == pytest.approx((sum(below), sum(below) + value), abs=1e-9)


def test_loss_is_a_certain_bar_and_a_hatched_interval_up_to_what_cannot_be_ruled_out() -> None:
    window = document(chain(), START, verdict="loss", messages=10, lost={"mid": (1, 3)})
    figure = panels_figure(frame(chain(), [window]))
    assert traces(figure)["certainly lost"].y[0] == pytest.approx(10)
    assert traces(figure)["possibly lost"].y[0] == pytest.approx(20)
    assert "10 % – 30 % (1–3 of 10)" in told(figure, "y3")[0]


def test_open_idle_and_unknown_minutes_draw_no_zero_and_are_told_apart_below() -> None:
    windows = [
        document(chain(), START, verdict=None),
        document(chain(), START + 60, verdict="unknown", reasons=("evidence:src",)),
        document(chain(), START + 120, verdict="unknown", lost={"mid": (0, 50)}),
        document(chain(), START + 180, verdict="idle", messages=0),
        document(chain(), START + 240, verdict="ok"),
    ]
    shown = frame(chain(), windows)
    drawn = traces(panels_figure(shown))
    assert known(drawn["certainly lost"].y) == []
    assert known(drawn["possibly lost"].y) == [5.0]
    assert list(drawn["possibly lost"].x) == [shown.middle(shown.series.buckets[2])]
    assert len(drawn["unknown"].x) == 2
    assert len({drawn[verdict].marker.symbol for verdict in ("open", "unknown", "idle", "ok")}) == 4
    assert drawn_loss(buckets.of_window(window_of(windows[0]), chain().graph)) is None


def test_of_many_verdicts_each_change_is_marked_and_no_space_is_left_in_a_run() -> None:
    verdicts = ["ok"] * 200 + ["loss"] + ["ok"] * 199
    windows = [document(chain(), START + 60 * minute, verdict=verdict) for minute, verdict in enumerate(verdicts)]
    found = frame(chain(), windows).series.buckets
    marked = marked_buckets(found)
    at = [found.index(bucket) for bucket in marked]
    assert {0, 200, 201} <= set(at)
    assert max(later - earlier for earlier, later in pairwise(at)) == 2  # 400 in 240 places
    assert [bucket.verdict for bucket in marked].count("loss") == 1
    assert marked_buckets(found[:120]) == list(found[:120])


def test_the_targets_are_always_in_view() -> None:
    near = panels_figure(frame(chain(), [document(chain(), START, lags_ms={**CHAIN_LAGS, "snk.out": 4_000.0})]))
    far = panels_figure(frame(chain(), [document(chain(), START, lags_ms=CHAIN_LAGS)]))
    assert {shape.yref: shape.y0 for shape in near.layout.shapes} == {"y2": 5.0, "y3": 1.0}
    assert near.layout.yaxis2.range[1] > 5
    assert {shape.yref: shape.y0 for shape in far.layout.shapes} == {"y3": 1.0}
    assert any("off the scale" in note.text for note in far.layout.annotations)


def test_a_target_is_drawn_in_steps_by_the_definition_in_force() -> None:
    lags = {**CHAIN_LAGS, "snk.out": 4_000.0}
    windows = [document(chain(), START + 60 * minute, lags_ms=lags) for minute in range(60)]
    versions = sla_periods(
        (-9_000, promising(95, "5s")), (1_770, promising(95, "3s")), (1_830, promising(95, "3s", 0.05))
    )
    figure = panels_figure(frame(chain(), windows, sla_periods=versions))
    at = TimeAxis.over(Zone.named("Europe/Berlin"), START, START + 3_600).at
    level = [(s.yref, s.x0, s.x1, s.y0) for s in figure.layout.shapes if s.y0 == s.y1]
    assert level == [
        ("y2", at(START), at(START + 1_800), 5.0),
        ("y2", at(START + 1_800), at(START + 3_600), 3.0),
        ("y3", at(START), at(START + 1_860), 1.0),
        ("y3", at(START + 1_860), at(START + 3_600), 5.0),
    ]
    rises = [(s.yref, s.x0, s.y0, s.y1) for s in figure.layout.shapes if s.x0 == s.x1]
    assert rises == [("y2", at(START + 1_800), 5.0, 3.0), ("y3", at(START + 1_860), 1.0, 5.0)]
    labels = [note.text for note in figure.layout.annotations if "SLA" in note.text]
    assert labels == ["SLA p95 ≤ 5 s", "SLA p95 ≤ 3 s", "SLA loss ≤ 1 %", "SLA loss ≤ 5 %"]
    assert figure.layout.yaxis3.range[1] > 5


@given(st.lists(st.tuples(st.integers(-7_200, 7_200), st.sampled_from([1, 2, 3])), min_size=1, max_size=6))
def test_terms_say_of_each_minute_what_the_version_in_force_says(applied: list[tuple[int, int]]) -> None:
    versions = [(at_s, promising(95, f"{target}s")) for at_s, target in sorted(applied)]
    found = sla_periods(*versions)
    for start_s in range(START, START + 3_600, 60):
        before = [of for at_s, of in versions if START + at_s <= start_s] or [versions[0][1]]
        assert found.at(start_s).sla == before[-1].spec.sla
    assert [(one.to_s, one.sla == other.sla) for one, other in pairwise(found.parts)] == [
        (other.from_s, False) for other in found.parts[1:]
    ]
    assert (found.parts[0].from_s, found.parts[-1].to_s) == (START, START + 3_600)


def test_a_lag_is_drawn_and_judged_by_the_percentile_of_its_sla() -> None:
    # p95 4 s is within the target, p99 5.6 s is not
    window = document(chain(), START, lags_ms={**CHAIN_LAGS, "snk.out": 4_000.0})
    of_p99 = frame(chain(), [window], sla_periods=sla_periods((0, promising(99, "5s"))))
    [bucket] = of_p99.series.buckets
    figure = panels_figure(of_p99)
    assert known(traces(figure)["E2E p99"].y) == [pytest.approx(5.6)]
    assert figure.layout.yaxis2.title.text == "E2E p99,<br>hops p95 (s)"
    assert "E2E p99 5.6 s" in told(figure, "y2")[0]
    assert worst(of_p99.series, of_p99.sla_periods) == [bucket]
    of_p95 = frame(chain(), [window])
    assert worst(of_p95.series, of_p95.sla_periods) == []


def test_a_percentile_that_results_do_not_hold_is_judged_by_the_on_time_share_and_the_line_says_so() -> None:
    late = {**document(chain(), START, lags_ms={**CHAIN_LAGS, "snk.out": 4_000.0}), "on_time_share": 0.85}
    of_p90 = frame(chain(), [late], sla_periods=sla_periods((0, promising(90, "5s"))))
    figure = panels_figure(of_p90)
    assert known(traces(figure)["E2E p95"].y) == [4.0]
    labels = [note.text for note in figure.layout.annotations]
    assert "SLA p90 ≤ 5 s, measured by the on-time share; the line shows p95" in labels
    assert len(worst(of_p90.series, of_p90.sla_periods)) == 1


def test_a_sparkline_has_no_target_of_another_percentile() -> None:
    hours = [Hour(START, 100.0, 0.0), Hour(START + 3_600, 900.0, 0.0)]
    assert "stroke-dasharray" in sparkline.sparkline(hours, Targets(0.01, 95, 500))
    assert "stroke-dasharray" not in sparkline.sparkline(hours, Targets(0.01, 99, 500))
    assert "the target is for p99" in sparkline.spoken(hours, Targets(0.01, 99, 500))


def test_only_a_minute_with_evidence_of_no_messages_draws_zero() -> None:
    windows = [
        document(chain(), START, messages=7),
        document(chain(), START + 60, verdict="unknown", messages=0, reasons=("evidence:src",)),
        document(chain(), START + 120, verdict="idle", messages=0),
        document(chain(), START + 180, verdict=None, messages=0),
    ]
    made = frame(chain(), windows)
    figure = panels_figure(made)
    assert known(traces(figure)["messages expected"].y) == [7.0, None, 0.0, None]
    assert known(traces(figure)["completed"].y) == [7.0, None, 0.0, None]
    assert "unknown, no reports" in told(figure, "y")[1]
    assert "0 messages expected" in told(figure, "y")[2]
    assert "unknown" in told(figure, "y3")[1]
    blind = buckets.of_rollup(Rollup(windows=2, verdicts={"idle": 1, "unknown": 1}), START, 3_600, chain().graph)
    assert (blind.messages, blind.reached_an_end, blind.document()["messages"]) == (None, None, None)


def test_history_is_shaded_and_named() -> None:
    windows = [document(chain(), START + 60 * minute, history=minute < 20) for minute in range(30)]
    made = frame(chain(), windows)
    [shade] = [shape for shape in panels_figure(made).layout.shapes if shape.layer == "below"]
    assert (shade.x0, shade.x1) == (made.axis.at(START), made.axis.at(START + 1_200))
    assert "history" in shade.label.text
    assert history_runs(made.series.buckets) == [TimeRange(START, START + 1_200)]


def test_what_is_hidden_stays_hidden_over_refreshes_and_zooms_and_not_over_pipelines() -> None:
    one, other = (panels_figure(frame(definition, [])) for definition in (chain(), clicks()))
    again = panels_figure(frame(chain(), [document(chain(), START, lags_ms=CHAIN_LAGS)]))
    assert one.layout.uirevision == again.layout.uirevision != other.layout.uirevision


def test_html_in_names_and_texts_stays_text() -> None:
    evil = Happenings(deploys=(Deploy(START + 30, "<b>version</b> <a href='x'>2</a>"),))
    figure = panels_figure(frame(chain(), [document(chain(), START)], happenings=evil))
    assert list(traces(figure)["deploys, scaling"].text) == ["&lt;b&gt;version&lt;/b&gt; &lt;a href='x'&gt;2&lt;/a&gt;"]


def test_the_axis_keeps_one_offset_where_clocks_change() -> None:
    berlin = Zone.named("Europe/Berlin")
    change = int(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp())  # 03:00 CEST becomes 02:00 CET
    axis = TimeAxis.over(berlin, change - 7_200, change + 7_200)
    drawn = [datetime.fromisoformat(axis.at(at)) for at in range(change - 7_200, change + 7_200, 600)]
    assert [b - a for a, b in pairwise(drawn)] == [timedelta(minutes=10)] * 23
    assert (axis.offset, axis.clock(change)) == ("UTC+01:00", "2026-10-25 02:00")


@given(st.integers(0, 4_000_000_000), st.sampled_from(["UTC", "Asia/Kathmandu", "America/St_Johns"]))
def test_a_moment_of_the_axis_is_read_back(epoch_s: int, zone: str) -> None:
    axis = TimeAxis.over(Zone.named(zone), epoch_s, epoch_s + 60)
    drawn = axis.at(epoch_s)
    assert drawn_s(drawn, axis.offset_s) == epoch_s
    assert drawn_s(drawn.removesuffix(".000000"), axis.offset_s) == epoch_s
    assert drawn_s(axis.at(epoch_s + 0.5), axis.offset_s) == epoch_s + 0.5


def test_shares_are_sorted_and_of_all_that_adds_to_the_lag() -> None:
    found = shares.shares({Hop("process", "src"): 30.0, Hop("queue", "mid", "src"): -5.0, Hop("process", "mid"): 70.0})
    assert [(share.hop.node, share.share) for share in found] == [("mid", 0.7), ("src", 0.3), ("mid", None)]
    words = [share_row(share, 70.0, hues(["src", "mid"]))[2:] for share in found]
    assert words == [["70 ms", "70 %"], ["30 ms", "30 %"], ["-5 ms", "–"]]


def test_the_pie_and_the_bars_are_drawn_to_scale() -> None:
    hue = {"src": "#112233", "mid": "#445566"}
    found = shares.shares({Hop("process", "src"): 30.0, Hop("queue", "mid", "src"): -5.0, Hop("process", "mid"): 70.0})
    parts = re.findall(r'stroke-dasharray="([\d.]+) ([\d.]+)" stroke-dashoffset="(-?[\d.]+)"', shares.pie(found, hue))
    around = float(parts[0][1])
    assert [(float(length) + 1.5) / around for length, _, _ in parts] == pytest.approx([0.7, 0.3], abs=1e-3)
    assert [-float(turned) / around for _, _, turned in parts] == pytest.approx([0.0, 0.7], abs=1e-3)
    widths = [re.findall(r'<rect width="([\d.]+)" height="14"', shares.bar(share, 70.0, hue)) for share in found]
    assert [float(width) for (width,) in widths] == [96.0, pytest.approx(41.1), 0.0]
    assert "<circle" not in shares.pie([], hue)
    assert "nan" not in shares.bar(found[0], 0.0, hue)


def test_the_graph_goes_from_left_to_right_with_retriers_below_and_losses_on_their_places() -> None:
    retried = parse_definition(CHAIN.replace("to: [snk]}", "to: [snk], retries: again}\n    - {name: again}"))
    graph = retried.graph
    placed = flow_graph.spots(graph)
    assert placed["src"].x < placed["mid"].x == placed["again"].x < placed["snk"].x
    assert placed["again"].y < placed["mid"].y
    lost = {"src->mid": (2, 5), "mid": (1, 1)}
    total = buckets.of_window(window_of(document(retried, START, verdict="loss", lags_ms=CHAIN_LAGS, lost=lost)), graph)
    texts = [note.text for note in flow_graph.flow_figure(graph, total, dark=False).layout.annotations]
    assert any("<b>mid</b>" in text and "process 1 ms" in text and "1 lost" in text for text in texts)
    assert any("1 ms" in text and "2–5<br>lost" in text for text in texts)
    assert any("retrier" in text for text in texts)
    assert hops.deliveries(graph) == ["snk"]


MID = Of("mid", "chain.mid")


def watched(lags: dict[int, tuple[int | None, int | None]]) -> FigureFrame:
    """The chain, whose node mid names its group, with (offsets, behind_ms) of some minutes."""
    definition = parse_definition(CHAIN.replace("{name: mid,", "{name: mid, group: chain.mid,"))
    found = tuple(LagBucket(START + 60 * at, 60, 0, offsets, 0, ms) for at, (offsets, ms) in lags.items())
    windows = [document(definition, START, lags_ms=CHAIN_LAGS)]
    return frame(definition, windows, consumer_lag={MID: found} if found else {})


def test_consumer_lag_is_drawn_by_node_and_gaps_are_gaps() -> None:
    figure = panels_figure(watched({0: (5, 900), 1: (0, 0), 3: (None, None), 4: (5_210, 12_000)}))
    drawn = traces(figure)["consumer lag mid"]
    assert (drawn.yaxis, known(drawn.y)) == ("y6", [5.0, 0.0, None, None, 5_210.0])
    assert drawn.line.color == traces(figure)["process mid"].marker.color
    assert told(figure, "y6") == [
        "<b>consumer lag</b><br>mid 5, 900 ms behind",
        "<b>consumer lag</b><br>mid 0",
        "<b>consumer lag</b><br>mid –, – behind",
        "<b>consumer lag</b><br>mid 5,210, 12 s behind",
    ]


def test_of_a_queue_the_messages_in_flight_are_named_too() -> None:
    definition = parse_definition(CHAIN.replace("{name: mid,", "{name: mid, queue: 'http://q/1/mid',"))
    values = [(5, 3, None), (0, 2, 900), (0, 0, 0)]
    found = tuple(
        LagBucket(START + 60 * at, 60, 0, waiting, 0, age_ms, 0, in_flight)
        for at, (waiting, in_flight, age_ms) in enumerate(values)
    )
    drawn = frame(definition, [document(definition, START, lags_ms=CHAIN_LAGS)], consumer_lag={MID: found})
    assert told(panels_figure(drawn), "y6") == [
        "<b>consumer lag</b><br>mid 5, 3 in flight, – behind",
        "<b>consumer lag</b><br>mid 0, 2 in flight, 900 ms behind",
        "<b>consumer lag</b><br>mid 0",
    ]


def test_the_panel_of_consumer_lag_is_there_only_if_a_group_is_named_and_takes_no_height_of_the_others() -> None:
    plain, more = frame(chain(), [document(chain(), START)]), watched({0: (1, 1)})
    before, after = panel_heights_px(plain), panel_heights_px(more)
    assert after.keys() - before.keys() == {"yaxis6"}
    assert {axis: after[axis] for axis in before} == pytest.approx(before)
    ends = sorted(tuple(axis.domain) for axis in axes(panels_figure(more)).values())
    assert all(below[1] < above[0] for below, above in pairwise(ends))


def axes(figure: go.Figure) -> dict[str, Any]:
    return {name: figure.layout[name] for name in figure.layout if name.startswith("yaxis")}


def panel_heights_px(drawn: FigureFrame) -> dict[str, float]:
    found = axes(panels_figure(drawn))
    return {name: height_px(drawn) * (axis.domain[1] - axis.domain[0]) for name, axis in found.items()}


def test_groups_of_which_nothing_is_known_are_named() -> None:
    figure = panels_figure(watched({}))
    assert "no data: have the groups committed offsets? do the queues exist?" in [
        each.text for each in figure.layout.annotations
    ]
    groups = {"mid": "chain.mid", "snk": "<chain.snk>"}
    found = {MID: (LagBucket(START, 60, 0, 7, 0, 3_000),), Of("src", "old"): (LagBucket(START, 60, 0, None, 0, None),)}
    lag = ConsumerLag("chain", HOUR, 60, groups, found)
    assert pipeline_parts.describe_consumer_lag(lag, Zone.named("UTC")) == (
        "; highest consumer lag 7 (3 s behind) of mid at 2026-11-21 08:40; consumer lag unknown for <chain.snk> (snk)"
    )
