"""Parts of the page of runs: one run as a Gantt chart, and a job with its runs, their hours and its slowest tasks."""

from __future__ import annotations

from typing import Any, Final

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.figures.durations import durations
from dashboard.figures.gantt import run_gantt
from dashboard.pages.base import Part, aria, badge, faint, moment, table
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange
from dashboard.request.zones import utc
from lagloss_server.base import format as fmt
from lagloss_server.runs.dag_runs import JobStats, Repairs, TaskTry
from lagloss_server.runs.job_runs import HourRun, JobRuns

STATES: Final = {
    "success": ("success", "✔", "teal"),
    "failed": ("failed", "✖", "red"),
    "upstream_failed": ("upstream failed", "✖", "red"),
    "skipped": ("skipped", "○", "gray"),
    "running": ("running", "…", "blue"),
    "queued": ("queued", "…", "gray"),
}
"""The word, sign and colour of each state of a run or a task."""
_CONFIG: Final[Any] = {"displayModeBar": False, "responsive": True, "showTips": False}
_RECORDS: Final = ("In", "Out", "Lost", "Late", "Duplicated", "Corrupted")


def run_part(hour_run: HourRun, address: Address, now_s: float, dark: bool) -> Part:
    """Draw one run: what became of it, its hour, and its tasks as a Gantt chart and as a table."""
    run = hour_run.run
    figure = run_gantt(run, 1_000 * now_s, address.zone, dark)
    took = f" after {run.duration_words}" if run.has_ended else ""
    hour = ["hour ", _hour(hour_run, address), f", {run.run_id}"]
    chart = dcc.Graph(id="runs-gantt", figure=figure, config=_CONFIG, style={"height": figure.layout.height})
    heads = ("Task", "Try", "State", "Started", "Duration")
    rows = [_try(task_try, address) for task_try in run.tries]
    return dmc.Paper(
        [
            dmc.Group([dmc.Title(run.dag, order=2, fz=16), badge(*STATES[run.state]), f"{run.state}{took}"], gap="xs"),
            dmc.Text(hour, size="sm", className="faint"),
            dmc.Text(hour_run.why, fw=600) if hour_run.why else None,
            dmc.Text(_records_words(hour_run), size="sm"),
            html.Div(
                chart, role="img", **aria(label=f"Gantt chart of {run.run_id}; the table below has the same data")
            ),
            table(f"tasks of {run.run_id}", heads, rows) if rows else dmc.Text("No tasks were reported.", size="sm"),
        ],
        p="sm",
        withBorder=True,
    )


def _try(task_try: TaskTry, address: Address) -> list[Part]:
    began_s = None if task_try.started_ms is None else task_try.started_ms / 1_000
    return [
        task_try.label,
        str(task_try.number) if task_try.number else fmt.NOTHING,
        badge(*STATES[task_try.state], size="sm"),
        fmt.NOTHING
        if began_s is None
        else moment(address.zone.clock(began_s, seconds=True), utc(began_s, seconds=True)),
        fmt.duration(task_try.duration_ms),
    ]


def _records_words(hour_run: HourRun) -> str:
    if hour_run.hour is None:
        return "No minute of its hour is closed."
    named = zip(_RECORDS, _records(hour_run), strict=True)
    closed = f"{hour_run.hour.closed} of {fmt.counted(hour_run.hour.minutes, 'minute')} closed"
    return f"{', '.join(f'{name.lower()} {cell}' for name, cell in named)}; {closed}."


def _records(hour_run: HourRun) -> list[str]:
    if hour_run.hour is None:
        return [fmt.NOTHING] * len(_RECORDS)
    rest = (hour_run.hour.late, hour_run.hour.duplicated, hour_run.hour.corrupted)
    return [
        fmt.count(hour_run.hour.messages),
        fmt.count(hour_run.hour.delivered),
        fmt.count_interval(hour_run.hour.lost),
        *map(fmt.count, rest),
    ]


def _hour(hour_run: HourRun, address: Address) -> Part:
    """Return the hour that a run processes, as a link to its minutes."""
    run, zone = hour_run.run, address.zone
    text = f"{zone.clock(run.hour.from_s, date=True)}–{zone.clock(run.hour.to_s)}"
    pipeline = address.path.split("/")[2]
    href = address.to(links.pipeline(pipeline)).over(ShownRange(run.hour.from_s, run.hour.to_s)).href
    return dmc.Anchor(moment(text, f"{utc(run.hour.from_s)} to {utc(run.hour.to_s)}"), href=href, inherit=True)


def job_part(job: JobRuns, address: Address, dark: bool) -> Part:
    """Draw a job: its numbers, durations run by run, tasks with the slowest first, and runs with their hours."""
    stats = job.stats
    in_order = [hour_run.run for hour_run in reversed(job.runs)]
    chart = dcc.Graph(
        id={"type": "runs-durations", "dag": job.job.dag},
        figure=durations(stats, in_order, address.zone, dark),
        config=_CONFIG,
    )
    label = f"durations of the runs of {job.job.dag}; the tables below have the same data"
    heads = ("Hour", "Run", "State", "Duration", "Delay after the hour", *_RECORDS, "Problem")
    tasks = ("Task", "Median", "Longest", "Runs", "Succeeded", "Retried", "MTTR", "Not repaired")
    none = dmc.Text("No runs are due in this range.", size="sm")
    drawn = [
        html.Div(chart, role="img", **aria(label=label)),
        dmc.Title("Tasks, slowest first", order=3, fz=14, mt="sm"),
        table(f"tasks of {job.job.dag}", tasks, _tasks(stats)),
        dmc.Title("Runs, newest first, with the records of their hours", order=3, fz=14, mt="sm"),
        table(f"runs of {job.job.dag}", heads, [_run(hour_run, address) for hour_run in job.runs]),
    ]
    return dmc.Paper(
        [
            dmc.Title(f"Job {job.job.dag}", order=2, fz=16),
            dmc.SimpleGrid([_tile(*tile) for tile in _tiles(stats)], cols={"base": 2, "sm": 4}, my="sm", spacing="sm"),
            *(drawn if job.runs else [none]),
        ],
        p="sm",
        withBorder=True,
    )


def _tiles(stats: JobStats) -> list[tuple[str, str, str]]:
    """(title, value, what it stands beside) of a job over the range."""
    deadline = (
        (f"{stats.in_time} of {stats.judged}", f"hours within {fmt.duration(stats.job.deadline)}")
        if stats.in_time is not None
        else (fmt.NOTHING, "no deadline declared")
    )
    return [
        ("Succeeded", fmt.percent(stats.success_rate), f"of {fmt.counted(stats.runs, 'completed run')}"),
        ("Deadline met", *deadline),
        ("MTTR", fmt.duration_s(stats.repairs.mttr_s), _repaired(stats.repairs)),
        ("Median duration", fmt.duration_s(stats.median_s), "of successful runs"),
    ]


def _repaired(repairs: Repairs) -> str:
    return f"{fmt.counted(len(repairs.after_ms), 'hour')} repaired, {repairs.open} not"


def _tile(title: str, value: str, beside: str) -> Part:
    texts = [
        faint(title),
        html.Div(value, className="tile-value"),
        faint(beside),
    ]
    return dmc.Paper(texts, p="xs", className="tile")


def _tasks(stats: JobStats) -> list[list[Part]]:
    return [
        [
            task.task,
            fmt.duration_s(task.median_s),
            fmt.duration_s(max(task.durations_s, default=None)),
            str(task.runs),
            fmt.percent(task.success_rate),
            str(task.retried),
            fmt.duration_s(task.repairs.mttr_s),
            str(task.repairs.open),
        ]
        for task in stats.tasks
    ]


def _run(hour_run: HourRun, address: Address) -> list[Part]:
    run = hour_run.run
    return [
        _hour(hour_run, address),
        dmc.Anchor(run.run_id, href=address.asking(dag=run.dag, run=run.run_id).href, inherit=True, className="breaks"),
        badge(*STATES[run.state], size="sm"),
        run.duration_words,
        fmt.duration(run.delay_ms),
        *_records(hour_run),
        html.Span(hour_run.why or "", className="breaks"),
    ]
