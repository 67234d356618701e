"""Callbacks of pages: those that draw panels, show the address in controls, and lead to other addresses by them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from dashboard.pages import notices
from dashboard.pages.base import step
from dashboard.pages.notices import Failed
from dashboard.pages.page import LIGHT, Page, Panel, next_address
from dashboard.pages.shell import WHILE_BUSY, Shell
from dashboard.queries.services import Services
from dashboard.request.links import Address


def register(app: Dash, services: Services, pages: Sequence[Page[Any]]) -> None:
    """Add the callbacks of all pages."""
    for page in pages:
        _register(app, services, page)


def _register(app: Dash, services: Services, page: Page[Any]) -> None:
    for panel in page.panels:
        if panel.prop == LIGHT:
            app.clientside_callback(  # type: ignore[no-untyped-call]
                ClientsideFunction("light", "draw"), Input(panel.store, "data")
            )
    if page.read is not None:
        _register_drawing(app, services, page)
    if any(control.shows or control.choices for control in page.controls):
        _register_showing(app, services, page)
    if any(control.leads for control in page.controls):
        _register_leading(app, services, page)
    if page.more is not None:
        page.more(app, services)


def opened_or_not(page: Page[Any], services: Services, params: Mapping[str, str], address: Address) -> Address:
    """Return the address at which the page opens; as it is if PostgreSQL does not answer."""
    return notices.or_nothing(page.opened, services, params, address, time.time()) or address


def _register_drawing(app: Dash, services: Services, page: Page[Any]) -> None:
    panels = (page.notice_panel, *page.panels)
    busy = [Output(page.busy, "aria-busy")] if page.busy else []
    stores = list(dict.fromkeys(panel.once for panel in page.panels if panel.once))

    @app.callback(
        *(panel.output for panel in panels),
        *busy,
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        *([Input(Shell.SCHEME, "data")] if page.themed else []),
        *(trigger for trigger in page.also if isinstance(trigger, Input)),
        *(state for state in page.also if isinstance(state, State)),
        *(State(store, "data") for store in stores),
        running=WHILE_BUSY,
    )
    async def draw(pathname: str | None, search: str | None, _tick: int | None, *more: Any) -> list[Any]:
        address, params = page.locate(pathname, search)
        dark = page.themed and more[0] == "dark"
        given_values = more[int(page.themed) : len(more) - len(stores)]
        waiting = [store for store, data in zip(stores, more[len(more) - len(stores) :], strict=True) if not data]
        glance = None if page.glance is None else await services.threads.glance(page.glance, services)
        is_refresh = ctx.triggered_id == Shell.TICK
        now_s = time.time()

        def read() -> list[Any]:
            visit = page.visit(
                services,
                address,
                params,
                now_s,
                dark=dark,
                is_refresh=is_refresh,
                given=given_values,
                glance=glance,
            )
            return page.draw(visit, waiting)

        drawn = await services.threads.read(notices.attempt, read)
        if isinstance(drawn, Failed):
            failure = notices.query_failed(drawn, address.zone, now_s)
            drawn = [failure, *[no_update] * len(page.panels)]
        sent = [panel.sent(value) for panel, value in zip(panels, drawn, strict=True)]
        return [*sent, *("false" for _ in busy)]

    for panel in page.panels:
        if panel.once:
            _register_late(app, services, page, panel)


def _register_late(app: Dash, services: Services, page: Page[Any], panel: Panel[Any]) -> None:
    """Draw a panel when its store is filled; from then on, it is drawn with the others."""

    @app.callback(
        Output(panel.id, panel.prop, allow_duplicate=True),
        Input(panel.once, "data"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        State(Shell.SCHEME, "data"),
        prevent_initial_call=True,
    )
    async def draw_late(data: Any, pathname: str | None, search: str | None, scheme: str | None) -> Any:
        if not data:
            return no_update
        address, params = page.locate(pathname, search)
        dark = page.themed and scheme == "dark"

        def read() -> list[Any]:
            return page.drawn(page.visit(services, address, params, time.time(), dark=dark), [panel])

        drawn = await services.threads.read(notices.attempt, read)
        return no_update if isinstance(drawn, Failed) else drawn[0]  # the notice is that of `draw`


def _register_showing(app: Dash, services: Services, page: Page[Any]) -> None:
    outputs, has_choices = [], any(control.choices for control in page.controls)
    for control in page.controls:
        outputs += [Output(control.id, "data")] if control.choices else []
        outputs += [Output(control.id, control.prop)] if control.shows else []

    def shown(address: Address, params: Mapping[str, str]) -> list[Any]:
        address, values = opened_or_not(page, services, params, address), list[Any]()
        for control in page.controls:
            values += [control.choices(services, address)] if control.choices else []
            values += [control.shows(address)] if control.shows else []
        return values

    @app.callback(*outputs, Input(Shell.URL, "pathname"), Input(Shell.URL, "search"))
    async def show(pathname: str | None, search: str | None) -> Any:
        address, params = page.locate(pathname, search)
        reads = has_choices or page.opens is not None
        values = await services.threads.read(shown, address, params) if reads else shown(address, params)
        return values if len(outputs) > 1 else values[0]


def _register_leading(app: Dash, services: Services, page: Page[Any]) -> None:
    controls = [control for control in page.controls if control.leads]
    others = list(dict.fromkeys(id_ for control in controls for id_ in control.given))

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        *(Input(control.id, control.prop) for control in controls),
        *(State(id_, "value") for id_ in others),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    async def lead(*values: Any) -> str:
        *values_of_controls, pathname, search = values
        address, params = page.locate(pathname, search)
        if page.opens is not None:
            address = await services.threads.read(opened_or_not, page, services, params, address)
        given_values = dict(zip(others, values_of_controls[len(controls) :], strict=True))
        changed = {
            control: value
            for control, value in zip(controls, values_of_controls[: len(controls)], strict=True)
            if f"{control.id}.{control.prop}" in ctx.triggered_prop_ids
        }
        return step(address, next_address(address, changed, given_values))
