"""One pipeline over a range of time: linked panels, the share of each hop, its graph."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update

from dashboard.figures import flow_graph, nodes
from dashboard.figures.frame import SLOWEST, FigureFrame
from dashboard.figures.panels import HEIGHT_PX, height_px, panels_figure
from dashboard.pages import notices
from dashboard.pages.base import NAME, SCRIPTED, Part, aria, fold, live, step
from dashboard.pages.breakdown import source_of
from dashboard.pages.incident import cards as band
from dashboard.pages.opening import at_minutes
from dashboard.pages.page import Control, Instead, Page, Panel, Visit
from dashboard.pages.pipeline import parts as pipeline_parts
from dashboard.pages.pipeline import steps as pipeline_steps
from dashboard.pages.pipeline.groups import groups_panel
from dashboard.pages.pipeline.lost_afterwards import lost_afterwards_panel
from dashboard.pages.pipeline.tables import quality_panel, reasons_box, shares_box, worst_table
from dashboard.pages.pipeline.taps import taps_panel
from dashboard.pages.shell import Shell, pipeline_nav
from dashboard.queries.alerts import OpenIncident, read_open
from dashboard.queries.buckets import Bucket
from dashboard.queries.incident_filters import IncidentFilters
from dashboard.queries.panels import Panels, read_panels
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.model import hops
from lagloss_server.model.graph import Graph

# a double click always asks for autorange; by default, it may ask for a range that plotly remembers
_CONFIG: Final[Any] = {"displayModeBar": False, "responsive": True, "showTips": False, "doubleClick": "autosize"}

_HIDDEN: Final = {"display": "none"}
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
    FLOW_LIST = "pipeline-flow-list"
    HOVERED = "pipeline-hovered"
    NODES = "pipeline-nodes"
    NODES_CAPTION = "pipeline-nodes-caption"
    NODES_SEEN = "pipeline-nodes-seen"
    WORST = "pipeline-worst"
    REASONS = "pipeline-reasons"
    QUALITY = "pipeline-quality"
    GROUPS = "pipeline-groups"
    TAPS = "pipeline-taps"
    LOST_AFTERWARDS = "pipeline-lost-afterwards"


def frame(params: Mapping[str, str], address: Address) -> Part:
    name = params["pipeline"]
    return html.Div(
        [
            dmc.Group([dmc.Title(name, order=1, fz=22), pipeline_nav(address, name, "pipeline")], mb="sm"),
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


def _content(name: str) -> Part:
    panels = _scripted([_panels_head(), _figure(PipelineId.PANELS, PipelineId.CAPTION, HEIGHT_PX)])
    graph = html.Div(
        _figure(PipelineId.FLOW, f"{PipelineId.FLOW}-name", None),
        className="sideways",
        tabIndex=0,
        **aria(label=f"graph of {name}"),
    )
    flow = dmc.Paper(
        [
            dmc.Title("Lag and loss along the pipeline", order=2, fz=16, id=f"{PipelineId.FLOW}-name"),
            html.Div(graph, className=f"{SCRIPTED} wide-only"),
            html.Div(id=PipelineId.FLOW_LIST, className="narrow-only"),
        ],
        p="sm",
        withBorder=True,
    )
    more = (
        PipelineId.WORST,
        PipelineId.SHARES,
        PipelineId.GROUPS,
        PipelineId.LOST_AFTERWARDS,
        PipelineId.QUALITY,
        PipelineId.REASONS,
        PipelineId.TAPS,
    )
    folds = html.Div([*(html.Div(id=id_) for id_ in more), _nodes()], className="folds")
    return dmc.Stack([html.Div(id=PipelineId.HEADLINE), flow, panels, folds], gap="sm")


def _nodes() -> Part:
    rows = html.Div(
        _figure(PipelineId.NODES, f"{PipelineId.NODES}-name", None),
        className="sideways",
        tabIndex=0,
        **aria(labelledby=f"{PipelineId.NODES}-name"),
    )
    caption = html.Div(id=PipelineId.NODES_CAPTION, className="caption")
    note = html.Span("lag, process duration and queue time of each", id=f"{PipelineId.NODES}-name")
    return html.Div(fold("nodes", "Nodes over time", note, [caption, rows]), className=SCRIPTED)


def _scripted(children: list[Part]) -> Part:
    """Return a box around a figure, which is nothing without a script."""
    return dmc.Paper(children, p="sm", withBorder=True, className=SCRIPTED)


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
    about = "click: open · drag: zoom · double-click: reset"
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


@dataclass(frozen=True, slots=True)
class PipelineRead:
    """What the page shows: the panels' numbers, the open incidents, and the frame of all figures on light ground."""

    panels: Panels
    incidents: Sequence[OpenIncident]
    figures: FigureFrame

    @property
    def graph(self) -> Graph:
        return self.panels.stored.definition.graph

    @property
    def total(self) -> Bucket | None:
        return self.panels.series.total

    def figure_frame(self, visit: Visit) -> FigureFrame:
        return replace(self.figures, dark=visit.dark)


def read(visit: Visit) -> PipelineRead:
    """Read what the page shows, of the messages of the source that the address names.

    Raises:
        Instead: there is no pipeline of this name.
    """
    address, name, now_s = visit.address, visit.pipeline, visit.now_s
    try:
        panels = read_panels(visit.store, name, shown_range(address.query, now_s), now_s)
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(name, visit.store.names(), address)) from None
    definition = panels.stored.definition
    source = source_of(address, definition.graph.sources)
    panels = panels if source is None else panels.from_source(source)
    figures = FigureFrame(
        definition,
        panels.series,
        panels.sla_periods,
        panels.happenings,
        address.zone,
        now_s,
        pipeline_steps.path_of(address, definition.graph),
        dark=False,
        consumer_lag=panels.consumer_lag.series,
    )
    return PipelineRead(panels, read_open(visit.store, IncidentFilters(pipeline=name)), figures)


def _stamp(visit: Visit) -> Hashable:
    return visit.services.changes.stamp(visit.pipeline), visit.now_s // _LIVE_S


def _notice(result: PipelineRead, visit: Visit) -> Part | None:
    panels = result.panels
    return notices.of_condition(panels.condition, panels.fresh, panels.stored.definition, visit.address, visit.now_s)


def _content_style(result: PipelineRead, _visit: Visit) -> dict[str, str]:
    is_empty = result.panels.newest is None and not result.panels.series.buckets
    return _HIDDEN if is_empty else {}


def _paths(result: PipelineRead, _visit: Visit) -> list[dict[str, str]]:
    ends = hops.deliveries(result.graph)
    return [{"value": SLOWEST, "label": "slowest"}, *({"value": end, "label": f"to {end}"} for end in ends)]


def _path_box_style(result: PipelineRead, _visit: Visit) -> dict[str, str]:
    has_choice = len(hops.deliveries(result.graph)) > 1
    return {"marginLeft": "auto", "display": "block" if has_choice else "none"}


def _flow(result: PipelineRead, visit: Visit) -> Any:
    return flow_graph.flow_figure(result.graph, result.total, visit.dark)


def _flow_style(result: PipelineRead, _visit: Visit) -> dict[str, int]:
    return {"height": flow_graph.height_px(result.graph), "minWidth": flow_graph.width_px(result.graph)}


def _nodes_figure(result: PipelineRead, visit: Visit) -> Any:
    return nodes.nodes_figure(result.figure_frame(visit))


def _nodes_style(result: PipelineRead, _visit: Visit) -> dict[str, int]:
    return {"height": nodes.height_px(result.graph), "minWidth": nodes.WIDTH_PX}


def _part(id_: PipelineId, draw: Callable[[PipelineRead, Address, float], Part]) -> Panel[PipelineRead]:
    return Panel(id_, lambda result, visit: draw(result, visit.address, visit.now_s), blank=no_update)


def _property(id_: PipelineId, prop: str, draw: Callable[[PipelineRead, Visit], Any]) -> Panel[PipelineRead]:
    return Panel(id_, draw, prop, blank=no_update)


PANELS: Final[tuple[Panel[PipelineRead], ...]] = (
    _part(PipelineId.HEADLINE, lambda result, address, now_s: pipeline_parts.headline(result.panels, address, now_s)),
    Panel(
        PipelineId.INCIDENTS,
        lambda result, visit: band.band(result.incidents, visit.address, asking(), visit.now_s),
    ),
    Panel(PipelineId.CONTENT, _content_style, "style", blank=_HIDDEN),
    _part(PipelineId.FLOW_LIST, lambda result, _here, _now_s: pipeline_parts.flow_list(result.graph, result.total)),
    _part(PipelineId.SHARES, lambda result, address, _now_s: shares_box(result.panels, address)),
    _part(PipelineId.WORST, lambda result, address, _now_s: worst_table(result.panels, address)),
    _part(PipelineId.REASONS, lambda result, _here, _now_s: reasons_box(result.total)),
    _part(PipelineId.GROUPS, lambda result, address, now_s: groups_panel(result.panels.groups, address, now_s)),
    _part(
        PipelineId.LOST_AFTERWARDS,
        lambda result, address, _now_s: lost_afterwards_panel(
            result.panels.lost_afterwards, result.panels.stored.name, address
        ),
    ),
    _part(
        PipelineId.QUALITY,
        lambda result, address, _now_s: quality_panel(result.panels.series.quality, result.panels.stored.name, address),
    ),
    _part(PipelineId.TAPS, lambda result, address, now_s: taps_panel(result.panels.taps, address, now_s)),
    _part(PipelineId.CAPTION, lambda result, address, _now_s: pipeline_parts.caption(result.panels, address)),
    _property(PipelineId.PATH, "data", _paths),
    # what a reader chose just now is not in the address yet
    Panel(PipelineId.PATH, lambda result, _visit: result.figures.path, "value", blank=no_update, is_steady=True),
    _property(PipelineId.PATH_BOX, "style", _path_box_style),
    _property(PipelineId.PANELS, "figure", lambda result, visit: panels_figure(result.figure_frame(visit))),
    _property(PipelineId.PANELS, "style", lambda result, _visit: {"height": height_px(result.figures)}),
    _property(PipelineId.OFFSET, "data", lambda result, _visit: result.figures.axis.offset_s),
    _property(PipelineId.FLOW, "figure", _flow),
    _property(PipelineId.FLOW, "style", _flow_style),
    # the tallest, and below all others: drawn when a reader comes near
    Panel(PipelineId.NODES, _nodes_figure, "figure", blank=no_update, once=PipelineId.NODES_SEEN),
    _property(PipelineId.NODES, "style", _nodes_style),
    _part(PipelineId.NODES_CAPTION, lambda result, _here, _now_s: nodes.caption(result.figures)),
)


def _register_nodes(app: Dash) -> None:
    app.clientside_callback(  # type: ignore[no-untyped-call]
        ClientsideFunction("lagloss", "awaitSight"),
        Output(PipelineId.NODES_SEEN, "data"),
        Input(PipelineId.NODES, "style"),  # has its height
        State(PipelineId.NODES, "id"),
        State(PipelineId.NODES_SEEN, "id"),
        State(PipelineId.NODES_SEEN, "data"),
    )


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
        address, params = PAGE.locate(pathname, search)
        return step(address, pipeline_steps.of_click(address, params["pipeline"], clicked))

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
        address, _ = PAGE.locate(pathname, search)
        if pipeline_steps.is_double_click(zoomed):
            target, remaining = pipeline_steps.back(address, before or [], time.time())
        else:
            target, remaining = (
                pipeline_steps.of_zoom(address, zoomed, offset_s or 0),
                [*(before or []), address.search],
            )
        return step(address, target), remaining, None


def _more(app: Dash, _services: Services) -> None:
    _register_nodes(app)
    _register_steps(app)


PAGE: Final = Page(
    name="pipeline",
    pattern=re.compile(rf"/pipelines/{NAME}"),
    title=lambda params: params["pipeline"],
    frame=frame,
    notice=Panel(PipelineId.NOTICE, _notice),
    read=read,
    panels=PANELS,
    controls=(Control(PipelineId.PATH, leads=pipeline_steps.of_path),),
    more=_more,
    stamp=_stamp,
    ranged=True,
    opens=at_minutes,
    themed=True,
)
