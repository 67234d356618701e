"""How all pipelines, or those of some labels, kept what they promised over a range, worst first."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, html, no_update

from dashboard.pages import notices, shell
from dashboard.pages.base import Page, Part, alert, aria, live, step
from dashboard.pages.notices import Failed
from dashboard.pages.report.page import REFRESH_MS, asked, chosen_range, earlier, elsewhere, ranges
from dashboard.pages.report.parts import downloads, section_part, status_badge
from dashboard.pages.shell import Shell
from dashboard.queries.services import Services
from dashboard.reports import make_portfolio
from dashboard.reports.portfolio_sections import sections
from dashboard.request import links
from dashboard.request.current_user import asking
from dashboard.request.links import API, Address
from lagloss.errors import UsageError
from lagloss_server.model.matchers import parse_matchers


class PortfolioIds(StrEnum):
    MATCH = "portfolio-match"
    RANGE = "portfolio-range"
    EARLIER = "portfolio-earlier"
    NOTICE = "portfolio-notice"
    CONTENT = "portfolio-content"


def layout(_of: dict[str, str], here: Address) -> Part:
    controls = dmc.Group(
        [
            dmc.TextInput(
                id=PortfolioIds.MATCH,
                label="Pipelines whose labels match",
                placeholder="team=web tier!=test",
                value=here.query.get("match", ""),
                debounce=True,
                size="xs",
                w={"base": "100%", "sm": 280},
            ),
            dmc.Select(id=PortfolioIds.RANGE, label="Range", data=[], allowDeselect=False, size="xs", w=170),
            dmc.Button("Earlier", id=PortfolioIds.EARLIER, size="xs", variant="default"),
        ],
        align="end",
        gap="xs",
        my="sm",
    )
    # not live: a refresh would have all of it read aloud
    content = html.Div(id=PortfolioIds.CONTENT, **aria(busy="true"))
    return html.Div([html.H1("Portfolio", className="page-title"), controls, live(PortfolioIds.NOTICE), content])


def draw(services: Services, here: Address) -> tuple[Part | None, Part | None]:
    """Return a notice, and the portfolio that the address asks for; without it the notice says why there is none."""
    now_s = time.time()
    try:
        span, matchers = asked(here, now_s), parse_matchers([here.query.get("match", "")])
    except UsageError as error:
        return alert("No such portfolio", str(error), "orange", "?"), None
    made = notices.attempt(make_portfolio, services.store, matchers, span, now_s)
    if isinstance(made, Failed):
        return notices.query_failed(made, here.zone, now_s), None
    if not made.lines and not matchers:
        return notices.no_pipeline(asking()), None
    head = dmc.Group([status_badge(made.status), downloads(f"{API}/portfolio", here, "match")], justify="space-between")
    return None, html.Div([head, *map(section_part, sections(made))])


def first(services: Services, _of: dict[str, str], here: Address, _now_s: float) -> Part:
    return [html.H1("Portfolio"), *draw(services, here)]


def register(app: Dash, services: Services) -> None:
    @app.callback(
        Output(PortfolioIds.NOTICE, "children"),
        Output(PortfolioIds.CONTENT, "children"),
        Output(PortfolioIds.CONTENT, "aria-busy"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        running=shell.WHILE_BUSY,
    )
    async def show(pathname: str | None, search: str | None, _tick: int | None) -> tuple[Any, Any, str]:
        here, _ = PAGE.asked(pathname, search)
        notice, drawn = await services.threads.read(draw, services, here)
        kept = no_update if ctx.triggered_id == Shell.TICK else None
        return notice, kept if drawn is None else drawn, "false"

    @app.callback(
        Output(PortfolioIds.MATCH, "value"),
        Output(PortfolioIds.RANGE, "data"),
        Output(PortfolioIds.RANGE, "value"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
    )
    def fill(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        here, _ = PAGE.asked(pathname, search)
        return here.query.get("match", ""), *ranges(here)

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(PortfolioIds.MATCH, "value"),
        Input(PortfolioIds.RANGE, "value"),
        Input(PortfolioIds.EARLIER, "n_clicks"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def navigate(
        match: str | None, range_: str | None, _earlier: int | None, pathname: str | None, search: str | None
    ) -> Any:
        here, _ = PAGE.asked(pathname, search)
        return step(here, _navigated(here, str(ctx.triggered_id), match, range_))


def _navigated(here: Address, by: str, match: str | None, range_: str | None) -> Address:
    """Return where a control leads. What only repeats the address leads nowhere."""
    match by:
        case PortfolioIds.MATCH:
            return here.asking(match=(match or "").strip() or None)
        case PortfolioIds.RANGE:
            return chosen_range(here, range_)
        case PortfolioIds.EARLIER:
            return earlier(here)
    return here


PAGE: Final = Page(
    name="portfolio",
    pattern=re.compile(re.escape(links.PORTFOLIO)),
    title=lambda _of: "Portfolio",
    layout=layout,
    register=register,
    refresh_ms=REFRESH_MS,
    elsewhere=elsewhere,
    first=first,
    filled=f"#{PortfolioIds.CONTENT} > *, #{PortfolioIds.NOTICE} > *",
)
