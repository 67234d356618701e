"""Layout of a report: sections of sentences and tables, whose cells lead to the windows behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from dashboard.reports import wording
from dashboard.reports.model import Figures, Report
from dashboard.reports.ranges import CalendarRange
from dashboard.request import links
from lagloss_server.base import format as fmt
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.window import rfc3339
from lagloss_server.sums.error_budget import Status

Chart = Literal["burn-down", "days"]


@dataclass(frozen=True, slots=True)
class Cell:
    """`link`: where the windows of the figure are; `hint`: shown on hover, such as the time in UTC; `svg`: a small
    drawing beside the text, which `hint` describes."""

    text: str
    link: str = ""
    hint: str = ""
    svg: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """`names`: how many columns at the left are text; the others hold numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1


@dataclass(frozen=True, slots=True)
class ReportSection:
    title: str
    sentences: Sequence[str] = ()
    chart: Chart | None = None
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A report or portfolio as Markdown and HTML lay it out. `charts`: SVG of those that sections name."""

    title: str
    kind: str
    name: str
    description: str
    span: CalendarRange
    made_at_s: float
    status: Status
    sections: Sequence[ReportSection]
    charts: Mapping[Chart, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pages:
    """Cells that lead to the windows behind them."""

    report: Report
    base_url: str

    @property
    def zone(self) -> str:
        return self.report.span.zone

    def range(self, text: str, from_s: int, to_s: int) -> Cell:
        link = self.report.links(from_s, to_s, self.base_url)["page"]
        return Cell(text, link, f"{rfc3339(from_s)} to {rfc3339(to_s)}")

    def source(self, name: str) -> Cell:
        """Return the name of a source, which leads to the same page over its messages."""
        span, narrowed = self.report.span, replace(self.report, source=name)
        return Cell(name, narrowed.links(span.from_s, span.to_s, self.base_url)["page"])

    def incident(self, incident: Incident) -> str:
        """Return the address of an incident's page."""
        return self.base_url.rstrip("/") + links.incident(str(incident.id))

    def moment(self, at_s: float | None) -> Cell:
        return Cell(fmt.NOTHING) if at_s is None else Cell(wording.local(at_s, self.zone), "", rfc3339(int(at_s)))


NUMBERS: Final = ("Messages", "Lost", "Loss", "On time")


def numbers(figures: Figures) -> list[Cell]:
    """Return the numbers of a range, below these heads."""
    if not figures.known.closed:
        return [Cell(fmt.NOTHING)] * len(NUMBERS)
    total = figures.total
    return [
        Cell(fmt.count(total.messages)),
        Cell(fmt.count_interval(total.lost)),
        Cell(wording.attained(figures.attainments[0])),
        Cell(wording.attained(figures.attainments[1])),
    ]
