"""The runs of a pipeline's jobs: how long they took, what failed, and the records of the hours that they processed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import NAME, Part, alert, aria, live
from dashboard.pages.opening import RUNS_RANGE, at_runs
from dashboard.pages.page import Control, Instead, Page, Panel, Visit
from dashboard.pages.runs.parts import job_part, run_part
from dashboard.pages.shell import pipeline_nav
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base.errors import UnknownPipeline, UnknownRun
from lagloss_server.runs.job_runs import HourRun, JobRuns, read_job_runs, read_run

_RANGES: Final = ("6h", "24h", "7d", "30d", "90d")
_JOBS: Final = """\
spec:
  jobs:
    - {dag: scores_hourly, deadline: 20m, node: aggregate, task: spark}"""


class RunsId(StrEnum):
    RANGE = "runs-range"
    NOTICE = "runs-notice"
    CONTENT = "runs-content"


def frame(params: Mapping[str, str], address: Address) -> Part:
    name = params["pipeline"]
    title = dmc.Group([dmc.Title(f"Runs of {name}", order=1, fz=22), pipeline_nav(address, name, "runs")], mb="xs")
    range_ = dmc.Select(
        id=RunsId.RANGE,
        label="Range",
        data=list(_RANGES),
        value=_shown(address),
        allowDeselect=False,
        size="xs",
        w=120,
        my="sm",
    )
    # not live: a refresh would have all of it read aloud
    return html.Div([title, range_, live(RunsId.NOTICE), html.Div(id=RunsId.CONTENT, **aria(busy="true"))])


def _shown(address: Address) -> str | None:
    return None if "from" in address.query else address.query.get("range", RUNS_RANGE)


@dataclass(frozen=True, slots=True)
class RunsRead:
    """The jobs of a pipeline, and the run that the address names; None: it names none."""

    jobs: list[JobRuns]
    named: HourRun | None

    @property
    def shown(self) -> HourRun | None:
        """The named run, or else the newest one."""
        runs = [run for job in self.jobs for run in job.runs]
        return self.named or max(runs, key=lambda hour: hour.run.due_ms, default=None)


def read(visit: Visit) -> RunsRead:
    """Read the runs of the range in the address.

    Raises:
        Instead: there is no pipeline or run of this name, or the pipeline has no jobs.
    """
    address, pipeline = visit.address, visit.pipeline
    span, run_id = shown_range(address.query, visit.now_s, RUNS_RANGE), address.query.get("run")
    try:
        jobs = read_job_runs(visit.store, pipeline, span.from_s, span.to_s, visit.now_s)
        named = read_run(visit.store, pipeline, run_id, address.query.get("dag")) if run_id else None
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(pipeline, visit.store.names(), address)) from None
    except UnknownRun as error:
        raise Instead(alert("No such run", str(error), "orange", "?")) from None
    if not jobs:
        summary = [
            f"{pipeline} declares no jobs. List the DAGs that process its data in its definition:",
            dmc.Code(_JOBS, block=True, mt="xs"),
        ]
        raise Instead(alert("No jobs", summary, "blue", "∅"))
    return RunsRead(jobs, named)


def _content(runs: RunsRead, visit: Visit) -> Part:
    address, dark = visit.address, visit.dark
    shown = [] if runs.shown is None else [run_part(runs.shown, address, visit.now_s, dark)]
    return dmc.Stack([*shown, *(job_part(job, address, dark) for job in runs.jobs)], gap="sm")


PAGE: Final = Page(
    name="runs",
    pattern=re.compile(rf"/pipelines/{NAME}/runs"),
    title=lambda params: f"Runs of {params['pipeline']}",
    frame=frame,
    notice=RunsId.NOTICE,
    read=read,
    panels=(Panel(RunsId.CONTENT, _content),),
    controls=(Control(RunsId.RANGE, _shown, lambda address, name: address.named(name) if name else address),),
    busy=RunsId.CONTENT,
    opens=at_runs,
    themed=True,
    refresh_ms=30_000,
)
