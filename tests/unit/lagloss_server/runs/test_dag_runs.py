"""What the runs of a job come to: failures, repairs, deadlines and durations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.runs.dag_runs import (
    DagRun,
    RunState,
    TaskTry,
    TryState,
    bars_of,
    expected_hours,
    judged_hours,
    run_repairs,
    stats_of,
    why_bad,
)

HOUR_S = 3_600
JOB = JobSpec(dag="scores", task="aggregate", deadline="20m")  # type: ignore[arg-type]


def attempt(
    task: str, number: int, state: TryState, from_min: float, to_min: float, to_s: int = 12 * HOUR_S
) -> TaskTry:
    """A try, in minutes after the end of the hour."""
    start, end = (1_000 * to_s + round(60_000 * minutes) for minutes in (from_min, to_min))
    return TaskTry(task, number, state, start, end)


def run(hour: int, state: RunState, end_min: float | None = 10, *tries: TaskTry, run_id: str = "") -> DagRun:
    """The run of the hour that ends at `hour`."""
    to_s = hour * HOUR_S
    ended = None if end_min is None else 1_000 * to_s + round(60_000 * end_min)
    failed = ended if state == "failed" else None
    start = 1_000 * to_s
    processed = TimeRange(to_s - HOUR_S, to_s)
    return DagRun("scores", run_id or f"at-{hour}", state, start, processed, start, ended, failed, tuple(tries))


@pytest.mark.parametrize(
    ("due_min", "interval_min", "span_min"),
    [
        (780, None, (720, 780)),
        (785, None, (720, 780)),  # five past one: the hour before
        (780, (780, 780), (720, 780)),  # what cron schedules have in Airflow 3
        (785, (725, 785), (725, 785)),
        (785, (784, 785), (784, 785)),
        (785, (784.1, 784.9), (720, 780)),  # within a minute: no interval
        (785, (784.5, 785.4), (720, 780)),
        (785, (786, 785), (720, 780)),
    ],
)
def test_a_run_processes_its_data_interval_or_the_whole_span_before_it(
    due_min: int, interval_min: tuple[float, float] | None, span_min: tuple[int, int]
) -> None:
    interval = None if interval_min is None else (round(60_000 * interval_min[0]), round(60_000 * interval_min[1]))
    assert JOB.span_of(60_000 * due_min, interval) == TimeRange(60 * span_min[0], 60 * span_min[1])


def test_a_run_that_was_cleared_took_what_its_last_attempt_did_and_counts_in_no_median() -> None:
    tries = [attempt("aggregate", 1, "success", 0, 9), attempt("publish", 4, "success", 30, 31)]
    cleared = replace(run(12, "success", 31, *tries), started_ms=tries[1].started_ms)
    assert (cleared.is_rerun, cleared.duration_words) == (True, "1 min (rerun)")
    whole = run(13, "success", 10, attempt("aggregate", 1, "success", 0, 10, 13 * HOUR_S))
    assert (whole.is_rerun, whole.duration_words) == (False, "10 min")
    assert stats_of(JOB, [cleared, whole], 14 * HOUR_S).median_s == 600


def test_a_run_that_failed_after_its_job_says_so() -> None:
    tries = [
        attempt("aggregate", 1, "success", 0, 3),
        attempt("publish", 1, "failed", 3, 4),
        attempt("publish", 2, "failed", 6, 7),
        TaskTry("notify", 0, "upstream_failed"),
    ]
    failed = run(12, "failed", 8, *tries)
    assert why_bad(JOB, failed) == "publish and 1 more failed after 2 tries although aggregate succeeded"
    hidden = replace(failed, state="success", tries=tuple(tries[:2]))
    assert why_bad(JOB, hidden) == "publish failed although aggregate succeeded, but the run counts as a success"
    own = run(12, "failed", 8, attempt("aggregate", 1, "failed", 0, 3))
    assert why_bad(JOB, own) == "aggregate failed"
    assert why_bad(JOB, run(12, "failed")) == "scores failed, but no failed task was reported"


def test_a_task_that_succeeded_at_last_is_no_failure() -> None:
    tries = attempt("publish", 1, "failed", 3, 4), attempt("publish", 2, "success", 6, 7)
    assert why_bad(JOB, run(12, "success", 8, *tries)) is None
    assert why_bad(JOB, run(12, "running", None, tries[0])) is None


def test_an_hour_is_repaired_by_a_success_over_the_same_hour_alone() -> None:
    failed = run(12, "failed", 10)
    later_hour = run(13, "success")
    assert run_repairs([failed, later_hour]).document() == {"repaired": 0, "open": 1, "mttr_s": None}
    cleared = replace(run(12, "success", 40), failed_ms=failed.failed_ms)
    assert run_repairs([cleared, later_hour]).mttr_s == 30 * 60
    by_hand = run(12, "success", 25, run_id="manual")
    assert run_repairs([failed, by_hand, later_hour]).mttr_s == 15 * 60
    before = run(12, "success", 5, run_id="manual")  # a second run failed: the result was there
    assert run_repairs([before, failed]).document() == {"repaired": 0, "open": 0, "mttr_s": None}


def test_a_deadline_is_missed_by_a_late_result_and_by_none() -> None:
    now_s = 16 * HOUR_S + 60
    runs = [run(12, "success", 10), run(13, "success", 21), run(15, "failed", 10)]
    assert expected_hours(JOB, runs, now_s) == [hour * HOUR_S for hour in (12, 13, 14, 15, 16)]
    judged = judged_hours(JOB, runs, now_s)
    assert judged == {12 * HOUR_S: True, 13 * HOUR_S: False, 14 * HOUR_S: False, 15 * HOUR_S: False}
    assert judged_hours(JobSpec(dag="scores"), runs, now_s) == {}
    assert judged_hours(JOB, [], now_s) == {}


def test_a_result_is_expected_as_often_as_the_newest_hour_is_long() -> None:
    day_s = 24 * HOUR_S
    days = [replace(run(0, "success"), hour=TimeRange(day * day_s, (day + 1) * day_s)) for day in (1, 2)]
    assert expected_hours(JOB, days, 5 * day_s + 60) == [2 * day_s, 3 * day_s, 4 * day_s, 5 * day_s]


@given(st.integers(0, 2 * HOUR_S * 1_000), st.integers(0, 200_000), st.integers(-HOUR_S, HOUR_S))
def test_no_interval_keeps_hours_from_being_expected(start_ms: int, length_ms: int, due_in_s: int) -> None:
    now_s = 30 * HOUR_S
    due_ms = 1_000 * (now_s + due_in_s)
    hour = JOB.span_of(due_ms, (due_ms - length_ms, due_ms) if length_ms else None)
    earlier = JOB.span_of(start_ms, (start_ms, start_ms + length_ms))
    runs = [replace(run(0, "success"), hour=processed) for processed in (earlier, hour)]
    assert min(processed.length_s for processed in (earlier, hour)) >= 60
    assert earlier.to_s in expected_hours(JOB, runs, now_s)
    assert stats_of(JOB, runs, now_s).runs == 2


def test_a_run_of_a_future_date_is_not_the_newest() -> None:
    runs = [run(12, "success"), run(13, "success")]
    future = replace(run(40, "success"), hour=TimeRange(16 * HOUR_S, 40 * HOUR_S))
    now_s = 15 * HOUR_S + 60
    assert expected_hours(JOB, [*runs, future], now_s) == expected_hours(JOB, runs, now_s)
    assert expected_hours(JOB, [future], now_s) == []


def test_tasks_are_ranked_by_their_median_duration_and_have_their_own_repairs() -> None:
    twice = [
        attempt("load", 1, "failed", 0, 1),
        attempt("load", 2, "success", 5, 6),
        attempt("aggregate", 1, "success", 6, 9),
    ]
    one_s = 13 * HOUR_S
    once = [attempt("load", 1, "success", 0, 1, one_s), attempt("aggregate", 1, "success", 1, 6, one_s)]
    stats = stats_of(JOB, [run(12, "success", 9, *twice), run(13, "success", 6, *once), run(14, "running", None)], 0)
    assert (stats.runs, stats.succeeded, stats.median_s) == (2, 2, 450)
    assert [(task.task, task.median_s) for task in stats.tasks] == [("aggregate", 240), ("load", 60)]
    load = stats.tasks[1]
    assert (load.runs, load.succeeded, load.retried, load.repairs.mttr_s) == (2, 2, 1, 300)


def test_a_run_as_of_an_earlier_moment_knows_nothing_of_what_came_later() -> None:
    whole = run(12, "failed", 10, attempt("load", 1, "success", 0, 2), attempt("aggregate", 1, "failed", 2, 9))
    start_ms = 12 * HOUR_S * 1_000
    assert whole.as_of(start_ms - 1) is None
    early = whole.as_of(start_ms + 5 * 60_000)
    assert early is not None
    assert (early.state, early.ended_ms, early.failed_ms) == ("running", None, None)
    assert [each.state for each in early.tries] == ["success", "running"]
    assert whole.as_of(start_ms + 10 * 60_000) == whole


def test_bars_lie_within_the_run_and_those_still_running_reach_to_now() -> None:
    tries = attempt("load", 1, "success", 0, 5), TaskTry("publish", 1, "running", 12 * HOUR_S * 1_000 + 5 * 60_000)
    bars = bars_of(run(12, "running", None, *tries), 12 * HOUR_S * 1_000 + 10 * 60_000)
    assert [(bar.start, bar.end) for bar in bars] == [(0, 0.5), (0.5, 1)]
