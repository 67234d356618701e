"""The SLA report of one pipeline over a week, a month, a quarter or any range."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import NAME, Part, alert, aria, live, moment_picker
from dashboard.pages.opening import at_month
from dashboard.pages.page import Control, Instead, Page, Panel, Visit
from dashboard.pages.report.parts import report_part
from dashboard.pages.shell import pipeline_nav
from dashboard.queries.services import Services
from dashboard.reports import Report, make_report
from dashboard.reports.ranges import PRESETS, CalendarRange, choose, previous
from dashboard.request.links import Address
from dashboard.request.shown_range import RANGES_S, ShownRange
from lagloss.errors import UsageError
from lagloss_server.base.errors import BadSpan, BadTime, UnknownPipeline

_LAST: Final = ("7d", "30d", "90d")
_CURRENT: Final = "this-month"
REFRESH_MS: Final = 60_000
"""A report is of whole minutes, and seldom of the newest ones."""


class ReportIds(StrEnum):
    RANGE = "report-range"
    EARLIER = "report-earlier"
    FROM = "report-from"
    TO = "report-to"
    APPLY = "report-apply"
    NAV = "report-nav"
    NOTICE = "report-notice"
    CONTENT = "report-content"


def frame(params: Mapping[str, str], address: Address) -> Part:
    controls = dmc.Group(
        [
            dmc.Select(id=ReportIds.RANGE, label="Range", data=[], allowDeselect=False, size="xs", w=170),
            dmc.Button("Earlier", id=ReportIds.EARLIER, size="xs", variant="default"),
            moment_picker(ReportIds.FROM, "From", 190),
            moment_picker(ReportIds.TO, "To", 190),
            dmc.Button("Show", id=ReportIds.APPLY, size="xs"),
        ],
        align="end",
        gap="xs",
        my="sm",
    )
    title = dmc.Title(f"SLA report: {params['pipeline']}", order=1, fz=22)
    head = dmc.Group([title, html.Div(_nav(address), id=ReportIds.NAV)])
    # not live: a refresh would have all of it read aloud
    return html.Div([head, controls, live(ReportIds.NOTICE), html.Div(id=ReportIds.CONTENT, **aria(busy="true"))])


def _nav(address: Address) -> Part:
    return pipeline_nav(elsewhere(address), address.path.split("/")[2], "report")


def read(visit: Visit) -> Report:
    """Make the report that the address asks for.

    Raises:
        Instead: the address cannot be read, or names no pipeline.
    """
    address, now_s = visit.address, visit.now_s
    try:
        return make_report(
            visit.store, visit.pipeline, requested_range(address, now_s), now_s, address.query.get("source")
        )
    except UnknownPipeline:
        raise Instead(notices.unknown_pipeline(visit.pipeline, visit.store.names(), address)) from None
    except (BadTime, BadSpan) as error:
        raise Instead(alert("No such range", str(error), "orange", "?")) from None
    except UsageError as error:
        raise Instead(alert("No such source", str(error), "orange", "?")) from None


def requested_range(address: Address, now_s: float) -> CalendarRange:
    """Return the range that an address asks for, as the API reads it.

    Raises:
        BadTime, BadSpan: it makes no sense.
    """
    query = address.query
    range_ = None if "from" in query else query.get("range", _CURRENT)
    return choose(range_, query.get("from"), query.get("to"), address.zone.name, now_s)


def elsewhere(address: Address) -> Address:
    """Return the same time, as pages that know no calendar are asked for it; without a range in the address, each opens
    at its own."""
    if not address.names_range:
        return address
    try:
        span = requested_range(address, time.time())
    except UsageError:
        return address.named(None)
    is_known = "from" not in address.query and address.query.get("range") in RANGES_S
    return address if is_known else address.over(ShownRange(span.from_s, span.to_s))


def range_control(id_: str) -> Control:
    """Return the control of named ranges; empty where the address has moments."""

    def shows(address: Address) -> str:
        return "" if "from" in address.query else address.query.get("range", _CURRENT)

    def choices(_services: Services, address: Address) -> list[str]:
        chosen = shows(address)
        return list(dict.fromkeys([*PRESETS, *_LAST, *([chosen] if chosen else [])]))

    return Control(id_, shows, lambda address, name: address.named(name) if name else address, choices=choices)


def earlier_control(id_: str) -> Control:
    """Return the button that leads to the same page over the range before."""
    return Control(id_, leads=lambda address, _clicks: _earlier(address), prop="n_clicks")


def _earlier(address: Address) -> Address:
    try:
        before = previous(requested_range(address, time.time()))
    except UsageError:
        return address
    return address.named(before.name) if before.name else address.over(ShownRange(before.from_s, before.to_s))


def applied(address: Address, _clicks: int | None, from_: str | None, to: str | None) -> Address:
    """Return the same page over the moments of the date pickers. What only repeats the address leads nowhere."""
    return address.between(from_, to) if from_ and to and (from_, to) != _filled(address) else address


def _filled(address: Address) -> tuple[str, str] | tuple[None, None]:
    """Return the initial values of the date pickers: an ambiguous time cannot be read back from them. None: the address
    names no range."""
    try:
        span = requested_range(address, time.time())
    except UsageError:
        return None, None
    return address.zone.typed(span.from_s), address.zone.typed(span.to_s)


PAGE: Final = Page(
    name="report",
    pattern=re.compile(rf"/pipelines/{NAME}/report"),
    title=lambda params: f"SLA report of {params['pipeline']}",
    frame=frame,
    notice=ReportIds.NOTICE,
    read=read,
    panels=(Panel(ReportIds.CONTENT, lambda report, visit: report_part(report, visit.address, visit.dark)),),
    controls=(
        Control(ReportIds.NAV, _nav, prop="children"),
        range_control(ReportIds.RANGE),
        earlier_control(ReportIds.EARLIER),
        Control(ReportIds.FROM, lambda address: _filled(address)[0]),
        Control(ReportIds.TO, lambda address: _filled(address)[1]),
        Control(ReportIds.APPLY, leads=applied, prop="n_clicks", given=(ReportIds.FROM, ReportIds.TO)),
    ),
    busy=ReportIds.CONTENT,
    themed=True,
    refresh_ms=REFRESH_MS,
    elsewhere=elsewhere,
    opens=at_month,
)
