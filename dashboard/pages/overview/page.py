"""Every pipeline, worst first."""

from __future__ import annotations

import re
import time
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, dcc, html, no_update
from dash import State as Given

from dashboard.pages import fast_html as light
from dashboard.pages import notices, shell
from dashboard.pages.base import Page, Part, live, step
from dashboard.pages.notices import Failed
from dashboard.pages.overview import parts as overview_parts
from dashboard.pages.shell import Shell
from dashboard.queries.overview import Overview, detailed
from dashboard.queries.pipeline_status import Order, State
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.current_user import asking, sight
from dashboard.request.links import Address
from lagloss_server.store.store import Store

_TITLE: Final = "overview-title"
_NOTICE: Final = "overview-notice"
_FIND: Final = "overview-find"
_STATES: Final = "overview-states"
_ROWS: Final = "overview-rows"
_PAGER: Final = "overview-pager"
_DRAWN: Final = "overview-drawn"
_MAX_DIGITS: Final = 8


def layout(of: dict[str, str], here: Address) -> Part:
    find = dmc.TextInput(
        id=_FIND,
        label="Find a pipeline by name or description",
        placeholder="Enter shows what matches",
        value=here.query.get("q", ""),
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
            dcc.Store(id=_DRAWN),
        ]
    )


def draw(services: Services, here: Address, now_s: float) -> tuple[Part, ...]:
    """Totals, notice, filters, rows and the way to the other ones, as the address asks for them. Readers of the same
    rows share them."""
    found = services.overview()
    if not found.standings:
        notice = notices.set_aside(found.unreadable, here) or notices.no_pipeline(asking())
        return "", notice, None, {"into": _ROWS, "tree": None}, None
    return services.drawn.read(  # type: ignore[no-any-return]
        (here.href, sight()), found.now_s, lambda: _drawn(services.store, found, here, now_s)
    )


def _drawn(store: Store, found: Overview, here: Address, now_s: float) -> tuple[Part, ...]:
    text, state = here.query.get("q", ""), chosen_state(here)
    chosen = found.chosen(text, state, chosen_order(here))
    unmatched = None if chosen else overview_parts.nothing_matches(here, text, state)
    notice = [notices.set_aside(found.unreadable, here), unmatched]
    page = overview_parts.PageOf(chosen_page(here), len(chosen))
    shown = detailed(store, page.rows(chosen), now_s)
    rows = overview_parts.table(shown, here, now_s, chosen_order(here)) if chosen else None
    filters = [overview_parts.state_filter(found, here, state), overview_parts.pager(page, here, "top")]
    tree = {"into": _ROWS, "tree": rows}
    return overview_parts.totals(found), notice, filters, tree, overview_parts.pager(page, here, "foot")


def first(services: Services, _of: dict[str, str], here: Address, now_s: float) -> Part:
    totals, notice, filters, rows, pager = draw(services, here, now_s)
    return [html.H1("Pipelines"), html.P(totals), notice, filters, rows["tree"], pager]


def chosen_state(here: Address) -> State | None:
    """Return the state that the address asks for; one that is none is passed over."""
    asked = here.query.get("state", "")
    return State(asked) if asked in set(State) else None


def chosen_order(here: Address) -> Order:
    """Return the order that the address asks for; the worst first where it is none."""
    asked = here.query.get("sort", "")
    return Order(asked) if asked in set(Order) else Order.WORST


def chosen_page(here: Address) -> int:
    """Return the page that the address asks for, counted from 1."""
    asked = here.query.get("page", "")
    return int(asked) if asked.isdecimal() and len(asked) < _MAX_DIGITS else 1


def looked_for(here: Address, text: str | None) -> Address:
    """Return where a text to find leads: to the first page of what matches it. One that the address has leads nowhere:
    it came from there."""
    wanted = (text or "").strip()
    return here if wanted == here.query.get("q", "") else here.asking(q=wanted or None, page=None)


def register(app: Dash, services: Services) -> None:
    light.register(app, _DRAWN)

    @app.callback(
        Output(_TITLE, "children"),
        Output(_NOTICE, "children"),
        Output(_STATES, "children"),
        Output(_DRAWN, "data"),
        Output(_PAGER, "children"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        running=shell.WHILE_BUSY,
    )
    async def show(pathname: str | None, search: str | None, _tick: int | None) -> tuple[Any, ...]:
        here, _ = PAGE.asked(pathname, search)
        now_s = time.time()
        drawn = await services.threads.read(notices.attempt, draw, services, here, now_s)
        if isinstance(drawn, Failed):
            return no_update, notices.query_failed(drawn, here.zone, now_s), no_update, no_update, no_update
        return drawn

    @app.callback(Output(_FIND, "value"), Input(Shell.URL, "search"), Given(Shell.URL, "pathname"))
    def fill(search: str | None, pathname: str | None) -> str:
        here, _ = PAGE.asked(pathname, search)
        return here.query.get("q", "")

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(_FIND, "value"),
        Given(Shell.URL, "pathname"),
        Given(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def find(text: str | None, pathname: str | None, search: str | None) -> Any:
        here, _ = PAGE.asked(pathname, search)
        return step(here, looked_for(here, text))


PAGE: Final = Page(
    name="overview",
    pattern=re.compile(re.escape(links.OVERVIEW)),
    title=lambda _of: "Overview",
    layout=layout,
    register=register,
    first=first,
    filled=f"#{_ROWS} tr, #{_NOTICE} > *",
)
