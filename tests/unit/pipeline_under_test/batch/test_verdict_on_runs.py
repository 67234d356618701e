"""The hourly job's ledger beside the runs that lagloss knows."""

from __future__ import annotations

from lagloss_server.model.time_range import TimeRange
from lagloss_server.runs.dag_runs import DagRun, RunState, TaskTry
from pipeline_under_test.batch.verdict import TrueRuns, run_differences

HOUR = 1_795_579_200
TRUTH = TrueRuns(frozenset({HOUR}), frozenset({(HOUR, "publish", 1)}))


def run(state: RunState = "success", *tries: TaskTry) -> DagRun:
    return DagRun("scores_hourly", "one", state, 1000 * (HOUR + 120), TimeRange(HOUR, HOUR + 120), tries=tries)


FAILED, THEN = TaskTry("publish", 1, "failed"), TaskTry("publish", 2, "success")


def test_runs_and_failures_as_injected_agree() -> None:
    assert list(run_differences(TRUTH, [run("success", FAILED, THEN)], {HOUR: 9})) == []


def test_an_hour_without_a_run_or_a_publication_differs() -> None:
    truth = TrueRuns(frozenset({HOUR}), frozenset())
    found = list(run_differences(truth, [], {}))
    assert found == [f"expected a successful run of hour {HOUR}, found none", f"expected hour {HOUR} to be published"]
    assert "found failed" in next(iter(run_differences(truth, [run("failed")], {HOUR: 9})))


def test_a_failed_try_that_only_one_of_both_knows_differs() -> None:
    assert list(run_differences(TRUTH, [run("success", THEN)], {HOUR: 9})) == [
        f"attempt 1 of publish for hour {HOUR} failed only according to the ledger"
    ]
    other = TaskTry("load", 1, "failed")
    assert list(run_differences(TRUTH, [run("success", FAILED, THEN, other)], {HOUR: 9})) == [
        f"attempt 1 of load for hour {HOUR} failed only according to lagloss"
    ]
