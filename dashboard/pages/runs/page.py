"""The runs of a pipeline's jobs: how long they took, what failed, and the records of the hours that they processed."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, html, no_update

from dashboard.pages import notices, shell
from dashboard.pages.base import NAME, Page, Part, alert, aria, live, step
from dashboard.pages.notices import Failed
from dashboard.pages.runs.parts import job_part, run_part
from dashboard.pages.shell import Shell
from dashboard.queries.services import Services
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base.errors import UnknownPipeline, UnknownRun
from lagloss_server.queries.job_runs import HourRun, JobRuns, read_job_runs, read_run

_RANGES: Final = ("6h", "24h", "7d", "30d", "90d")
DEFAULT_RANGE: Final = "24h"
_JOBS: Final = """\
spec:
  jobs:
    - {dag: scores_hourly, deadline: 20m, node: aggregate, task: spark}"""


class RunsId(StrEnum):
    RANGE = "runs-range"
    NOTICE = "runs-notice"
    CONTENT = "runs-content"


def layout(of: dict[str, str], here: Address) -> Part:
    range_ = dmc.Select(
        id=RunsId.RANGE,
        label="Range",
        data=list(_RANGES),
        value=_shown(here),
        allowDeselect=False,
        size="xs",
        w=120,
        my="sm",
    )
    # not live: a refresh would have all of it read aloud
    content = html.Div(id=RunsId.CONTENT, **aria(busy="true"))
    return html.Div([_title(of["pipeline"], here), range_, live(RunsId.NOTICE), content])


def _title(name: str, here: Address) -> Part:
    head = dmc.Title(f"Runs of {name}", order=1, fz=22)
    return dmc.Group([head, shell.pipeline_nav(here, name, "runs")], mb="xs")


def _shown(here: Address) -> str | None:
    return None if "from" in here.query else here.query.get("range", DEFAULT_RANGE)


def draw(services: Services, pipeline: str, here: Address, dark: bool) -> tuple[Part | None, Part | None]:
    """Return a notice, and the jobs; the one run that the address names stands before them."""
    now_s = time.time()
    span = shown_range(here.query, now_s, DEFAULT_RANGE)
    try:
        found = notices.attempt(read_job_runs, services.store, pipeline, span.from_s, span.to_s, now_s)
        chosen = notices.attempt(_chosen, services, pipeline, here)
    except UnknownPipeline:
        return notices.unknown_pipeline(pipeline, notices.or_nothing(services.store.names) or [], here), None
    except UnknownRun as error:
        return alert("No such run", str(error), "orange", "?"), None
    for each in (found, chosen):
        if isinstance(each, Failed):
            return notices.query_failed(each, here.zone, now_s), None
    assert not isinstance(found, Failed)
    assert not isinstance(chosen, Failed)
    if not found:
        summary = [
            f"{pipeline} declares no jobs. Name the DAGs whose runs process its data in its definition:",
            dmc.Code(_JOBS, block=True, mt="xs"),
        ]
        return alert("No jobs", summary, "blue", "∅"), None
    return None, _parts(found, chosen, here, now_s, dark)


def _chosen(services: Services, pipeline: str, here: Address) -> HourRun | None:
    """Return the run in the address; None where it names none."""
    run_id = here.query.get("run")
    return read_run(services.store, pipeline, run_id, here.query.get("dag")) if run_id else None


def _parts(found: list[JobRuns], chosen: HourRun | None, here: Address, now_s: float, dark: bool) -> Part:
    """Draw the chosen run, or else the newest one, and all jobs."""
    newest = max((each for job in found for each in job.runs), key=lambda each: each.run.due_ms, default=None)
    one = chosen or newest
    shown = [] if one is None else [run_part(one, here, now_s, dark)]
    return dmc.Stack([*shown, *(job_part(job, here, dark) for job in found)], gap="sm")


def first(services: Services, of: dict[str, str], here: Address, _now_s: float) -> Part:
    return [_title(of["pipeline"], here), *draw(services, of["pipeline"], here, dark=False)]


def register(app: Dash, services: Services) -> None:
    @app.callback(
        Output(RunsId.NOTICE, "children"),
        Output(RunsId.CONTENT, "children"),
        Output(RunsId.CONTENT, "aria-busy"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        Input(Shell.SCHEME, "data"),
        running=shell.WHILE_BUSY,
    )
    async def show(pathname: str | None, search: str | None, _: int | None, scheme: str | None) -> tuple[Any, Any, str]:
        here, of = PAGE.asked(pathname, search)
        notice, drawn = await services.threads.read(draw, services, of["pipeline"], here, scheme == "dark")
        kept = no_update if ctx.triggered_id == Shell.TICK else None
        return notice, kept if drawn is None else drawn, "false"

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(RunsId.RANGE, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def choose(range_: str | None, pathname: str | None, search: str | None) -> Any:
        here, _ = PAGE.asked(pathname, search)
        return step(here, here if range_ in (None, _shown(here)) else here.named(range_))


PAGE: Final = Page(
    name="runs",
    pattern=re.compile(rf"/pipelines/{NAME}/runs"),
    title=lambda of: f"Runs of {of['pipeline']}",
    layout=layout,
    register=register,
    refresh_ms=30_000,
    first=first,
    filled=f"#{RunsId.CONTENT} > *, #{RunsId.NOTICE} > *",
)
