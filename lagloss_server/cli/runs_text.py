"""The tables of `lagloss runs` for a terminal, and a run's Gantt chart as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.table import Column, Table

from lagloss_server.base import format as fmt
from lagloss_server.runs.dag_runs import JobStats, Repairs, bars_of
from lagloss_server.runs.job_runs import HourRecords, HourRun

SIGNS: Final = {"success": "✔", "failed": "✖", "upstream_failed": "✖", "skipped": "○", "running": "…", "queued": "…"}
"""A sign for each state of a run or a task, beside its word."""
_CHART: Final = range(20, 61)
"""The width of a Gantt chart's bars, in characters."""


def hour_of(hour_run: HourRun) -> str:
    """Return the event time that a run processes: `2026-11-26 11:00–12:00`."""
    until_date = hour_run.run.hour.length_s > 86_400
    return f"{fmt.clock(hour_run.run.hour.from_s, date=True)}–{fmt.clock(hour_run.run.hour.to_s, date=until_date)}"


def job_lines(stats: JobStats) -> Iterator[str]:
    """Yield what the runs of a job come to, in sentences."""
    rate = fmt.percent(stats.success_rate)
    yield f"{stats.job.dag}: {fmt.counted(stats.runs, 'run')} ended, {rate} succeeded, {repairs_words(stats.repairs)}"
    if stats.in_time is not None and stats.job.deadline is not None:
        in_time = f"{stats.in_time} of {fmt.counted(stats.judged, 'hour')}"
        yield f"  deadline {fmt.duration(stats.job.deadline)} after the hour: met for {in_time}"


def repairs_words(repairs: Repairs) -> str:
    """Return how failures ended: `MTTR 15 min (2 repaired), 1 not repaired`."""
    if not repairs.after_ms and not repairs.open:
        return "nothing to repair"
    mttr = f"MTTR {fmt.duration_s(repairs.mttr_s)} ({len(repairs.after_ms)} repaired)" if repairs.after_ms else ""
    rest = f"{repairs.open} not yet repaired" if repairs.open else ""
    return ", ".join(text for text in (mttr, rest) if text)


def runs_table(runs: Iterable[HourRun]) -> Table:
    """Lay out runs, one per row, with the records of their hours."""
    names = (
        "hour (UTC)",
        "run",
        "state",
        "duration",
        "after the hour",
        "in",
        "out",
        "lost",
        "late",
        "duplicated",
        "corrupted",
    )
    table = Table(*(Column(name, no_wrap=True) for name in names), "why", box=None)
    for dag_run in runs:
        run = dag_run.run
        table.add_row(
            hour_of(dag_run),
            run.run_id,
            f"{SIGNS[run.state]} {run.state}",
            run.duration_words,
            fmt.duration(run.delay_ms),
            *record_cells(dag_run.hour),
            dag_run.why or "",
        )
    return table


def record_cells(hour: HourRecords | None) -> tuple[str, ...]:
    """Return the records of an hour as texts: in, out, lost, late, seen twice, corrupted."""
    if hour is None:
        return (fmt.NOTHING,) * 6
    counts = (hour.late, hour.duplicated, hour.corrupted)
    return fmt.count(hour.messages), fmt.count(hour.delivered), fmt.count_interval(hour.lost), *map(fmt.count, counts)


def tasks_table(stats: JobStats) -> Table:
    """Lay out the tasks of a job, the slowest first."""
    table = Table("task", "median", "max", "runs", "succeeded", "retried", "repairs", box=None)
    for task in stats.tasks:
        table.add_row(
            task.task,
            fmt.duration_s(task.median_s),
            fmt.duration_s(max(task.durations_s, default=None)),
            str(task.runs),
            fmt.percent(task.success_rate),
            str(task.retried),
            repairs_words(task.repairs),
        )
    return table


def gantt_lines(hour_run: HourRun, now_ms: float, columns: int) -> Iterator[str]:
    """Yield a run as a Gantt chart: a line for each try of a task, its bar within the run's time."""
    run = hour_run.run
    why = f": {hour_run.why}" if hour_run.why else ""
    took = f" after {run.duration_words}" if run.has_ended else ""
    yield f"{run.dag} {run.run_id}, hour {hour_of(hour_run)}: {run.state}{took}{why}"
    if hour_run.hour is not None:
        names = ("in", "out", "lost", "late", "duplicated", "corrupted")
        yield "  " + ", ".join(f"{name} {cell}" for name, cell in zip(names, record_cells(hour_run.hour), strict=True))
    bars = bars_of(run, now_ms)
    longest = max((len(bar.task_try.label) for bar in bars), default=0)
    width = min(max(columns - longest - 36, _CHART.start), _CHART.stop - 1)
    for bar in bars:
        begin = min(int(bar.start * width), width - 1)
        end = max(begin + 1, round(bar.end * width))
        drawn = f"{' ' * begin}{'█' * (end - begin)}".ljust(width)
        state = f"{SIGNS[bar.task_try.state]} {bar.task_try.state}"
        took = fmt.duration(bar.task_try.duration_ms)
        yield f"  {bar.task_try.label.ljust(longest)} {bar.task_try.number:>2} |{drawn}| {took:>8}  {state}"
    for task_try in run.tries:
        if task_try.started_ms is None:
            yield f"  {task_try.label.ljust(longest)}  {SIGNS[task_try.state]} {task_try.state}"
