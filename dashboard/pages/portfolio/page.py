"""How all pipelines, or those of some labels, kept what they promised over a range, worst first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, alert, aria, live
from dashboard.pages.first_run import first_run
from dashboard.pages.opening import at_month
from dashboard.pages.page import Control, Instead, Page, Panel, Visit
from dashboard.pages.report.page import REFRESH_MS, earlier_control, elsewhere, range_control, requested_range
from dashboard.pages.report.parts import downloads, section_part, status_badge
from dashboard.reports import Portfolio, make_portfolio
from dashboard.reports.portfolio_sections import sections
from dashboard.reports.wording import range_sentence
from dashboard.request import links
from dashboard.request.links import API, Address
from lagloss.errors import UsageError
from lagloss_server.model.matchers import parse_matchers


class PortfolioIds(StrEnum):
    MATCH = "portfolio-match"
    RANGE = "portfolio-range"
    EARLIER = "portfolio-earlier"
    NOTICE = "portfolio-notice"
    CONTENT = "portfolio-content"


def frame(_params: Mapping[str, str], address: Address) -> Part:
    controls = dmc.Group(
        [
            dmc.TextInput(
                id=PortfolioIds.MATCH,
                label="Pipelines whose labels match",
                placeholder="team=web tier!=test",
                value=address.query.get("match", ""),
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


def read(visit: Visit) -> Portfolio:
    """Make the portfolio that the address asks for.

    Raises:
        Instead: the address cannot be read, or there is no pipeline at all.
    """
    address, now_s = visit.address, visit.now_s
    try:
        span, matchers = requested_range(address, now_s), parse_matchers([address.query.get("match", "")])
    except UsageError as error:
        raise Instead(alert("No such portfolio", str(error), "orange", "?")) from None
    portfolio = make_portfolio(visit.store, matchers, span, now_s)
    if not portfolio.lines and not matchers:
        raise Instead(first_run(visit))
    return portfolio


def _content(portfolio: Portfolio, visit: Visit) -> Part:
    files = downloads(f"{API}/portfolio", visit.address, "match")
    before = min((line.whole.known.before for line in portfolio.lines if line.whole.known.closed), default=0)
    about = dmc.Text(range_sentence(portfolio.span, before, portfolio.made_at_s), size="sm")
    head = dmc.Group([status_badge(portfolio.status), about, files], gap="sm")
    return html.Div([head, *map(section_part, sections(portfolio))])


PAGE: Final = Page(
    name="portfolio",
    pattern=re.compile(re.escape(links.PORTFOLIO)),
    title=lambda _params: "Portfolio",
    frame=frame,
    notice=PortfolioIds.NOTICE,
    read=read,
    panels=(Panel(PortfolioIds.CONTENT, _content),),
    controls=(
        Control(
            PortfolioIds.MATCH,
            lambda address: address.query.get("match", ""),
            lambda address, match: address.asking(match=(match or "").strip() or None),
        ),
        range_control(PortfolioIds.RANGE),
        earlier_control(PortfolioIds.EARLIER),
    ),
    busy=PortfolioIds.CONTENT,
    refresh_ms=REFRESH_MS,
    elsewhere=elsewhere,
    opens=at_month,
)
