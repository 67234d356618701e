"""The SLA report of one pipeline over a week, a month, a quarter or any range."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, html, no_update

from dashboard.pages import notices, shell
from dashboard.pages.base import NAME, Page, Part, alert, aria, live, moment_picker, step
from dashboard.pages.report.parts import report_part
from dashboard.pages.shell import Shell
from dashboard.queries.services import Services
from dashboard.reports import Report, make_report
from dashboard.reports.ranges import DEFAULT, PRESETS, CalendarRange, choose, previous
from dashboard.request.links import Address
from dashboard.request.shown_range import RANGES_S, ShownRange
from lagloss.errors import UsageError
from lagloss_server.base.errors import UnknownPipeline

_LAST: Final = ("7d", "30d", "90d")
REFRESH_MS: Final = 60_000
"""A report is of whole minutes, and seldom of the newest ones."""


class ReportIds(StrEnum):
    RANGE = "report-range"
    EARLIER = "report-earlier"
    FROM = "report-from"
    TO = "report-to"
    APPLY = "report-apply"
    NAV = "report-nav"
    NOTICE = "report-notice"
    CONTENT = "report-content"


def layout(of: dict[str, str], here: Address) -> Part:
    name = of["pipeline"]
    controls = dmc.Group(
        [
            dmc.Select(id=ReportIds.RANGE, label="Range", data=[], allowDeselect=False, size="xs", w=170),
            dmc.Button("Earlier", id=ReportIds.EARLIER, size="xs", variant="default"),
            moment_picker(ReportIds.FROM, "From", 190),
            moment_picker(ReportIds.TO, "To", 190),
            dmc.Button("Show", id=ReportIds.APPLY, size="xs"),
        ],
        align="end",
        gap="xs",
        my="sm",
    )
    head = dmc.Group([_title(name), html.Div(id=ReportIds.NAV)])
    # not live: a refresh would have all of it read aloud
    return html.Div([head, controls, live(ReportIds.NOTICE), html.Div(id=ReportIds.CONTENT, **aria(busy="true"))])


def register(app: Dash, services: Services) -> None:
    _register_controls(app)

    @app.callback(
        Output(ReportIds.NOTICE, "children"),
        Output(ReportIds.CONTENT, "children"),
        Output(ReportIds.CONTENT, "aria-busy"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        Input(Shell.SCHEME, "data"),
        running=shell.WHILE_BUSY,
    )
    async def draw(pathname: str | None, search: str | None, _: int | None, scheme: str | None) -> tuple[Any, Any, str]:
        here, of = PAGE.asked(pathname, search)
        notice, drawn = await services.threads.read(content, services, of["pipeline"], here, scheme == "dark")
        kept = no_update if ctx.triggered_id == Shell.TICK else None
        return notice, kept if drawn is None else drawn, "false"


def content(services: Services, pipeline: str, here: Address, dark: bool) -> tuple[Part | None, Part | None]:
    """Return a notice, and the report that the address asks for; without it the notice says why there is none."""
    now_s = time.time()
    try:
        span = asked(here, now_s)
    except UsageError as error:
        return alert("No such range", str(error), "orange", "?"), None
    try:
        made = notices.attempt(make_report, services.store, pipeline, span, now_s, here.query.get("source"))
    except UnknownPipeline:
        names = notices.or_nothing(services.store.names) or []
        return notices.unknown_pipeline(pipeline, names, here), None
    except UsageError as error:
        return alert("No such source", str(error), "orange", "?"), None
    if isinstance(made, Report):
        return None, report_part(made, here, dark)
    return notices.query_failed(made, here.zone, now_s), None


def first(services: Services, of: dict[str, str], here: Address, _now_s: float) -> Part:
    pipeline = of["pipeline"]
    return [_title(pipeline), *content(services, pipeline, here, dark=False)]


def _title(pipeline: str) -> Part:
    return dmc.Title(f"SLA report: {pipeline}", order=1, fz="h2")


def asked(here: Address, now_s: float) -> CalendarRange:
    """Return the range that an address asks for, as the API reads it.

    Raises:
        BadTime, BadSpan: it makes no sense.
    """
    query = here.query
    range_ = None if "from" in query else query.get("range")
    return choose(range_, query.get("from"), query.get("to"), here.zone.name, now_s)


def elsewhere(here: Address) -> Address:
    """Return the same time, as pages that know no calendar are asked for it."""
    try:
        span = asked(here, time.time())
    except UsageError:
        return here.named(None)
    is_known = "from" not in here.query and here.query.get("range") in RANGES_S
    return here if is_known else here.over(ShownRange(span.from_s, span.to_s))


def ranges(here: Address) -> tuple[list[str], str]:
    """Return the names of ranges to choose from, and the one that the address has; empty where it has moments."""
    chosen = "" if "from" in here.query else here.query.get("range", DEFAULT)
    return list(dict.fromkeys([*PRESETS, *_LAST, *([chosen] if chosen else [])])), chosen


def chosen_range(here: Address, name: str | None) -> Address:
    """Return the same page over the range that was chosen; one that the address has already leads nowhere."""
    is_other = name and ("from" in here.query or name != here.query.get("range", DEFAULT))
    return here.named(name) if is_other else here


def earlier(here: Address) -> Address:
    """Return the same page over the range before."""
    try:
        before = previous(asked(here, time.time()))
    except UsageError:
        return here
    return here.named(before.name) if before.name else here.over(ShownRange(before.from_s, before.to_s))


def _register_controls(app: Dash) -> None:
    @app.callback(
        Output(ReportIds.NAV, "children"),
        Output(ReportIds.RANGE, "data"),
        Output(ReportIds.RANGE, "value"),
        Output(ReportIds.FROM, "value"),
        Output(ReportIds.TO, "value"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
    )
    def fill(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        here, of = PAGE.asked(pathname, search)
        nav = shell.pipeline_nav(elsewhere(here), of["pipeline"], "report")
        return nav, *ranges(here), *(_filled(here) or (None, None))

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(ReportIds.RANGE, "value"),
        Input(ReportIds.EARLIER, "n_clicks"),
        Input(ReportIds.APPLY, "n_clicks"),
        State(ReportIds.FROM, "value"),
        State(ReportIds.TO, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def navigate(
        range_: str | None,
        _earlier: int | None,
        _apply: int | None,
        from_: str | None,
        to: str | None,
        pathname: str | None,
        search: str | None,
    ) -> Any:
        here, _ = PAGE.asked(pathname, search)
        return step(here, _navigated(here, str(ctx.triggered_id), range_, from_, to))


def _navigated(here: Address, by: str, range_: str | None, from_: str | None, to: str | None) -> Address:
    """Return where a control leads. What only repeats the address leads nowhere."""
    match by:
        case ReportIds.RANGE:
            return chosen_range(here, range_)
        case ReportIds.EARLIER:
            return earlier(here)
        case ReportIds.APPLY if from_ and to and (from_, to) != _filled(here):
            return here.between(from_, to)
    return here


def _filled(here: Address) -> tuple[str, str] | None:
    """Return the initial values of the date pickers: an ambiguous time cannot be read back from them. None: the address
    names no range."""
    try:
        span = asked(here, time.time())
    except UsageError:
        return None
    return here.zone.typed(span.from_s), here.zone.typed(span.to_s)


PAGE: Final = Page(
    name="report",
    pattern=re.compile(rf"/pipelines/{NAME}/report"),
    title=lambda of: f"SLA report of {of['pipeline']}",
    layout=layout,
    register=register,
    refresh_ms=REFRESH_MS,
    elsewhere=elsewhere,
    first=first,
    filled=f"#{ReportIds.CONTENT} > *, #{ReportIds.NOTICE} > *",
)
