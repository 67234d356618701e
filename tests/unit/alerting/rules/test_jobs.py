"""Rules of jobs: when they breach, which hour they name and how many records wait for it, and how they end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from alerting.backtest.replay import Past, Replay, ReplayedClosing
from alerting.incidents.pre_check import is_judged_by_news
from alerting.rules import reader_of, rules_of
from alerting.rules.jobs import KINDS_OF_JOBS, MAX_RUNS
from alerting.rules.view import PipelineView
from lagloss_server.model.definition import Definition
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.runs.dag_runs import DagRun, TaskTry, TryState
from tests.support.alert_views import Told, defined, minute, rule_of, view_of, window
from tests.support.window_documents import window_of

HOUR_S = 3_600
END_S = -(-(minute(0) + 60) // HOUR_S) * HOUR_S
"""The end of an hour that lies ahead of minute 0."""
AT = (END_S - minute(0)) // 60
"""The minute with which it ends."""
JOB = JobSpec.model_validate({"dag": "scores", "deadline": "20m", "task": "spark", "node": "mid"})
FAILED_TRIES: tuple[tuple[str, int, TryState], ...] = (
    ("spark", 1, "success"),
    ("publish", 1, "failed"),
    ("publish", 2, "failed"),
)


def with_job(alerts: str = "", **changes: object) -> Definition:
    found = defined(alerts)
    job = JOB.model_copy(update=changes)
    return found.model_copy(update={"spec": found.spec.model_copy(update={"jobs": (job,)})})


def test_an_open_incident_of_a_job_is_judged_at_each_turn_since_runs_are_no_windows() -> None:
    by_news = {rule.kind: is_judged_by_news(rule) for rule in rules_of(with_job())}
    assert {kind for kind in KINDS_OF_JOBS if by_news.get(kind, False)} == set()
    assert by_news.keys() >= {"run-failed", "loss"}
    assert by_news["loss"]


def run(
    hours_before: int = 0, state: str = "success", minutes: float | None = 10, tries: tuple[TaskTry, ...] = ()
) -> DagRun:
    """The run of the hour that ended so many hours before END_S; it ended after these minutes."""
    to_s = END_S - hours_before * HOUR_S
    ended = None if minutes is None else round(1_000 * (to_s + 60 * minutes))
    return DagRun(
        "scores",
        f"r{hours_before}",
        state,  # type: ignore[arg-type]
        1_000 * to_s,
        TimeRange(to_s - HOUR_S, to_s),
        1_000 * to_s,
        ended,
        ended if state == "failed" else None,
        tries,
    )


def tries(*of: tuple[str, int, TryState]) -> tuple[TaskTry, ...]:
    return tuple(TaskTry(task, number, state, 1_000 * END_S, 1_000 * END_S + 60_000) for task, number, state in of)


def seen(definition: Definition, runs: list[DagRun], minutes_after: float) -> PipelineView:
    """So many minutes after END_S; the hour's last three windows are closed, with 1,000 messages each."""
    documents = {AT - at: window(definition, AT - at) for at in (1, 2, 3)}
    return view_of(definition, documents, AT + minutes_after, runs=runs)


def text_of(view: PipelineView, rule: str) -> str | None:
    """What the rule says of this minute; None where it finds no breach."""
    found = rule_of(view.definition, rule).assess(view)
    assert set(found.breaches) == set(found.texts)
    return next(iter(found.texts.values()), None)


def test_a_failed_run_names_the_task_the_hour_and_the_records_that_wait() -> None:
    view = seen(with_job(), [run(1), run(0, "failed", 10, tries(*FAILED_TRIES))], 12)
    text = text_of(view, "run-failed/scores")
    assert text is not None
    assert text.startswith("scores: publish failed after 2 tries although spark succeeded; 3,000 records of ")
    assert text.endswith(" UTC wait")
    found = rule_of(view.definition, "run-failed/scores").assess(view)
    assert list(found.breaches.values()) == [120]
    assert not found.tickets
    assert [(place.kind, place.name) for place in found.places] == [("node", "mid")]


def test_a_task_that_failed_in_a_run_that_counts_as_a_success_is_a_ticket() -> None:
    view = seen(with_job(), [run(0, "success", 10, tries(*FAILED_TRIES))], 12)
    found = rule_of(view.definition, "run-failed/scores").assess(view)
    assert set(found.tickets) == set(found.breaches) != set()


def test_a_failure_lasts_until_a_run_over_the_same_hour_succeeds() -> None:
    failed, later = run(1, "failed", 10), run(0)
    assert text_of(seen(with_job(), [failed, later], 12), "run-failed/scores") is not None
    again = replace(failed, state="running", ended_ms=None)
    assert "is running again" in (text_of(seen(with_job(), [again, later], 12), "run-failed/scores") or "")
    repaired = replace(failed, state="success", ended_ms=1_000 * END_S)
    assert text_of(seen(with_job(), [repaired, later], 12), "run-failed/scores") is None
    assert text_of(seen(with_job(), [run(30, "failed")], 12), "run-failed/scores") is None


@pytest.mark.parametrize(
    ("runs", "after", "says"),
    [
        ([run(1), run(0)], 30, None),
        ([run(1), run(0, "running", None)], 20, None),
        ([run(1), run(0, "running", None)], 21, "its run is running; 3,000 records"),
        ([run(1)], 21, "no run of it has started"),
        ([run(2)], 21, "and 1 hour before"),
        ([run(1), run(0, "success", 40)], 41, None),
        ([], 30, None),
    ],
)
def test_a_deadline_is_missed_while_an_hour_has_no_result(runs: list[DagRun], after: float, says: str | None) -> None:
    text = text_of(seen(with_job(), runs, after), "deadline/scores")
    assert (text is None) == (says is None)
    assert says is None or (text is not None and says in text)


DAILY = {"span": 86_400_000, "deadline": 93_600_000}


@pytest.mark.parametrize(
    ("changes", "hour_s", "rule", "opens_h"),
    [
        ({}, HOUR_S, "run-failed/scores", 0.2),
        ({}, HOUR_S, "deadline/scores", 0.4),
        (DAILY, 24 * HOUR_S, "run-failed/scores", 0.2),
        (DAILY, 24 * HOUR_S, "deadline/scores", 26.1),
        ({**DAILY, "span": 7 * 86_400_000}, 7 * 24 * HOUR_S, "run-failed/scores", 0.2),
    ],
)
def test_time_repairs_no_hour(changes: dict[str, int], hour_s: int, rule: str, opens_h: float) -> None:
    definition = with_job(**changes)

    def spanning(to_s: int) -> DagRun:
        processed = TimeRange(to_s - hour_s, to_s)
        return replace(run(), run_id=f"r{to_s}", hour=processed, due_ms=1_000 * to_s, ended_ms=1_000 * (to_s + 600))

    def view(hours: float, state: str) -> PipelineView:
        later = range(END_S + hour_s, END_S + round(hours * HOUR_S) + 1, hour_s)
        bad = replace(run(0, state), hour=TimeRange(END_S - hour_s, END_S))
        return seen(definition, [spanning(END_S - hour_s), bad, *map(spanning, later)], 60 * hours)

    told = Told.of(definition, rule)
    for hours in sorted({max(0.2, opens_h - 0.1), opens_h, 23.9, 24.1, 25.4, 27, 47, 50, 75, 80, 150}):
        told.evaluate(view(hours, "failed"))
        assert (told.open is not None) == (hours >= opens_h), hours
    told.evaluate(view(150.1, "success"))
    assert [(change.kind, change.why) for change in told.changes if change.kind != "updated"] == [
        ("opened", ""),
        ("resolved", "recovered"),
    ]
    assert not rule_of(definition, rule).assess(view(24 * 30, "failed")).breaches


def test_an_incident_ends_with_the_repair_of_its_own_hour_whatever_was_not_repaired_before() -> None:
    told, long_ago = Told.of(with_job(), "run-failed/scores"), run(47, "failed")
    back_filled = replace(run(26, "failed"), failed_ms=1_000 * END_S, ended_ms=1_000 * END_S)
    for now, state in ((12, "failed"), (14, "success")):
        told.evaluate(seen(with_job(), [long_ago, back_filled, run(1), run(0, state)], now))
    assert [(change.kind, change.why) for change in told.changes] == [("opened", ""), ("resolved", "recovered")]


@pytest.mark.parametrize(("minutes", "why"), [(20, "recovered"), (5 * MAX_RUNS + 10, "expired")])
def test_an_hour_of_which_rules_know_nothing_any_more_has_expired(minutes: int, why: str) -> None:
    def often(number: int, state: str = "success") -> DagRun:
        to_s = END_S + 300 * number
        hour, at_ms = TimeRange(to_s - 300, to_s), 1_000 * (to_s + 60)
        failed_ms = at_ms if state == "failed" else None
        return replace(run(0, state), run_id=f"r{number}", hour=hour, due_ms=1_000 * to_s, failed_ms=failed_ms)

    definition, now = with_job(span=300_000), minutes // 5
    told = Told.of(definition, "run-failed/scores")
    told.evaluate(seen(definition, [often(-1), often(0, "failed")], 2))
    told.evaluate(seen(definition, [often(number) for number in range(now - MAX_RUNS, now)], minutes))
    assert [(change.kind, change.why) for change in told.changes] == [("opened", ""), ("resolved", why)]


def test_an_hour_that_was_not_repaired_for_a_week_expires() -> None:
    told = Told.of(with_job(), "run-failed/scores")
    told.evaluate(seen(with_job(), [run(1), run(0, "failed")], 12))
    told.evaluate(seen(with_job(), [run(-hours) for hours in range(24, 24 * 9)][:190], 60 * 24 * 9))
    assert [(change.kind, change.why) for change in told.changes] == [("opened", ""), ("resolved", "expired")]


def test_output_is_stale_after_two_spans_and_the_deadline_or_as_the_definition_says() -> None:
    runs = [run(1)]
    assert text_of(seen(with_job(), runs, 80), "output-stale/scores") is None
    text = text_of(seen(with_job(), runs, 81), "output-stale/scores")
    assert text is not None
    assert "3,000 records" in text
    assert text_of(seen(with_job("outputStale: {max: 70m}"), runs, 11), "output-stale/scores") is not None
    assert text_of(seen(with_job(), [run(1, "failed")], 300), "output-stale/scores") is None


def test_daily_output_is_not_stale_after_two_hours() -> None:
    daily = replace(run(1), hour=TimeRange(END_S - 25 * HOUR_S, END_S - HOUR_S))
    assert text_of(seen(with_job(), [daily], 300), "output-stale/scores") is None
    assert text_of(seen(with_job("outputStale: {max: 2h}"), [daily], 300), "output-stale/scores") is not None


def test_a_run_of_a_future_date_hides_no_missing_result() -> None:
    runs = [run(hours) for hours in range(1, 7)]
    future = replace(run(-48), hour=TimeRange(END_S, END_S + 48 * HOUR_S), ended_ms=1_000 * END_S)
    for rule, after in (("output-stale/scores", 81), ("deadline/scores", 21), ("run-late/scores", 21)):
        text = text_of(seen(with_job(), [*runs, future], after), rule)
        assert text is not None
        assert text == text_of(seen(with_job(), runs, after), rule)


def test_a_run_is_late_by_the_habit_of_the_results_before() -> None:
    before = [run(hours, "success", 10 + hours % 2) for hours in range(1, 8)]
    waits = run(0, "running", None)
    assert text_of(seen(with_job(), [*before, waits], 15), "run-late/scores") is None
    text = text_of(seen(with_job(), [*before, waits], 17), "run-late/scores")
    assert text is not None
    assert "has no result 17 min after the end of its hour, usually available after 11 min; 3,000 records" in text
    assert text_of(seen(with_job(), [*before, run(0, "success", 16)], 17), "run-late/scores") is None
    assert text_of(seen(with_job(), [*before[:4], waits], 17), "run-late/scores") is None
    uneven = [run(hours, "success", 10 + 5 * (hours % 3)) for hours in range(1, 8)]
    assert text_of(seen(with_job(), [*uneven, waits], 24), "run-late/scores") is None


def test_an_hour_without_closed_windows_says_so() -> None:
    definition = with_job()
    view = view_of(definition, {0: window(definition, 0)}, AT + 61 + 21, runs=[run(0)])
    assert "is waiting; none of its windows is closed" in (text_of(view, "deadline/scores") or "")


def test_rules_are_there_only_of_jobs_and_only_what_is_declared() -> None:
    def names(definition: Definition) -> list[str]:
        return [rule.name for rule in rules_of(definition) if rule.name.endswith("/scores")]

    assert names(defined()) == []
    assert names(with_job()) == ["run-failed/scores", "deadline/scores", "output-stale/scores", "run-late/scores"]
    assert names(with_job(deadline=None)) == ["run-failed/scores", "output-stale/scores", "run-late/scores"]
    assert names(with_job("deadline: off\nrunFailed: off\noutputStale: off\nrunLate: off")) == []


def test_a_backtest_opens_what_was_open_at_the_time_and_no_earlier() -> None:
    definition = with_job()
    failed = run(0, "failed", 10, tries(*FAILED_TRIES))
    by_hand = replace(run(0, "success", 30), run_id="by-hand", started_ms=1_000 * (END_S + 20 * 60))
    reader = reader_of(definition)
    closings = [
        ReplayedClosing(minute(at + 2), minute(at), reader.row(minute(at), window_of(window(definition, at))))
        for at in range(AT)
    ]
    replay = Replay(definition, minute(0), END_S + HOUR_S, Past(runs=[run(1), failed, by_hand]))
    replay.run(closings, END_S + HOUR_S)
    found = {each.rule.name: each for each in replay.incidents if each.rule.name.endswith("/scores")}
    assert found.keys() == {"run-failed/scores", "deadline/scores"}
    opened = found["run-failed/scores"]
    assert (opened.opened_at_s, opened.resolved_at_s) == (END_S + 600, END_S + 1_800)
    assert found["deadline/scores"].inhibited_by == ("run-failed/scores",)
