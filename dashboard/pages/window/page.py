"""One minute of a pipeline: its matrix, its verdict with reasons, and set differences."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, Final

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from dashboard.pages import notices
from dashboard.pages.base import NAME, Page, Part, step
from dashboard.pages.notices import Failed
from dashboard.pages.shell import WHILE_BUSY, Shell
from dashboard.pages.window.difference import draw_difference
from dashboard.pages.window.layout import EVERYTHING, WindowId, head, layout, start_of
from dashboard.pages.window.matrix import draw_matrix
from dashboard.pages.window.table import reasons_part, talks_table
from dashboard.pages.window.verdict import revisions_part, state_notice, verdict_part
from dashboard.queries.services import Services
from dashboard.queries.window import WindowRead, read_window_page
from dashboard.request.links import Address
from dashboard.request.zones import Zone
from lagloss_server.base.errors import UnknownPipeline


def register(app: Dash, services: Services) -> None:
    _register_drawing(app, services)
    _register_log(app, services)
    _register_controls(app)


def _register_drawing(app: Dash, services: Services) -> None:
    @app.callback(
        Output(WindowId.NOTICE, "children"),
        Output(WindowId.VERDICT, "children"),
        Output(WindowId.TABLE, "children"),
        Output(WindowId.REASONS, "children"),
        Output(WindowId.REVISIONS, "children"),
        Output(WindowId.WHERE, "data"),
        Output(WindowId.A, "data"),
        Output(WindowId.B, "data"),
        Output(WindowId.STAMP, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        State(WindowId.STAMP, "data"),
        running=WHILE_BUSY,
    )
    async def draw(pathname: str | None, search: str | None, _tick: int | None, stamp: list[Any] | None) -> Any:
        here, pipeline, start_s = _asked(pathname, search)
        now_s = time.time()
        found = await services.threads.read(notices.attempt, _read, services, pipeline, start_s, now_s)
        if isinstance(found, Failed):
            return notices.query_failed(found, here.zone, now_s), *[no_update] * 8
        if isinstance(found, list):
            return notices.unknown_pipeline(pipeline, found, here), *[None] * 4, [], [], [], no_update
        by_clock = ctx.triggered_id == Shell.TICK
        new_stamp = _stamp(found)
        if by_clock and stamp == new_stamp and new_stamp[-1] not in ("open", None):
            return state_notice(found, here.zone, now_s), *[no_update] * 8
        return *_drawn(found, here.zone, now_s), no_update if stamp == new_stamp else new_stamp


def _read(services: Services, pipeline: str, start_s: int, now_s: float) -> WindowRead | list[str]:
    """Return the window, or the names of the pipelines there are."""
    try:
        return read_window_page(services.store, pipeline, start_s, now_s)
    except UnknownPipeline:
        return services.store.names()


def first(services: Services, of: dict[str, str], here: Address, now_s: float) -> Part:
    pipeline, start_s = of["pipeline"], start_of(of)
    if start_s is None:
        return None
    found = _read(services, pipeline, start_s, now_s)
    if isinstance(found, list):
        return notices.unknown_pipeline(pipeline, found, here)
    notice, verdict, talk, reasons, revisions, *_ = _drawn(found, here.zone, now_s)
    tables = {"Per-Node Loss": talk, "Why messages were filtered or dead": reasons, "Revisions": revisions}
    boxes = [[html.H2(title), table] for title, table in tables.items() if table is not None]
    return [head(pipeline, start_s, here), notice, verdict, *boxes]


def _stamp(found: WindowRead) -> list[Any]:
    """Return what makes the matrix be read anew. Live numbers move by themselves; beacons are read on request."""
    window = found.window
    return [found.pipeline, found.start_s, window and window.revision, window and window.state]


def _drawn(found: WindowRead, zone: Zone, now_s: float) -> tuple[Any, ...]:
    points = list(found.graph.checkpoints)
    places = list(dict.fromkeys(place.label for place in found.graph.places))
    return (
        state_notice(found, zone, now_s),
        verdict_part(found, zone),
        talks_table(found.window, found.graph) if found.window is not None else None,
        reasons_part(found.window) if found.window is not None else None,
        revisions_part(found.revisions, zone),
        places,
        points,
        points,
    )


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
        here, pipeline, start_s = _asked(pathname, search)
        if stamp is None or stamp[:2] != [pipeline, start_s]:
            raise PreventUpdate  # nothing is drawn of this window yet
        wanted = [stamp, here.asking(a=None, b=None).search]
        if wanted == shown and ctx.triggered_id != WindowId.AGAIN:
            raise PreventUpdate  # it would lose its scroll for two points to compare
        now_s = time.time()
        found = await _unless_unknown(services, draw_matrix, pipeline, start_s, here, now_s)
        if isinstance(found, Failed):
            return notices.query_failed(found, here.zone, now_s), None
        return found, wanted

    @app.callback(
        Output(WindowId.DIFFERENCE, "children"),
        Input(WindowId.STAMP, "data"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    async def difference(stamp: list[Any] | None, search: str | None, pathname: str | None) -> Any:
        here, pipeline, start_s = _asked(pathname, search)
        if stamp is None or stamp[:2] != [pipeline, start_s]:
            raise PreventUpdate  # nothing is drawn of this window yet
        found = await _unless_unknown(services, draw_difference, pipeline, start_s, here)
        return notices.query_failed(found, here.zone, time.time()) if isinstance(found, Failed) else found


async def _unless_unknown(services: Services, drawn: Callable[..., Part], *of: Any) -> Part | Failed:
    """Read the log, and draw what it holds; nothing of a pipeline that is not there, which the notice says already."""
    try:
        return await services.threads.read_log(notices.attempt, drawn, services, *of)
    except UnknownPipeline:
        raise PreventUpdate from None


def _register_controls(app: Dash) -> None:
    @app.callback(
        Output(WindowId.ONLY, "value"),
        Output(WindowId.WHERE, "value"),
        Output(WindowId.TEXT, "value"),
        Output(WindowId.A, "value"),
        Output(WindowId.B, "value"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    def fill(search: str | None, pathname: str | None) -> tuple[Any, ...]:
        here, _, _ = _asked(pathname, search)
        asked = here.query.get
        return asked("only", EVERYTHING), asked("where"), asked("text", ""), asked("a"), asked("b")

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(WindowId.ONLY, "value"),
        Input(WindowId.WHERE, "value"),
        Input(WindowId.TEXT, "value"),
        Input(WindowId.A, "value"),
        Input(WindowId.B, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def choose(
        only: str | None,
        where: str | None,
        text: str | None,
        a: str | None,
        b: str | None,
        pathname: str | None,
        search: str | None,
    ) -> Any:
        here, _, _ = _asked(pathname, search)
        chosen = {"only": None if only == EVERYTHING else only, "where": where, "text": text, "a": a, "b": b}
        wanted = here.asking(**{name: value or None for name, value in chosen.items()})
        return step(here, wanted)


def _asked(pathname: str | None, search: str | None) -> tuple[Address, str, int]:
    """Return where the reader is, if that is here."""
    here, of = PAGE.asked(pathname, search)
    start_s = start_of(of)
    if start_s is None:
        raise PreventUpdate
    return here, of["pipeline"], start_s


PAGE: Final = Page(
    name="window",
    pattern=re.compile(rf"/pipelines/{NAME}/windows/(?P<start>[0-9T:.Z+-]+)"),
    title=lambda of: f"{of['pipeline']} {of['start']}",
    layout=layout,
    register=register,
    first=first,
    filled=f"#{WindowId.VERDICT} > *, #{WindowId.NOTICE} > *",
)
