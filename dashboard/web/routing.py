"""The shell's callbacks: which page is mounted, and how the controls of the header and the URL follow each other."""

from __future__ import annotations

import time
from typing import Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html

from dashboard.login import SignedIn, account
from dashboard.login.kinds import LOGOUT_PATH
from dashboard.pages import directory, notices, shell
from dashboard.pages.base import Part, step
from dashboard.pages.registration import opened_or_not
from dashboard.pages.registration import register as register_pages
from dashboard.pages.shell import REFRESH_MS, Shell
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.current_user import LOCAL, asking
from dashboard.request.links import Address
from dashboard.request.shown_range import RANGES_S, ShownRange, shown_range

_SLOWER: Final = ((6 * 3_600, 1), (2 * 86_400, 3))
"""Up to so long a range is refreshed each so many times `REFRESH_MS`; longer ones each minute: a look costs more, and
shows little that is new."""


def register(app: Dash, services: Services) -> None:
    """Add the shell's own callbacks, then every page's."""
    _register_client(app)
    _register_mounting(app, services)
    _register_controls(app, services)
    register_pages(app, services, directory.PAGES)


def _register_client(app: Dash) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "chooseScheme"),
        Output(Shell.SCHEME, "data"),
        Output(Shell.PROVIDER, "forceColorScheme"),
        Input(Shell.SCHEME_TOGGLE, "n_clicks"),
        State(Shell.SCHEME, "data"),
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "arrive"),
        Output(Shell.PAGE, "tabIndex"),
        Input(Shell.TITLE, "data"),
        Input(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("watchdog", "expectEach"), Input(Shell.TICK, "interval")
    )


def _register_mounting(app: Dash, services: Services) -> None:
    @app.callback(
        Output(Shell.PAGE, "children"),
        Output(Shell.TITLE, "data"),
        Output(Shell.RANGE_BOX, "style"),
        Output(Shell.ACCOUNT, "children"),
        Input(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
    )
    def mount(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        address = Address.parse(pathname, search)
        who = None if asking() is LOCAL else _account(account(asking(), services.settings))
        match = directory.find(address.path)
        if match is None:
            return notices.no_such_page(address), "no such page", {"display": "none"}, who
        page, params = match
        shown = {} if page.ranged else {"display": "none"}
        return page.layout(params, address), page.title(params), shown, who

    @app.callback(
        Output(Shell.NAV, "children"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
    )
    def lead(pathname: str | None, search: str | None) -> Any:
        address = Address.parse(pathname, search)
        match = directory.find(address.path)
        if match is None:
            return shell.nav(address, "", asking())
        return shell.nav(match[0].elsewhere(address), match[0].name, asking())


def _account(signed_in: SignedIn) -> Part:
    """Draw the logged-in user, and the way out."""
    name = dmc.Text(f"{signed_in.name} ({signed_in.role})", size="sm")
    if not signed_in.can_log_out:
        return name
    out = html.Button("Log out", type="submit", className="log-out")
    return dmc.Group([name, html.Form(out, method="post", action=LOGOUT_PATH)], gap="xs")


def _register_controls(app: Dash, services: Services) -> None:
    @app.callback(
        Output(Shell.PIPELINE, "data"),
        Output(Shell.PIPELINE, "value"),
        Output(Shell.RANGE, "value"),
        Output(Shell.FROM, "value"),
        Output(Shell.TO, "value"),
        Output(Shell.ZONE, "value"),
        Output(Shell.TICK, "interval"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
    )
    async def fill(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        address = Address.parse(pathname, search)
        names = await services.threads.read(notices.or_nothing, services.store.names)
        match = directory.find(address.path)
        if match is not None:
            address = await services.threads.read(opened_or_not, match[0], services, match[1], address)
        span = shown_range(address.query, time.time())
        pipeline = match[1].get("pipeline") if match else None
        moments = (address.zone.typed(span.from_s), address.zone.typed(span.to_s))
        interval_ms = (match[0].refresh_ms if match else None) or _interval_ms(span)
        return names or [], pipeline, span.range or "", *moments, address.zone.name, interval_ms

    @app.callback(
        Output(Shell.URL, "href"),
        Input(Shell.PIPELINE, "value"),
        Input(Shell.RANGE, "value"),
        Input(Shell.ZONE, "value"),
        Input(Shell.APPLY, "n_clicks"),
        State(Shell.FROM, "value"),
        State(Shell.TO, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    async def navigate(
        pipeline: str | None,
        range_: str | None,
        zone: str | None,
        _apply: int | None,
        from_: str | None,
        to: str | None,
        pathname: str | None,
        search: str | None,
    ) -> Any:
        address, by = Address.parse(pathname, search), str(ctx.triggered_id)
        match = directory.find(address.path)
        if by == Shell.RANGE and match is not None:
            address = await services.threads.read(opened_or_not, match[0], services, match[1], address)
        return step(address, _navigated(address, by, pipeline, range_, zone, from_, to))


def _navigated(
    address: Address,
    by: str,
    pipeline: str | None,
    range_: str | None,
    zone: str | None,
    from_: str | None,
    to: str | None,
) -> Address:
    """Return where a control of the header leads. What only repeats the URL leads nowhere."""
    match by:
        case Shell.PIPELINE if pipeline:
            return _of_pipeline(address, pipeline)
        case Shell.RANGE if range_ in RANGES_S and range_ != shown_range(address.query, time.time()).range:
            return address.named(range_)
        case Shell.ZONE if zone and zone != address.zone.name:
            return address.asking(zone=zone)
        case Shell.APPLY if from_ and to:
            return address.between(from_, to)
    return address


def _of_pipeline(address: Address, pipeline: str) -> Address:
    """Return the same kind of page of another pipeline, where that makes sense; else the pipeline's own."""
    match = directory.find(address.path)
    page, params = match if match else (None, {})
    if params.get("pipeline") == pipeline:
        return address
    if page is not None and page.name == "report":
        return Address(links.report(pipeline), address.query)
    return address.to(
        links.message(pipeline)
        if page is not None and page.name in ("message", "messages")
        else links.pipeline(pipeline)
    )


def _interval_ms(span: ShownRange) -> int:
    times = next((times for up_to_s, times in _SLOWER if span.length_s <= up_to_s), 12)
    return REFRESH_MS * times
