"""The section of a report about the jobs of a pipeline: whether their runs succeeded and were in time, and repairs."""

from __future__ import annotations

from dashboard.reports.parts import Cell, Pages, ReportSection, Table
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange
from lagloss_server.base import format as fmt
from lagloss_server.runs.dag_runs import JobStats, Repairs

_NOTE = (
    "Covers the runs due in the range. A result is on time if a run for its hour succeeded by the deadline. MTTR "
    "is the mean time from a failure to a success for the same hour; for tasks, within the same run."
)
_HEADS = ("Job or task", "Runs", "Succeeded", "On time", "Deadline", "Median", "MTTR", "Not repaired")


def jobs(pages: Pages) -> ReportSection | None:
    """Return the section; None of a pipeline without jobs."""
    rows = [row for job in pages.report.jobs for row in (_job(pages, job), *_tasks(job))]
    return ReportSection("Jobs", (_NOTE,), None, Table(_HEADS, rows)) if rows else None


def _job(pages: Pages, job: JobStats) -> list[Cell]:
    report = pages.report
    page = Address(links.runs(report.pipeline), {"zone": report.span.zone})
    href = page.over(ShownRange(report.span.from_s, report.span.to_s)).href
    in_time = None if job.in_time is None or not job.judged else job.in_time / job.judged
    in_time_text = "" if in_time is None else f" ({job.in_time} of {job.judged})"
    return [
        Cell(job.job.dag, pages.base_url.rstrip("/") + href),
        Cell(fmt.count(job.runs)),
        Cell(fmt.percent(job.success_rate)),
        Cell(f"{fmt.percent(in_time)}{in_time_text}"),
        Cell(fmt.duration(job.job.deadline)),
        Cell(fmt.duration_s(job.median_s)),
        *_repairs(job.repairs),
    ]


def _tasks(job: JobStats) -> list[list[Cell]]:
    return [
        [
            Cell(f"task {task.task}"),
            Cell(fmt.count(task.runs)),
            Cell(fmt.percent(task.success_rate)),
            Cell(fmt.NOTHING),
            Cell(fmt.NOTHING),
            Cell(fmt.duration_s(task.median_s)),
            *_repairs(task.repairs),
        ]
        for task in job.tasks
    ]


def _repairs(repairs: Repairs) -> tuple[Cell, Cell]:
    return Cell(fmt.duration_s(repairs.mttr_s)), Cell(fmt.count(repairs.open))
