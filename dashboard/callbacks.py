"""The page's callbacks. They translate between components, the URL and readings; the thinking is elsewhere."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, no_update

from dashboard import incident_band, page
from dashboard.figures import Frame, lag_figure, loss_figure
from dashboard.flow import deliveries
from dashboard.ids import Id
from dashboard.reading import Empty, Reading, read
from dashboard.view import SLOWEST, View, clicked_window_s, parse_search
from dashboard.window_table import missing_row
from dashboard.words import start_s
from lagloss.graph import Graph
from lagloss.store import Store


def register(app: Dash, store: Store) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "chooseScheme"),
        Output(Id.SCHEME, "data"),
        Output(Id.PROVIDER, "forceColorScheme"),
        Input(Id.SCHEME_TOGGLE, "n_clicks"),
        State(Id.SCHEME, "data"),
    )
    for drawn_figure, graph in ((Id.LAG_DRAWN, Id.LAG), (Id.LOSS_DRAWN, Id.LOSS)):
        app.clientside_callback(  # type: ignore[no-untyped-call]
            ClientsideFunction("lagloss", "keepZoom"),
            Output(graph, "figure"),
            Input(drawn_figure, "data"),
            State(graph, "figure"),
            prevent_initial_call=True,
        )

    @app.callback(
        Output(Id.URL, "search"),
        Output(Id.VIEW, "data"),
        Output(Id.PIPELINE, "value"),
        Output(Id.RANGE, "value"),
        Output(Id.PATH, "value"),
        Input(Id.URL, "search"),
        Input(Id.PIPELINE, "value"),
        Input(Id.RANGE, "value"),
        Input(Id.PATH, "value"),
        Input(Id.LAG, "clickData"),
        Input(Id.LOSS, "clickData"),
        Input(Id.FOLLOW, "n_clicks"),
    )
    async def navigate(
        search: str | None,
        pipeline: str | None,
        range_: str | None,
        path: str | None,
        lag_click: dict[str, Any] | None,
        loss_click: dict[str, Any] | None,
        _follow: int | None,
    ) -> tuple[Any, ...]:
        view = parse_search(search)
        match ctx.triggered_id:
            case Id.PIPELINE if pipeline:
                view = view.with_pipeline(pipeline)
            case Id.RANGE:
                view = view.with_range(range_)
            case Id.PATH if path:
                view = view.with_path(path)
            case Id.LAG | Id.LOSS as chart:
                clicked = clicked_window_s(lag_click if chart == Id.LAG else loss_click)
                view = view if clicked is None else view.with_window(clicked)
            case Id.FOLLOW:
                view = view.with_window(None)
        if view.pipeline is None:
            view = View((await asyncio.to_thread(_first_pipeline, store)), view.range, view.window_s, view.path)
        wanted = view.search()
        same = parse_search(search) == view
        return no_update if same else wanted, wanted, view.pipeline, view.range, view.path

    @app.callback(
        Output(Id.NOTICE, "children"),
        Output(Id.FAILURES, "children"),
        Output(Id.INCIDENTS, "children"),
        Output(Id.CONTENT, "style"),
        Output(Id.HEADLINE, "children"),
        Output(Id.PIPELINE, "data"),
        Output(Id.PIPELINE, "placeholder"),
        Output(Id.PATH, "data"),
        Output(Id.PATH_BOX, "style"),
        Output(Id.LAG_DRAWN, "data"),
        Output(Id.LOSS_DRAWN, "data"),
        Output(Id.WINDOW_TITLE, "children"),
        Output(Id.FOLLOW, "display"),
        Output(Id.WINDOW, "children"),
        Output(Id.MISSING_TITLE, "children"),
        Output(Id.MISSING, "rowData"),
        Output(Id.MISSING_BOX, "style"),
        Input(Id.VIEW, "data"),
        Input(Id.TICK, "n_intervals"),
        Input(Id.SCHEME, "data"),
    )
    async def refresh(search: str | None, _ticks: int | None, scheme: str | None) -> tuple[Any, ...]:
        return await asyncio.to_thread(_drawn, store, parse_search(search), scheme == "dark")


def _first_pipeline(store: Store) -> str | None:
    names = read(store, View(), time.time()).names
    return names[0] if names else None


def _drawn(store: Store, view: View, dark: bool) -> tuple[Any, ...]:
    return drawn(read(store, view, time.time()), dark)


def drawn(reading: Reading, dark: bool) -> tuple[Any, ...]:
    """The outputs of `refresh` for a reading, in their order. A failed query leaves what was drawn before."""
    note = page.notice(reading)
    if reading.empty is Empty.QUERY_FAILED:
        return (note, *[no_update] * 16)
    told = (
        note,
        incident_band.failures(reading.failed, reading.now_s),
        incident_band.band(reading.incidents, reading.now_s),
    )
    if reading.pipeline is None or reading.empty is Empty.NO_WINDOW:
        first = reading.names[0] if reading.names else "no pipeline yet"
        return (*told, {"display": "none"}, None, reading.names, first, *[no_update] * 10)
    graph = Graph(reading.pipeline.definition)
    ends = deliveries(graph)
    paths = [{"label": "slowest of each minute", "value": SLOWEST}]
    paths += [{"label": f"to {node}", "value": node} for node in ends]
    chosen_s = start_s(reading.chosen) if reading.chosen else reading.view.window_s
    frame = Frame(
        definition=reading.pipeline.definition,
        windows=reading.windows,
        view=reading.view.with_pipeline(reading.pipeline.name),
        from_s=reading.from_s,
        to_s=reading.to_s,
        chosen_s=chosen_s,
        dark=dark,
    )
    rows = [
        missing_row(lost.id_hash, lost.message_id, lost.kind, lost.places, lost.last_checkpoint, lost.last_seen_ms)
        for lost in reading.missing
    ]
    return (
        *told,
        {},
        page.headline(reading),
        reading.names,
        reading.pipeline.name,
        paths,
        {} if len(ends) > 1 else {"display": "none"},
        lag_figure(frame),
        loss_figure(frame),
        page.window_title(reading),
        "none" if reading.view.window_s is None else "inline-block",
        page.window_detail(reading),
        page.missing_title(reading),
        rows,
        {} if rows else {"display": "none"},
    )
