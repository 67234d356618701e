"""The section of a report about the quality of data at each stage and destination."""

from __future__ import annotations

from dashboard.format import QUALITIES, QUALITY_NOTE, QUALITY_VERDICTS, place_label, quality_target, quality_value
from dashboard.reports.parts import Cell, Pages, ReportSection, Table
from lagloss.wire.format import WINDOW_S
from lagloss_server.base import format as fmt
from lagloss_server.sums.quality import QualityCell


def quality(pages: Pages) -> ReportSection | None:
    """Return the section; None where nothing is known of the range."""
    rows = [
        [Cell(place_label(row.stage.label)), *(_cell(pages, cell) for cell in row.cells)]
        for row in pages.report.quality
    ]
    if not rows:
        return None
    return ReportSection("Data quality", (QUALITY_NOTE,), None, Table(("Stage", *QUALITIES.values()), rows))


def _cell(pages: Pages, cell: QualityCell | None) -> Cell:
    if cell is None:
        return Cell(fmt.NOTHING)
    look = QUALITY_VERDICTS[cell.verdict]
    text = f"{look.icon} {quality_value(cell)} ({quality_target(cell)})"
    if cell.worst_s is None:
        return Cell(text, "", look.meaning)
    return pages.range(text, cell.worst_s, cell.worst_s + WINDOW_S)
