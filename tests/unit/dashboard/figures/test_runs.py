"""The Gantt chart of a run and the durations of a job's runs, without a server."""

from __future__ import annotations

from dataclasses import replace

from dashboard.figures.durations import durations
from dashboard.figures.gantt import run_gantt
from dashboard.request.zones import Zone
from lagloss_server.runs.dag_runs import TaskTry, stats_of
from tests.support.runs import JOB, NOON_S, failed_run

ZONE = Zone.named("Asia/Tokyo")


def test_each_try_has_a_bar_in_a_row_of_its_own_and_each_state_a_pattern_of_its_own() -> None:
    figure = run_gantt(failed_run(), 0, ZONE, dark=False)
    bars = {trace.name: trace for trace in figure.data}
    assert bars.keys() == {"success", "failed"}
    assert (list(bars["failed"].y), list(bars["failed"].base), list(bars["failed"].x)) == (
        ["publish", "publish, try 2"],
        [6, 9],
        [1, 1],
    )
    assert list(figure.layout.yaxis.categoryarray) == ["publish, try 2", "publish", "spark"]
    assert "min since the first task began" in figure.layout.xaxis.title.text
    assert bars["failed"].marker.pattern.shape != bars["success"].marker.pattern.shape
    assert "JST" in bars["failed"].customdata[0]


def test_a_task_that_still_runs_reaches_to_now_and_markup_is_escaped() -> None:
    run = failed_run()
    running = replace(run, state="running", ended_ms=None, tries=(TaskTry("<b>", 1, "running", 1_000 * NOON_S),))
    (trace,) = run_gantt(running, 1_000 * (NOON_S + 90), ZONE, dark=True).data
    assert (list(trace.x), list(trace.y)) == ([90], ["&lt;b&gt;"])
    assert "not ended" in trace.customdata[0]


def test_a_run_without_tasks_has_an_empty_chart() -> None:
    assert run_gantt(replace(failed_run(), tries=()), 0, ZONE, dark=False).layout.height


def test_durations_are_stacked_by_the_slowest_tasks_and_failures_are_marked() -> None:
    failed = failed_run()
    good = replace(failed_run(NOON_S + 3_600), state="success", run_id="r-2", failed_ms=None)
    figure = durations(stats_of(JOB, [failed, good], 0), [failed, good], ZONE, dark=False)
    assert [trace.name for trace in figure.data] == ["spark", "publish", "entire run", "failed"]
    assert list(figure.data[0].y) == [6, 6]
    assert (list(figure.data[3].x), list(figure.data[3].y)) == (["2026-11-26 21:00"], [10])
    shapes = [trace.marker.pattern.shape for trace in figure.data[:2]]
    assert len(set(shapes)) == 2
