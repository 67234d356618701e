"""The frame around all pages: where the reader is, what can be chosen everywhere, and the clock that refreshes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Output, dcc, html

from dashboard.pages.base import Part, aria, moment_picker
from dashboard.request import links, zones
from dashboard.request.current_user import Person, asking
from dashboard.request.shown_range import RANGES_S

REFRESH_MS: Final = 5_000


class Shell(StrEnum):
    """Ids that pages may use: they are there whatever page is mounted."""

    URL = "url"
    TICK = "tick"
    SCHEME = "scheme"
    PROVIDER = "provider"
    SCHEME_TOGGLE = "scheme-toggle"
    PIPELINE = "pipeline"
    RANGE = "range"
    RANGE_BOX = "range-box"
    FROM = "range-from"
    TO = "range-to"
    APPLY = "range-apply"
    ZONE = "zone"
    NAV = "nav"
    ACCOUNT = "account"
    TITLE = "page-title"
    PAGE = "page"


WHILE_BUSY: Final = [(Output(Shell.TICK, "disabled"), True, False)]
"""For a callback's `running`: no refresh is asked for while an answer is on its way, since Dash would drop that one."""


def frame() -> Part:
    """Return the layout of the app, the same for every page."""
    return dmc.MantineProvider(
        id=Shell.PROVIDER,
        defaultColorScheme="auto",
        theme={"primaryColor": "indigo", "fontFamily": "system-ui, sans-serif", "defaultRadius": "sm"},
        children=[
            dcc.Location(id=Shell.URL, refresh="callback-nav"),
            dcc.Interval(id=Shell.TICK, interval=REFRESH_MS),
            dcc.Store(id=Shell.SCHEME, storage_type="local"),
            dcc.Store(id=Shell.TITLE),
            html.A("Skip to content", href=f"#{Shell.PAGE}", className="skip"),
            dmc.Container(
                [_header(), html.Main(id=Shell.PAGE, tabIndex=-1)],
                fluid=True,
                maw=1760,
                px={"base": "sm", "sm": "lg"},
                py="sm",
            ),
        ],
    )


def _header() -> Part:
    return html.Header(
        [
            dmc.Group(
                [
                    dmc.Text("lagloss", fz=22, fw=700, className="wordmark"),
                    html.Nav(id=Shell.NAV, **aria(label="pages")),
                    dmc.Group(
                        [
                            html.Div(id=Shell.ACCOUNT),
                            dmc.Button(
                                "◐",
                                id=Shell.SCHEME_TOGGLE,
                                variant="default",
                                size="xs",
                                **aria(label="dark or light mode"),
                            ),
                        ],
                        gap="xs",
                        ml="auto",
                    ),
                ],
                gap="md",
                className="head",
            ),
            dmc.Group([_pipeline_select(), _range(), _zone_select()], gap="sm", mt="xs", mb="sm", className="bar"),
        ]
    )


def _pipeline_select() -> Part:
    return dmc.Select(
        id=Shell.PIPELINE,
        data=[],
        placeholder="go to a pipeline",
        allowDeselect=False,
        searchable=True,
        limit=50,
        size="xs",
        w={"base": 170, "sm": 240},
        **aria(label="pipeline"),
    )


def _range() -> Part:
    """Return the named ranges, and any other by its first and last moment in the viewer's zone."""
    custom = dmc.Popover(
        [
            dmc.PopoverTarget(dmc.Button("From … to …", variant="default", size="xs")),
            dmc.PopoverDropdown(
                dmc.Stack(
                    [
                        moment_picker(Shell.FROM, "From", 220),
                        moment_picker(Shell.TO, "To", 220),
                        dmc.Button("Show", id=Shell.APPLY, size="xs"),
                    ],
                    gap="xs",
                )
            ),
        ],
        position="bottom-start",
        shadow="md",
        trapFocus=True,
        withinPortal=True,
        withRoles=False,  # they would stand on a wrapper that has no role, not on the button
    )
    ranges = [{"label": name, "value": name} for name in RANGES_S]
    return html.Div(
        dmc.Group(
            [
                dmc.SegmentedControl(
                    id=Shell.RANGE, data=ranges, value=None, size="xs", **aria(label="time range"), className="ranges"
                ),
                custom,
            ],
            gap="xs",
        ),
        id=Shell.RANGE_BOX,
    )


def _zone_select() -> Part:
    return dmc.Select(
        id=Shell.ZONE,
        data=list(zones.names()),
        allowDeselect=False,
        searchable=True,
        limit=50,
        size="xs",
        w=170,
        ml={"base": 0, "sm": "auto"},
        **aria(label="time zone"),
    )


def nav(address: links.Address, current: str, person: Person) -> Part:
    """Return the pages that are of no single pipeline; `current` is the name of the page that is shown."""
    pages = [
        ("overview", "Overview", links.OVERVIEW),
        ("portfolio", "Portfolio", links.PORTFOLIO),
        ("messages", "Lost messages", links.MESSAGES),
        ("groups", "Groups", links.GROUPS),
        ("coverage", "Coverage", links.COVERAGE),
        ("alerts", "Alerts", links.ALERTS),
        ("health", "Health", links.HEALTH),
    ]
    if person.role == "operator":
        pages.append(("audit", "Audit", links.AUDIT))
    items = [_nav_link(label, address.to(path).href, name == current) for name, label, path in pages]
    return dmc.Group(items, gap="xs", className="bar")


def pipeline_nav(address: links.Address, pipeline: str, current: str) -> Part:
    """Return the pages of one pipeline, for their heads."""
    pages = [("pipeline", "Pipeline", links.pipeline(pipeline))]
    if asking().grants.may_see_ids(pipeline) or current == "message":
        pages.append(("message", "Messages", links.message(pipeline)))
    pages.append(("runs", "Runs", links.runs(pipeline)))
    pages.append(("report", "SLA report", links.report(pipeline)))
    return html.Nav(
        dmc.Group([_nav_link(label, address.to(path).href, name == current) for name, label, path in pages], gap="xs"),
        **aria(label=f"pages of {pipeline}"),
    )


def _nav_link(label: str, href: str, is_current: bool) -> Part:
    marks: dict[str, Any] = aria(current="page") if is_current else {}
    return dmc.Anchor(label, href=href, size="sm", fw=700 if is_current else 400, className="nav-link", **marks)
