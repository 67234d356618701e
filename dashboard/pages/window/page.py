"""One minute of a pipeline: its matrix, its verdict with reasons, and set differences."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import notices
from dashboard.pages.base import NAME, Part
from dashboard.pages.notices import Failed
from dashboard.pages.page import Control, Instead, Page, Panel, Visit
from dashboard.pages.shell import Shell
from dashboard.pages.window.difference import draw_difference
from dashboard.pages.window.layout import EVERYTHING, WindowId, frame, start_of
from dashboard.pages.window.matrix import draw_matrix
from dashboard.pages.window.table import reasons_part, talks_table
from dashboard.pages.window.verdict import revisions_part, state_notice, verdict_part
from dashboard.queries.services import Services
from dashboard.queries.window import WindowRead, read_window_page
from dashboard.request.links import Address
from lagloss_server.base.errors import UnknownPipeline

_SELECTS: Final = {WindowId.WHERE: "where", WindowId.A: "a", WindowId.B: "b"}
"""Parameters of the address that selects show."""


def read(visit: Visit) -> WindowRead:
    """Read the window in the path.

    Raises:
        Instead: there is no pipeline of this name.
        PreventUpdate: the path holds no time.
    """
    start_s = start_of(visit.params)
    if start_s is None:
        raise PreventUpdate
    try:
        return read_window_page(visit.store, visit.pipeline, start_s, visit.now_s)
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(visit.pipeline, visit.store.names(), visit.address)) from None


def _stamp(result: WindowRead) -> list[Any]:
    """Return what makes the matrix be read anew. Live numbers move by themselves; beacons are read on request."""
    window = result.window
    return [result.pipeline, result.start_s, window and window.revision, window and window.state]


def _is_drawn(result: WindowRead, visit: Visit) -> bool:
    """Return whether the page shows this result already. An open window's numbers move by themselves."""
    stamp = _stamp(result)
    return visit.is_refresh and list(visit.given) == [stamp] and stamp[-1] not in ("open", None)


def _panel(id_: WindowId, draw: Callable[[WindowRead, Visit], Any], prop: str = "children") -> Panel[WindowRead]:
    """Return a panel that is drawn anew when the window has changed."""

    def draw_changed(result: WindowRead, visit: Visit) -> Any:
        return no_update if _is_drawn(result, visit) else draw(result, visit)

    return Panel(id_, draw_changed, prop, blank=None if prop == "children" else [])


def _checkpoints(result: WindowRead, _visit: Visit) -> list[str]:
    return list(result.graph.checkpoints)


def _new_stamp(result: WindowRead, visit: Visit) -> Any:
    stamp = _stamp(result)
    return no_update if list(visit.given) == [stamp] else stamp


def _register_log(app: Dash, services: Services) -> None:
    """Register the parts read from the log: after the rest, and only when the window or the question changes."""

    @app.callback(
        Output(WindowId.MATRIX, "children"),
        Output(WindowId.SHOWN, "data"),
        Input(WindowId.STAMP, "data"),
        Input(Shell.URL, "search"),
        Input(WindowId.AGAIN, "n_clicks"),
        State(Shell.URL, "pathname"),
        State(WindowId.SHOWN, "data"),
        running=[(Output(WindowId.BUSY, "children"), "Reading the log …", "")],
    )
    async def matrix(
        stamp: list[Any] | None, search: str | None, _again: int | None, pathname: str | None, shown: list[Any] | None
    ) -> Any:
        address, pipeline, start_s = _asked(pathname, search)
        if stamp is None or stamp[:2] != [pipeline, start_s]:
            raise PreventUpdate  # nothing is drawn of this window yet
        current = [stamp, address.asking(a=None, b=None).search]
        if current == shown and ctx.triggered_id != WindowId.AGAIN:
            raise PreventUpdate  # it would lose its scroll for two points to compare
        now_s = time.time()
        result = await _unless_unknown(services, draw_matrix, pipeline, start_s, address, now_s)
        if isinstance(result, Failed):
            return notices.query_failed(result, address.zone, now_s), None
        return result, current

    @app.callback(
        Output(WindowId.DIFFERENCE, "children"),
        Input(WindowId.STAMP, "data"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    async def difference(stamp: list[Any] | None, search: str | None, pathname: str | None) -> Any:
        address, pipeline, start_s = _asked(pathname, search)
        if stamp is None or stamp[:2] != [pipeline, start_s]:
            raise PreventUpdate  # nothing is drawn of this window yet
        result = await _unless_unknown(services, draw_difference, pipeline, start_s, address)
        return notices.query_failed(result, address.zone, time.time()) if isinstance(result, Failed) else result


async def _unless_unknown(services: Services, drawn: Callable[..., Part], *value: Any) -> Part | Failed:
    """Read the log, and draw what it holds; nothing of a pipeline that is not there, which the notice says already."""
    try:
        return await services.threads.read_log(notices.attempt, drawn, services, *value)
    except UnknownPipeline:
        raise PreventUpdate from None


def _asking(id_: WindowId, key: str, empty: str | None = None) -> Control:
    """Return a control that shows and sets a parameter of the address."""
    return Control(
        id_,
        lambda address: address.query.get(key, empty),
        lambda address, value: address.asking(**{key: value or None}),
    )


def _asked(pathname: str | None, search: str | None) -> tuple[Address, str, int]:
    """Return where the reader is, if that is here."""
    address, params = PAGE.locate(pathname, search)
    start_s = start_of(params)
    if start_s is None:
        raise PreventUpdate
    return address, params["pipeline"], start_s


PAGE: Final = Page(
    name="window",
    pattern=re.compile(rf"/pipelines/{NAME}/windows/(?P<start>[0-9T:.Z+-]+)"),
    title=lambda params: f"{params['pipeline']} {params['start']}",
    frame=frame,
    notice=Panel(WindowId.NOTICE, lambda result, visit: state_notice(result, visit.address.zone, visit.now_s)),
    read=read,
    panels=(
        _panel(WindowId.VERDICT, lambda result, visit: verdict_part(result, visit.address.zone)),
        _panel(WindowId.TABLE, lambda result, _visit: result.window and talks_table(result.window, result.graph)),
        _panel(WindowId.REASONS, lambda result, _visit: result.window and reasons_part(result.window)),
        _panel(WindowId.REVISIONS, lambda result, visit: revisions_part(result.revisions, visit.address.zone)),
        _panel(
            WindowId.WHERE,
            lambda result, _visit: list(dict.fromkeys(place.label for place in result.graph.places)),
            "data",
        ),
        _panel(WindowId.A, _checkpoints, "data"),
        _panel(WindowId.B, _checkpoints, "data"),
        Panel(WindowId.STAMP, _new_stamp, "data", blank=no_update),
    ),
    also=(State(WindowId.STAMP, "data"),),
    controls=(
        Control(
            WindowId.ONLY,
            lambda address: address.query.get("only", EVERYTHING),
            lambda address, only: address.asking(only=None if only == EVERYTHING else only or None),
        ),
        *(_asking(id_, key) for id_, key in _SELECTS.items()),
        _asking(WindowId.TEXT, "text", ""),
    ),
    more=_register_log,
)
