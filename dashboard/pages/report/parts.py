"""Content of the page of an SLA report, as a pure function of the report."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import dash_mantine_components as dmc
from dash import dcc, html

from dashboard.figures.burn_down import burn_down_figure
from dashboard.pages.base import Part, TableColumn, aria, badge, icon, number, picture, table
from dashboard.pages.breakdown import source_choice
from dashboard.reports import FORMATS, Report
from dashboard.reports.model import Figures
from dashboard.reports.parts import Cell, ReportSection, Table
from dashboard.reports.sections import sections
from dashboard.reports.wording import STATUSES, local_day, range_sentence
from dashboard.request import links
from dashboard.request.links import API, Address
from dashboard.request.shown_range import ShownRange
from lagloss_server.sums.error_budget import Status

_ASKED: Final = ("range", "from", "to", "zone", "source")


def report_part(report: Report, address: Address, dark: bool) -> Part:
    """Return the status, downloads, and every section in the order in which it is read."""
    files = downloads(f"{API}/pipelines/{quote(report.pipeline)}/report", address)
    about = range_sentence(report.span, report.whole.known.before, report.made_at_s)
    head = dmc.Group([status_badge(report.status), dmc.Text(about, size="sm"), files], gap="sm")
    choice = source_choice(address, report.source_names, report.source)
    return html.Div(
        [
            *([] if choice is None else [choice]),
            head,
            *(_section(section, report, address, dark) for section in sections(report)),
        ]
    )


def status_badge(status: Status) -> Part:
    look = STATUSES[status]
    return badge(look.word, look.icon, look.colour, "lg")


def downloads(route: str, address: Address, *more: str) -> Part:
    """Return the same figures as files; made anew, of the same range. `more`: further parameters of the route."""
    parameters = {key: value for key, value in address.query.items() if key in (*_ASKED, *more)}
    anchors = [
        html.A(
            name.upper(),
            href=route + Address(query={**parameters, "format": name}).search,
            download="",
            className="nav-link",
        )
        for name in FORMATS
    ]
    return html.Div(["Download: ", *anchors], **aria(label="downloads"), role="group")


def _section(section: ReportSection, report: Report, address: Address, dark: bool) -> Part:
    chart = None
    if section.chart == "burn-down":
        figure = burn_down_figure(report, dark)
        chart = dcc.Graph(figure=figure, config={"displayModeBar": False}, className="chart")
    if section.chart == "days":
        chart = _strip(report, address)
    return section_part(section, chart)


def section_part(section: ReportSection, chart: Part | None = None) -> Part:
    """Return a section, its chart between sentences and table; one line if it has only a sentence."""
    if chart is None and section.table is None:
        words = dmc.Text(" ".join(section.sentences), size="sm")
        return html.Section([dmc.Title(section.title, order=2, fz=16), words], className="one-line")
    parts: list[Any] = [dmc.Title(section.title, order=2, fz=16, mt="lg", mb=4)]
    parts += [dmc.Text(sentence, size="sm", mb=4) for sentence in section.sentences]
    parts += [part for part in (chart, section.table and _table(section.table, section.title)) if part is not None]
    return html.Section(parts)


def _strip(report: Report, address: Address) -> Part:
    """Draw a square per day, marked by colour and sign; a day of which nothing is known is an empty frame."""
    return html.Ol([html.Li(_day(day, report, address)) for day in report.days], className="days")


def _day(day: Figures, report: Report, address: Address) -> Part:
    look = STATUSES[day.status]
    is_closed = bool(day.known.closed)
    note = f"{local_day(day.from_s, report.span.zone)}: {look.word.lower() if is_closed else 'no data'}"
    of_day = address.to(links.pipeline(report.pipeline)).over(ShownRange(day.from_s, day.to_s))
    return html.A(
        icon(look.icon if is_closed else " "),
        href=of_day.href,
        className=f"day day-{day.status if is_closed else 'blank'}",
        title=note,
        **aria(label=note),
    )


def _table(drawn: Table, title: str) -> Part:
    columns: list[TableColumn | str] = [*drawn.heads[: drawn.names], *map(number, drawn.heads[drawn.names :])]
    rows = [[_cell(cell) for cell in row] for row in drawn.rows]
    return table(title, columns, rows, fz="sm", verticalSpacing=4)


def _cell(cell: Cell) -> Part:
    if cell.svg:
        drawing = picture(cell.svg, cell.hint, title=cell.hint, className="spark")
        return html.Span([drawing, " ", html.Span(cell.text, **aria(hidden="true"))])
    if cell.link:
        return html.A(cell.text, href=cell.link, title=cell.hint or None)
    return html.Span(cell.text, title=cell.hint) if cell.hint else cell.text
