"""Quality of data on a pipeline's page: a row a stage and destination, a column a quality, each beside its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard.format import QUALITIES, QUALITY_NOTE, QUALITY_VERDICTS, place_label, quality_target, quality_value
from dashboard.pages.base import Part, aria, names, number, table
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.zones import utc
from lagloss_server import format as fmt
from lagloss_server.rules.quality import QualityCell, QualityRow


def quality_panel(rows: Sequence[QualityRow], pipeline: str, here: Address) -> Part | None:
    """Return the table of qualities; None where no minute of the span is closed."""
    if not rows:
        return None
    shown = table(
        "Quality of data",
        [names("Stage"), *map(number, QUALITIES.values())],
        [[place_label(row.stage.label), *(_cell(cell, pipeline, here) for cell in row.cells)] for row in rows],
        striped=True,
        tabularNums=True,
        verticalSpacing=4,
        horizontalSpacing=12,
        fz="sm",
        className="unbroken",
    )
    title = dmc.Title("Quality of data", order=2, fz=16)
    about = dmc.Text(QUALITY_NOTE, size="sm", className="faint", mb=4)
    return dmc.Paper([title, about, shown], p="sm", withBorder=True)


def _cell(cell: QualityCell | None, pipeline: str, here: Address) -> Part:
    if cell is None:
        return dmc.TableTd(fmt.NOTHING, className="number faint")
    look = QUALITY_VERDICTS[cell.verdict]
    value: Any = quality_value(cell)
    if cell.worst_s is not None:
        hint = f"worst in the minute of {here.zone.clock(cell.worst_s, date=True)}, {utc(cell.worst_s)}"
        href = here.to(links.window(pipeline, cell.worst_s)).href
        value = dmc.Anchor(html.Span(value, title=hint), href=href, size="sm")
    sign = html.Span(look.icon, role="img", className=f"of-{look.role}", **aria(label=look.word.lower()))
    target = dmc.Text(quality_target(cell), size="xs", className="faint")
    return [sign, " ", value, target]
