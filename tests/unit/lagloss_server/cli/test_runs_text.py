"""The tables of `lagloss runs`, and the Gantt chart of a run."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lagloss_server.cli.runs_text import gantt_lines, job_lines, runs_table, tasks_table
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import Interval
from lagloss_server.runs.dag_runs import DagRun, TaskTry, stats_of, why_bad
from lagloss_server.runs.job_runs import HourRecords, HourRun

NOON_S = 1_795_694_400
JOB = JobSpec(dag="scores", task="aggregate", deadline="20m")  # type: ignore[arg-type]


def attempt(task: str, number: int, state: str, from_min: float, to_min: float | None) -> TaskTry:
    start, end = (None if minute is None else round(1_000 * (NOON_S + 60 * minute)) for minute in (from_min, to_min))
    return TaskTry(task, number, state, start, end)  # type: ignore[arg-type]


TRIES = (
    attempt("aggregate", 1, "success", 0, 6),
    attempt("publish", 1, "failed", 6, 7),
    attempt("publish", 2, "failed", 9, 10),
    TaskTry("notify", 0, "upstream_failed"),
)
NOON_MS = 1_000 * NOON_S
ENDED_MS = NOON_MS + 600_000
MORNING = TimeRange(NOON_S - 3_600, NOON_S)
FAILED = DagRun("scores", "r-1", "failed", NOON_MS, MORNING, NOON_MS, ENDED_MS, ENDED_MS, TRIES)
HOUR = HourRecords(60, 60, 12_000, 11_990, Interval(10, 12), 7, None, 0)
RUN = HourRun(FAILED, HOUR, why_bad(JOB, FAILED))


def text_of(table: Table) -> str:
    console = Console(width=250)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_a_gantt_chart_has_a_bar_for_each_try_in_its_time() -> None:
    head, records, *bars = gantt_lines(RUN, 0, 120)
    assert head == (
        "scores r-1, hour 2026-11-26 11:00–12:00: failed after 10 min: "
        "publish and 1 more failed after 2 tries although aggregate succeeded"
    )
    assert records == "  in 12,000, out 11,990, lost 10–12, late 7, duplicated –, corrupted 0"
    drawn = [line.split("|")[1] for line in bars[:3]]
    width = len(drawn[0])
    assert {len(line) for line in drawn} == {width}
    assert [(line.index("█") / width, len(line.rstrip()) / width) for line in drawn] == [
        (0, 0.6),
        (0.6, 0.7),
        (0.9, 1),
    ]
    assert [line.split("|")[2].split() for line in bars[:3]] == [
        ["6", "min", "✔", "success"],
        ["1", "min", "✖", "failed"],
        ["1", "min", "✖", "failed"],
    ]
    assert bars[3].split() == ["notify", "✖", "upstream_failed"]


def test_a_run_stands_beside_the_records_of_its_hour() -> None:
    row = text_of(runs_table([RUN])).splitlines()[1]
    for cell in ("2026-11-26 11:00–12:00", "✖ failed", "10 min", "12,000", "11,990", "10–12"):
        assert cell in row
    open_hour = text_of(runs_table([HourRun(FAILED, None, None)])).splitlines()[1]
    assert open_hour.count("–") == 7  # six unknown counts, and the hour's own dash


def test_a_job_says_how_often_it_succeeded_and_how_long_repairs_took() -> None:
    stats = stats_of(JOB, [FAILED], NOON_S + 3_000)
    assert list(job_lines(stats)) == [
        "scores: 1 run ended, 0 % succeeded, 1 not yet repaired",
        "  deadline 20 min after the hour: met for 0 of 1 hour",
    ]
    slowest, publish = text_of(tasks_table(stats)).splitlines()[1:3]
    assert slowest.split()[:3] == ["aggregate", "6", "min"]
    assert "1 not yet repaired" in publish
