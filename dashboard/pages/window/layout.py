"""Frame of a window's page, drawn before anything is read: its head, its controls, and boxes to be filled."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, get_args

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.pages.base import SCRIPTED, Part, alert, aria, live, moment
from dashboard.pages.breakdown import REASONS
from dashboard.pages.shell import pipeline_nav
from dashboard.request import links
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from dashboard.request.zones import utc
from lagloss.wire.format import WINDOW_S, window_start_of
from lagloss_server.base.errors import BadTime
from lagloss_server.base.times import parse_time_s
from lagloss_server.queries.export import ExportFormat
from lagloss_server.queries.matrix import Only

_LAST_S: Final = 253_000_000_000
"""In the year 9987: calendars end soon after."""
EVERYTHING: Final = "all"
"""The filter that filters nothing."""
EXPORTS: Final = {
    "lost": "Lost messages",
    "late": "Late messages",
    "dead": "Dead letters",
    "all": "All of these, plus pending and corrupted ones",
}


class WindowId(StrEnum):
    NOTICE = "window-notice"
    VERDICT = "window-verdict"
    TABLE = "window-table"
    REASONS = "window-reasons"
    REVISIONS = "window-revisions"
    STAMP = "window-stamp"
    MATRIX = "window-matrix"
    SHOWN = "window-shown"
    BUSY = "window-busy"
    ONLY = "window-only"
    WHERE = "window-where"
    TEXT = "window-text"
    AGAIN = "window-again"
    A = "window-a"
    B = "window-b"
    DIFFERENCE = "window-difference"


def frame(params: Mapping[str, str], address: Address) -> Part:
    start_s = start_of(params)
    if start_s is None:
        summary = alert("No such window", f"{params['start']} is not a time: expected RFC 3339.", "orange", "?")
        return html.Div([summary, pipeline_nav(address, params["pipeline"], "window")])
    return dmc.Stack(
        [
            _head(params["pipeline"], start_s, address),
            live(WindowId.NOTICE),
            dmc.Paper(html.Div(id=WindowId.VERDICT), p="sm", withBorder=True),
            dmc.Paper(_matrix_box(params["pipeline"], start_s), p="sm", withBorder=True, className=SCRIPTED),
            dmc.SimpleGrid(
                [
                    dmc.Stack(
                        [
                            _box("Per-Node Loss", html.Div(id=WindowId.TABLE)),
                            _box(REASONS, html.Div(id=WindowId.REASONS)),
                        ],
                        gap="sm",
                    ),
                    dmc.Stack(
                        [
                            _box(
                                "Difference between two checkpoints", [_points(), live(WindowId.DIFFERENCE)], SCRIPTED
                            ),
                            _box("Revisions", html.Div(id=WindowId.REVISIONS)),
                        ],
                        gap="sm",
                    ),
                ],
                cols={"base": 1, "md": 2},
                spacing="sm",
            ),
            dcc.Store(id=WindowId.STAMP),
            dcc.Store(id=WindowId.SHOWN),
        ],
        gap="sm",
    )


def _head(pipeline: str, start_s: int, address: Address) -> Part:
    def neighbour(label: str, at_s: int, key: str) -> Part:
        href = address.to(links.window(pipeline, at_s)).href
        return dmc.Anchor(label, href=href, size="sm", attributes={"root": {"accessKey": key}})

    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Title(
                        [f"{pipeline}, ", moment(address.zone.minute(start_s), utc(start_s))], order=1, fz=20, mb=4
                    ),
                    html.Nav(
                        dmc.Group(
                            [
                                neighbour("← previous minute", start_s - WINDOW_S, "b"),
                                neighbour("next minute →", start_s + WINDOW_S, "n"),
                            ],
                            gap="md",
                        ),
                        **aria(label="neighbouring minutes"),
                    ),
                ],
                justify="space-between",
                gap="xs",
            ),
            pipeline_nav(address, pipeline, "window"),
        ]
    )


def _box(title: str, children: Any, look: str = "") -> Part:
    head = dmc.Title(title, order=2, fz=16, mb="xs")
    return dmc.Paper([head, html.Div(children)], p="sm", withBorder=True, className=look)


def _matrix_box(pipeline: str, start_s: int) -> Part:
    """Draw the controls and the box of the matrix; without the controls for whom there is none."""
    shows_ids = asking().grants.may_see_ids(pipeline)
    choices = {EVERYTHING: "all"} | {only: only.replace("-", " ") for only in get_args(Only)}
    return html.Div(
        [
            dmc.Title("Messages by checkpoint", order=2, fz=16, mb="xs"),
            dmc.Group(
                [
                    dmc.SegmentedControl(
                        id=WindowId.ONLY,
                        data=[{"value": value, "label": label} for value, label in choices.items()],
                        value=EVERYTHING,
                        size="xs",
                        **aria(label="which messages"),
                    ),
                    dmc.Select(
                        id=WindowId.WHERE,
                        data=[],
                        placeholder="missing at",
                        clearable=True,
                        searchable=True,
                        size="xs",
                        w=230,
                        **aria(label="missing at"),
                    ),
                    dmc.TextInput(
                        id=WindowId.TEXT,
                        placeholder="part of an id",
                        size="xs",
                        w=180,
                        debounce=400,
                        **aria(label="part of an id"),
                    ),
                    dmc.Button("Reload", id=WindowId.AGAIN, size="xs", variant="default"),
                    _exports(pipeline, start_s),
                    live(WindowId.BUSY),
                ],
                gap="xs",
                mb="xs",
                display="flex" if shows_ids else "none",
            ),
            html.Div(id=WindowId.MATRIX),
        ]
    )


def _exports(pipeline: str, start_s: int) -> Part:
    """Return a menu of files of the messages that something is wrong with."""
    files = [
        html.Li(
            [
                f"{label}: ",
                *(
                    html.A(name.upper(), href=links.window_data(pipeline, start_s, "export", what=what, format=name))
                    for name in get_args(ExportFormat)
                ),
            ]
        )
        for what, label in EXPORTS.items()
    ]
    return html.Details([html.Summary("Export"), html.Ul(files)], className="menu")


def _points() -> Part:
    def select(id_: WindowId, label: str) -> Part:
        return dmc.Select(id=id_, data=[], label=label, clearable=True, searchable=True, size="xs", w=200)

    return dmc.Group([select(WindowId.A, "at"), select(WindowId.B, "but not at")], gap="xs", mb="xs")


def start_of(params: Mapping[str, str]) -> int | None:
    """Return the start of the window that holds the moment in a path (epoch s); None where it is no time."""
    try:
        start_s = window_start_of(parse_time_s(params["start"]) * 1_000)
    except BadTime:
        return None
    return start_s if 0 < start_s < _LAST_S else None
