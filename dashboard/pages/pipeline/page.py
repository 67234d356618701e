"""One pipeline over a range of time: linked panels, the share of each hop, its graph."""

from __future__ import annotations

import re
import time
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboard.figures import flow_graph, nodes
from dashboard.figures.frame import SLOWEST, FigureFrame
from dashboard.figures.panels import HEIGHT_PX, height_px, panels_figure
from dashboard.pages import notices
from dashboard.pages.base import NAME, Page, Part, aria, live, step
from dashboard.pages.incident import cards as band
from dashboard.pages.notices import Failed
from dashboard.pages.pipeline import parts as pipeline_parts
from dashboard.pages.pipeline import steps as pipeline_steps
from dashboard.pages.pipeline.groups import groups_panel
from dashboard.pages.pipeline.quality import quality_panel
from dashboard.pages.pipeline.shares import shares_box
from dashboard.pages.pipeline.taps import taps_panel
from dashboard.pages.shell import WHILE_BUSY, Shell, pipeline_nav
from dashboard.pages.sources import source_of
from dashboard.queries.alerts import read_open
from dashboard.queries.incident_filters import IncidentFilters
from dashboard.queries.panels import Panels, read_panels
from dashboard.queries.services import Services
from dashboard.request.current_user import asking, sight
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.rules import hops
from lagloss_server.store.store import Store

# a double click always asks for autorange; by default, it may ask for a range that plotly remembers
_CONFIG: Final[Any] = {"displayModeBar": False, "responsive": True, "showTips": False, "doubleClick": "autosize"}

_BLANK: Final[Any] = {
    "data": [],
    "layout": {
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    },
}
"""Chart before it is drawn; by default plotly draws axes, on white."""

_LIVE_S: Final = 2
"""Readers share a drawing for so long at most: of reports and open windows there is no notice."""


class PipelineId(StrEnum):
    NOTICE = "pipeline-notice"
    INCIDENTS = "pipeline-incidents"
    CONTENT = "pipeline-content"
    HEADLINE = "pipeline-headline"
    CAPTION = "pipeline-caption"
    PATH = "pipeline-path"
    PATH_BOX = "pipeline-path-box"
    PANELS = "pipeline-panels"
    CLICKED = "pipeline-clicked"
    OFFSET = "pipeline-offset"
    ZOOMED = "pipeline-zoomed"
    SHARES = "pipeline-shares"
    FLOW = "pipeline-flow"
    HOVERED = "pipeline-hovered"
    NODES = "pipeline-nodes"
    NODES_CAPTION = "pipeline-nodes-caption"
    NODES_SEEN = "pipeline-nodes-seen"
    WORST = "pipeline-worst"
    REASONS = "pipeline-reasons"
    QUALITY = "pipeline-quality"
    GROUPS = "pipeline-groups"
    TAPS = "pipeline-taps"


def layout(of: dict[str, str], here: Address) -> Part:
    name = of["pipeline"]
    return html.Div(
        [
            _title(name, here),
            live(PipelineId.NOTICE),
            live(PipelineId.INCIDENTS),
            dcc.Store(id=PipelineId.CLICKED),
            dcc.Store(id=PipelineId.HOVERED),
            dcc.Store(id=PipelineId.OFFSET),
            dcc.Store(id=PipelineId.ZOOMED, data=[]),
            dcc.Store(id=PipelineId.NODES_SEEN, data=False),
            # hidden with its size: what is drawn in it need not be drawn again when it is shown
            html.Div(_content(name), id=PipelineId.CONTENT, style={"visibility": "hidden"}),
        ]
    )


def _title(name: str, here: Address) -> Part:
    return dmc.Group([dmc.Title(name, order=1, fz=22), pipeline_nav(here, name, "pipeline")], mb="sm")


def _content(name: str) -> Part:
    panels = dmc.Paper(
        [_panels_head(), _figure(PipelineId.PANELS, PipelineId.CAPTION, HEIGHT_PX)], p="sm", withBorder=True
    )
    beside = dmc.Stack(
        [
            dmc.Paper(html.Div(id=PipelineId.SHARES), p="sm", withBorder=True),
            dmc.Paper(html.Div(id=PipelineId.WORST), p="sm", withBorder=True),
            html.Div(id=PipelineId.REASONS),
        ],
        gap="sm",
    )
    graph = html.Div(
        _figure(PipelineId.FLOW, f"{PipelineId.FLOW}-name", None),
        className="sideways",
        tabIndex=0,
        **aria(label=f"graph of {name}"),
    )
    flow = [dmc.Title("Lag and loss on its way", order=2, fz=16, id=f"{PipelineId.FLOW}-name"), graph]
    return dmc.Stack(
        [
            html.Div(id=PipelineId.HEADLINE),
            dmc.Paper(flow, p="sm", withBorder=True),
            dmc.Grid(
                [dmc.GridCol(panels, span={"base": 12, "md": 8}), dmc.GridCol(beside, span={"base": 12, "md": 4})],
                gutter="sm",
            ),
            html.Div(id=PipelineId.GROUPS),
            html.Div(id=PipelineId.QUALITY),
            html.Div(id=PipelineId.TAPS),
            _nodes(),
        ],
        gap="sm",
    )


def _nodes() -> Part:
    rows = html.Div(
        _figure(PipelineId.NODES, f"{PipelineId.NODES}-name", None),
        className="sideways",
        tabIndex=0,
        **aria(labelledby=f"{PipelineId.NODES}-name"),
    )
    head = dmc.Title("Each node over time", order=2, fz=16, id=f"{PipelineId.NODES}-name")
    caption = html.Div(id=PipelineId.NODES_CAPTION, className="caption")
    return dmc.Paper([head, caption, rows], p="sm", withBorder=True)


def _panels_head() -> Part:
    path = dmc.Group(
        [
            dmc.Text("path", size="sm", className="faint"),
            dmc.Select(
                id=PipelineId.PATH,
                data=[],
                allowDeselect=False,
                size="xs",
                w=210,
                **aria(label="path through the pipeline"),
            ),
        ],
        gap="xs",
    )
    about = "click: open it · drag: zoom · double click: back"
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Title("Messages, lag, loss", order=2, fz=16),
                    dmc.Text(about, size="sm", className="faint"),
                    html.Div(path, id=PipelineId.PATH_BOX, style={"marginLeft": "auto"}),
                ],
                gap="xs",
            ),
            html.Div(id=PipelineId.CAPTION, className="caption"),
        ]
    )


def _figure(id_: str, named_by: str, height: int | None) -> Part:
    """Return a figure that a screen reader takes for a picture with a name."""
    style = {} if height is None else {"height": height}
    graph = dcc.Graph(id=id_, figure=_BLANK, config=_CONFIG, style=style, clear_on_unhover=id_ == PipelineId.FLOW)
    return html.Div(graph, role="img", className=f"chart chart-{id_}", **aria(labelledby=named_by))


def _draw_shared(services: Services, name: str, here: Address, dark: bool, now_s: float, seen: bool) -> dict[str, Any]:
    """Return what `_draw` does, for readers of the same address once per change."""
    stamp = services.changes.stamp(name), now_s // _LIVE_S
    return services.drawn.read(  # type: ignore[no-any-return]
        (here.href, dark, seen, sight()), stamp, lambda: _draw(services.store, name, here, dark, now_s, seen)
    )


def _draw(store: Store, name: str, here: Address, dark: bool, now_s: float, seen: bool) -> dict[str, Any]:
    """Return every property of the page's parts that follows from stored data; the nodes' figure once it is `seen`."""
    try:
        panels = _read(store, name, here, now_s)
    except UnknownPipeline:
        notice = notices.unknown_pipeline(name, store.names(), here)
        return {"notice": notice, "incidents": None, "content": {"display": "none"}}
    definition = panels.stored.definition
    notice = notices.of_condition(panels.condition, panels.fresh, definition, here, now_s)
    open_ = band.band(read_open(store, IncidentFilters(pipeline=name)), here, asking(), now_s)
    is_empty = panels.newest is None and not panels.series.buckets
    drawn = {"notice": notice, "incidents": open_, "content": {"display": "none"} if is_empty else {}}
    return drawn | _drawn(panels, here, dark, now_s, seen)


def first(services: Services, of: dict[str, str], here: Address, now_s: float) -> Part:
    name = of["pipeline"]
    try:
        panels = _read(services.store, name, here, now_s)
    except UnknownPipeline:
        return notices.unknown_pipeline(name, services.store.names(), here)
    return [
        _title(name, here),
        notices.of_condition(panels.condition, panels.fresh, panels.stored.definition, here, now_s),
        band.band(read_open(services.store, IncidentFilters(pipeline=name)), here, asking(), now_s),
        pipeline_parts.headline(panels, here, now_s),
        shares_box(panels, here),
        pipeline_parts.worst_table(panels, here),
        groups_panel(panels.groups, here, now_s),
        quality_panel(panels.series.quality, name, here),
        taps_panel(panels.taps, here, now_s),
    ]


def _draw_nodes(store: Store, name: str, here: Address, dark: bool, now_s: float) -> Any:
    """Return the figure of all nodes. It is the tallest, and below all others: drawn only when a reader comes near."""
    try:
        panels = _read(store, name, here, now_s)
    except UnknownPipeline:
        return no_update
    return nodes.nodes_figure(_frame(panels, here, dark, now_s))


def _read(store: Store, name: str, here: Address, now_s: float) -> Panels:
    """Read what the page shows, of the messages of the source that the address names.

    Raises:
        UnknownPipeline: there is none of this name.
    """
    panels = read_panels(store, name, shown_range(here.query, now_s), now_s)
    source = source_of(here, panels.stored.definition.graph.sources)
    return panels if source is None else panels.from_source(source)


def _frame(panels: Panels, here: Address, dark: bool, now_s: float) -> FigureFrame:
    definition = panels.stored.definition
    return FigureFrame(
        definition,
        panels.series,
        panels.sla_periods,
        panels.happenings,
        here.zone,
        now_s,
        pipeline_steps.path_of(here, definition.graph),
        dark,
        consumer_lag=panels.consumer_lag.series,
    )


def _drawn(panels: Panels, here: Address, dark: bool, now_s: float, seen: bool) -> dict[str, Any]:
    series, graph = panels.series, panels.stored.definition.graph
    ends = hops.deliveries(graph)
    frame = _frame(panels, here, dark, now_s)
    choices = [{"value": SLOWEST, "label": "the slowest"}, *({"value": end, "label": f"to {end}"} for end in ends)]
    return {
        "headline": pipeline_parts.headline(panels, here, now_s),
        "caption": pipeline_parts.caption(panels, here),
        "paths": choices,
        "path": frame.path,
        "path_box": {"marginLeft": "auto", "display": "block" if len(ends) > 1 else "none"},
        "panels": panels_figure(frame),
        "panels_style": {"height": height_px(frame)},
        "offset": frame.axis.offset_s,
        "shares": shares_box(panels, here),
        "flow": flow_graph.flow_figure(graph, series.total, dark),
        "flow_style": {"height": flow_graph.height_px(graph), "minWidth": flow_graph.width_px(graph)},
        "nodes": nodes.nodes_figure(frame) if seen else no_update,
        "nodes_caption": nodes.caption(frame),
        "nodes_style": {"height": nodes.height_px(graph), "minWidth": nodes.WIDTH_PX},
        "worst": pipeline_parts.worst_table(panels, here),
        "reasons": pipeline_parts.reasons_box(series.total),
        "groups": groups_panel(panels.groups, here, now_s),
        "quality": quality_panel(series.quality, panels.stored.name, here),
        "taps": taps_panel(panels.taps, here, now_s),
    }


_OUTPUTS: Final = {
    "notice": Output(PipelineId.NOTICE, "children"),
    "incidents": Output(PipelineId.INCIDENTS, "children"),
    "content": Output(PipelineId.CONTENT, "style"),
    "headline": Output(PipelineId.HEADLINE, "children"),
    "caption": Output(PipelineId.CAPTION, "children"),
    "paths": Output(PipelineId.PATH, "data"),
    "path": Output(PipelineId.PATH, "value"),
    "path_box": Output(PipelineId.PATH_BOX, "style"),
    "panels": Output(PipelineId.PANELS, "figure"),
    "panels_style": Output(PipelineId.PANELS, "style"),
    "offset": Output(PipelineId.OFFSET, "data"),
    "shares": Output(PipelineId.SHARES, "children"),
    "flow": Output(PipelineId.FLOW, "figure"),
    "flow_style": Output(PipelineId.FLOW, "style"),
    "nodes": Output(PipelineId.NODES, "figure"),
    "nodes_caption": Output(PipelineId.NODES_CAPTION, "children"),
    "nodes_style": Output(PipelineId.NODES, "style"),
    "worst": Output(PipelineId.WORST, "children"),
    "reasons": Output(PipelineId.REASONS, "children"),
    "groups": Output(PipelineId.GROUPS, "children"),
    "quality": Output(PipelineId.QUALITY, "children"),
    "taps": Output(PipelineId.TAPS, "children"),
}


def register(app: Dash, services: Services) -> None:
    _register_drawing(app, services)
    _register_steps(app)


def _register_drawing(app: Dash, services: Services) -> None:
    @app.callback(
        output=_OUTPUTS,
        inputs=[
            Input(Shell.URL, "pathname"),
            Input(Shell.URL, "search"),
            Input(Shell.TICK, "n_intervals"),
            Input(Shell.SCHEME, "data"),
            State(PipelineId.NODES_SEEN, "data"),
        ],
        running=WHILE_BUSY,
    )
    async def draw(
        pathname: str | None, search: str | None, _: int | None, scheme: str | None, seen: bool | None
    ) -> dict[str, Any]:
        here, of = PAGE.asked(pathname, search)
        now_s, dark, name = time.time(), scheme == "dark", of["pipeline"]
        # a refresh leaves the choice alone: what a reader chose just now is not in the address yet
        kept = {"path": no_update} if ctx.triggered_id == Shell.TICK else {}
        found = await services.threads.read(
            notices.attempt, _draw_shared, services, name, here, dark, now_s, bool(seen)
        )
        nothing = dict.fromkeys(_OUTPUTS, no_update)
        if isinstance(found, Failed):
            return nothing | {"notice": notices.query_failed(found, here.zone, now_s)}
        return nothing | found | kept

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "awaitSight"),
        Output(PipelineId.NODES_SEEN, "data"),
        Input(PipelineId.NODES, "style"),  # has its height
        State(PipelineId.NODES, "id"),
        State(PipelineId.NODES_SEEN, "id"),
        State(PipelineId.NODES_SEEN, "data"),
    )

    @app.callback(
        Output(PipelineId.NODES, "figure", allow_duplicate=True),
        Input(PipelineId.NODES_SEEN, "data"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        State(Shell.SCHEME, "data"),
        prevent_initial_call=True,
    )
    async def draw_nodes(seen: bool | None, pathname: str | None, search: str | None, scheme: str | None) -> Any:
        """Draw the figure when it is first seen; from then on `draw` does."""
        if not seen:
            return no_update
        here, of = PAGE.asked(pathname, search)
        found = await services.threads.read(
            notices.attempt, _draw_nodes, services.store, of["pipeline"], here, scheme == "dark", time.time()
        )
        return no_update if isinstance(found, Failed) else found  # the notice is that of `draw`


def _register_steps(app: Dash) -> None:
    where = [State(Shell.URL, "pathname"), State(Shell.URL, "search")]
    to = Output(Shell.URL, "href", allow_duplicate=True)

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "singleClick"),
        Output(PipelineId.CLICKED, "data"),
        Input(PipelineId.PANELS, "clickData"),
        prevent_initial_call=True,
    )

    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "showHop"),
        Output(PipelineId.HOVERED, "data"),
        Input(PipelineId.FLOW, "hoverData"),
        State(PipelineId.PANELS, "id"),
        prevent_initial_call=True,
    )

    @app.callback(to, Input(PipelineId.CLICKED, "data"), *where, prevent_initial_call=True)
    def click(clicked: Any, pathname: str | None, search: str | None) -> str:
        here, of = PAGE.asked(pathname, search)
        return step(here, pipeline_steps.of_click(here, of["pipeline"], clicked))

    @app.callback(to, Input(PipelineId.PATH, "value"), *where, prevent_initial_call=True)
    def choose(path: str | None, pathname: str | None, search: str | None) -> str:
        here, _ = PAGE.asked(pathname, search)
        return step(here, pipeline_steps.of_path(here, path))

    @app.callback(
        to,
        Output(PipelineId.ZOOMED, "data"),
        Output(PipelineId.PANELS, "relayoutData"),  # else a second double click would be no change
        Input(PipelineId.PANELS, "relayoutData"),
        State(PipelineId.OFFSET, "data"),
        State(PipelineId.ZOOMED, "data"),
        *where,
        prevent_initial_call=True,
    )
    def zoom(
        zoomed: Any, offset_s: int | None, before: list[str] | None, pathname: str | None, search: str | None
    ) -> tuple[str, list[str], None]:
        here, _ = PAGE.asked(pathname, search)
        if pipeline_steps.is_double_click(zoomed):
            wanted, left = pipeline_steps.back(here, before or [], time.time())
        else:
            wanted, left = pipeline_steps.of_zoom(here, zoomed, offset_s or 0), [*(before or []), here.search]
        return step(here, wanted), left, None


PAGE: Final = Page(
    name="pipeline",
    pattern=re.compile(rf"/pipelines/{NAME}"),
    title=lambda of: of["pipeline"],
    layout=layout,
    register=register,
    ranged=True,
    first=first,
    filled=f"#{PipelineId.HEADLINE} > *, #{PipelineId.NOTICE} > *",
)
