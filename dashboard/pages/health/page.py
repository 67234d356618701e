"""Whether lagloss itself can be trusted now: reports, windows due, emitters, clocks, sizes."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboard.pages import fast_html as light
from dashboard.pages import notices, shell
from dashboard.pages.base import Page, Part, live, step
from dashboard.pages.health import parts as health_parts
from dashboard.pages.notices import Failed
from dashboard.pages.shell import Shell
from dashboard.queries.health import read_health
from dashboard.queries.reports_topic import Ends, ReportsTopic
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.store.store import Store

_NOTICE: Final = "health-notice"
_ONLY: Final = "health-only"
_SECTIONS: Final = "health-sections"
_DRAWN: Final = "health-drawn"


def layout(of: dict[str, str], here: Address) -> Part:
    only = dmc.Select(
        id=_ONLY,
        label="Only what is of this pipeline",
        placeholder="all pipelines",
        value=here.query.get("pipeline"),
        data=[here.query["pipeline"]] if "pipeline" in here.query else [],
        clearable=True,
        searchable=True,
        size="xs",
        w={"base": "100%", "sm": 280},
        mb="sm",
    )
    return html.Div(
        [
            _title(),
            live(_NOTICE),
            only,
            html.Div(id=_SECTIONS),
            dcc.Store(id=_DRAWN),
        ]
    )


def draw(store: Store, ends: Ends, here: Address, now_s: float) -> tuple[Part, Any]:
    """Draw the problems and the tables."""
    only = here.query.get("pipeline")
    try:
        found = read_health(store, ends, now_s, only)
    except UnknownPipeline:
        return notices.unknown_pipeline(only or "", store.names(), here), {"into": _SECTIONS, "tree": None}
    return health_parts.verdict(found), {"into": _SECTIONS, "tree": health_parts.sections(found, here)}


def first(services: Services, _of: dict[str, str], here: Address, now_s: float) -> Part:
    ends = Ends(None, "Kafka is asked later")
    notice, sections = draw(services.store, ends, here, now_s)
    return [_title(), notice, sections["tree"]]


def _title() -> Part:
    return html.H1("Health of lagloss", className="page-title")


def register(app: Dash, services: Services) -> None:
    light.register(app, _DRAWN)
    topic = ReportsTopic(services.settings.kafka_bootstrap)

    @app.callback(
        Output(_NOTICE, "children"),
        Output(_DRAWN, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        running=shell.WHILE_BUSY,
    )
    async def show(pathname: str | None, search: str | None, _tick: int | None) -> tuple[Any, Any]:
        here, _ = PAGE.asked(pathname, search)
        ends = await services.threads.glance(topic.ends)
        now_s = time.time()
        drawn = await services.threads.read(notices.attempt, draw, services.store, ends, here, now_s)
        if isinstance(drawn, Failed):
            return notices.query_failed(drawn, here.zone, now_s), no_update
        return drawn

    @app.callback(
        Output(_ONLY, "data"),
        Output(_ONLY, "value"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    async def fill(search: str | None, pathname: str | None) -> tuple[list[str], str | None]:
        here, _ = PAGE.asked(pathname, search)
        names = await services.threads.read(notices.or_nothing, services.store.names) or []
        asked = here.query.get("pipeline")
        return sorted({*names, asked} if asked else names), asked  # a field that has no such choice would empty itself

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(_ONLY, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def choose(pipeline: str | None, pathname: str | None, search: str | None) -> Any:
        here, _ = PAGE.asked(pathname, search)
        return step(here, here.asking(pipeline=pipeline or None))


PAGE: Final = Page(
    name="health",
    pattern=re.compile(re.escape(links.HEALTH)),
    title=lambda _of: "Health",
    layout=layout,
    register=register,
    first=first,
    filled=f"#{_SECTIONS} > *, #{_NOTICE} > *",
)
