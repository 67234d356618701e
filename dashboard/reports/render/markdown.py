"""The report as Markdown with pipe tables, as GitHub and markdown-it read them."""

from __future__ import annotations

import re
from typing import Final

from dashboard.reports import wording
from dashboard.reports.parts import Cell, Layout, ReportSection, Table

_SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~#&!])")


def markdown(layout: Layout) -> str:
    """Return all of it, charts left out."""
    zone = layout.span.zone
    head = [f"# {escape(layout.title)}", f"Created {wording.local(layout.made_at_s, zone)}, times in {zone}."]
    if layout.description:
        head.insert(1, escape(layout.description))
    return "\n\n".join([*head, *map(_section, layout.sections)]) + "\n"


def escape(text: str) -> str:
    """Text that stays text: nothing in it is markup, and it stays on its line."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def _section(section: ReportSection) -> str:
    parts = [f"## {escape(section.title)}", *map(escape, section.sentences)]
    if section.table is not None:
        parts.append(_table(section.table))
    return "\n\n".join(parts)


def _table(table: Table) -> str:
    rule = ["---" if index < table.names else "---:" for index in range(len(table.heads))]
    rows = [[escape(head) for head in table.heads], rule, *([_cell(cell) for cell in row] for row in table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(cell: Cell) -> str:
    return f"[{escape(cell.text)}]({cell.link})" if cell.link else escape(cell.text)
