"""Every pipeline, worst first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import Part, live
from dashboard.pages.first_run import first_run
from dashboard.pages.overview import parts as overview_parts
from dashboard.pages.page import LIGHT, Control, Instead, Page, Panel, Visit
from dashboard.pages.paging import PageOf, chosen_page, pager
from dashboard.queries.overview import Overview, detailed
from dashboard.queries.pipeline_status import Order, PipelineStatus, State
from dashboard.request import links
from dashboard.request.links import Address

_TITLE: Final = "overview-title"
_NOTICE: Final = "overview-notice"
_FIND: Final = "overview-find"
_STATES: Final = "overview-states"
_ROWS: Final = "overview-rows"
_PAGER: Final = "overview-pager"


def frame(_params: Mapping[str, str], address: Address) -> Part:
    find = dmc.TextInput(
        id=_FIND,
        label="Find a pipeline by name or description",
        placeholder="press Enter to filter",
        value=address.query.get("q", ""),
        debounce=True,
        size="xs",
        w={"base": "100%", "sm": 280},
    )
    return html.Div(
        [
            html.H1("Pipelines", className="page-title"),
            live(_TITLE, className="totals"),
            live(_NOTICE),
            dmc.Group([find, html.Div(id=_STATES)], align="end", gap="md", my="sm"),
            html.Div(id=_ROWS),
            html.Div(id=_PAGER),
        ]
    )


@dataclass(frozen=True, slots=True)
class OverviewRead:
    """The pipelines that the address asks for, and those of its page with all that their rows show."""

    overview: Overview
    page: PageOf
    rows: Sequence[PipelineStatus]


def read(visit: Visit) -> OverviewRead:
    """Read the overview and the details of the rows that are shown.

    Raises:
        Instead: there is no pipeline.
    """
    overview, address = visit.services.overview(), visit.address
    if not overview.standings:
        raise Instead(notices.set_aside(overview.unreadable, address) or first_run(visit))
    chosen = overview.chosen(address.query.get("q", ""), chosen_state(address), chosen_order(address))
    page = PageOf(chosen_page(address), len(chosen))
    return OverviewRead(overview, page, detailed(visit.store, page.rows(chosen), visit.now_s))


def _notice(listed: OverviewRead, visit: Visit) -> Part:
    address = visit.address
    unmatched = None
    if not listed.page.matching:
        unmatched = overview_parts.nothing_matches(address, address.query.get("q", ""), chosen_state(address))
    return [notices.set_aside(listed.overview.unreadable, address), unmatched]


def _filters(listed: OverviewRead, visit: Visit) -> Part:
    address = visit.address
    states = overview_parts.state_filter(listed.overview, address, chosen_state(address))
    return [states, pager(listed.page, "pipeline", address, "top")]


def _rows(listed: OverviewRead, visit: Visit) -> Part | None:
    address = visit.address
    if not listed.page.matching:
        return None
    table = overview_parts.table(listed.rows, address, visit.now_s, chosen_order(address))
    canary = listed.overview.canary
    return table if canary is None else [table, html.P(canary.text, className="totals")]


def chosen_state(address: Address) -> State | None:
    """Return the state that the address asks for; one that is none is passed over."""
    state = address.query.get("state", "")
    return State(state) if state in set(State) else None


def chosen_order(address: Address) -> Order:
    """Return the order that the address asks for; the worst first where it is none."""
    order = address.query.get("sort", "")
    return Order(order) if order in set(Order) else Order.WORST


def looked_for(address: Address, text: str | None) -> Address:
    """Return where a text to find leads: to the first page of what matches it. One that the address has leads nowhere:
    it came from there."""
    text_ = (text or "").strip()
    return address if text_ == address.query.get("q", "") else address.asking(q=text_ or None, page=None)


PAGE: Final = Page(
    name="overview",
    pattern=re.compile(re.escape(links.OVERVIEW)),
    title=lambda _params: "Overview",
    frame=frame,
    notice=Panel(_NOTICE, _notice),
    read=read,
    panels=(
        Panel(_ROWS, _rows, LIGHT),
        Panel(_TITLE, lambda listed, _visit: overview_parts.totals(listed.overview), blank=""),
        Panel(_STATES, _filters),
        Panel(_PAGER, lambda listed, visit: pager(listed.page, "pipeline", visit.address, "foot")),
    ),
    controls=(Control(_FIND, lambda address: address.query.get("q", ""), looked_for),),
    stamp=lambda visit: visit.services.overview().now_s,
)
