"""The share of each hop of the lag over the whole span, on the chosen path: a pie, and a table of bars."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html

from dashboard.design import hues
from dashboard.figures.frame import SLOWEST
from dashboard.figures.shares import BAR_PX, PIE_PX, HopShare, bar, pie, shares
from dashboard.figures.sparkline import data_uri
from dashboard.pages.base import Column, Part, bare_table
from dashboard.pages.pipeline import steps
from dashboard.queries.panels import Panels
from dashboard.request.links import Address
from lagloss_server import format as fmt
from lagloss_server.rules import hops

_TITLE = "Share of each hop of the lag"


def shares_box(panels: Panels, here: Address) -> Part:
    graph, total = panels.stored.definition.graph, panels.series.total
    path = steps.path_of(here, graph)
    found = shares({} if total is None else hops.path_ms(total.lags, graph, None if path == SLOWEST else path))
    hue = hues(graph.steps)
    longest_ms = max((share.p95_ms for share in found), default=0.0)
    size = str(PIE_PX)
    picture = html.Img(src=data_uri(pie(found, hue)), alt="the same as a pie", className="pie", width=size, height=size)
    table = bare_table(
        ("", "", Column("", "number"), Column("", "number")),
        [share_row(share, longest_ms, hue) for share in found],
        tabularNums=True,
        verticalSpacing=3,
        horizontalSpacing=6,
        fz="sm",
        withRowBorders=False,
    )
    about = dmc.Text("p95 over the whole span, from merged sketches", size="sm", className="faint")
    return [dmc.Title(_TITLE, order=2, fz=16), about, picture if found else None, table]


def share_row(share: HopShare, longest_ms: float, hue: dict[str, str]) -> list[Part]:
    """Return a hop's row: its name, bar, lag, and share of the whole."""
    width, height = map(str, BAR_PX)
    picture = html.Img(src=data_uri(bar(share, longest_ms, hue)), alt="", width=width, height=height)
    return [
        dmc.TableTh(share.hop.label, fw=400, attributes={"root": {"scope": "row"}}),
        picture,
        fmt.duration(share.p95_ms),
        fmt.NOTHING if share.share is None else fmt.percent(share.share),
    ]
