"""The table of `lagloss coverage` for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.markup import escape
from rich.table import Column, Table

from lagloss_server.base import format as fmt
from lagloss_server.groups.coverage import KINDS, ClusterCoverage, share_text

SHOWN: Final = 20
"""Names of topics, and of groups, that no definition names; `--json` has all."""


def coverage_table(coverage: ClusterCoverage, by: str) -> Table:
    """Lay out shares by prefix or label, what has most that is not measured first; the last row is of all."""
    table = Table(Column(by, no_wrap=True), "topics measured", "groups measured", box=None)
    for row in coverage.rows(by):
        value = fmt.NOTHING if row["value"] is None else escape(row["value"])
        table.add_row(value, share_text(row["topics"]), share_text(row["groups"]))
    table.add_row("all", *(share_text(coverage.share(kind)) for kind in KINDS), style="bold")
    return table


def not_measured_lines(coverage: ClusterCoverage) -> Iterator[str]:
    """Yield the topics and groups that no definition names, a line each, with their cluster if it has a name."""
    for kind in KINDS:
        places = coverage.not_measured(kind)
        if places:
            yield f"{kind.capitalize()} that no definition names:"
        for place in places[:SHOWN]:
            name = place.name if place.name.isprintable() else ascii(place.name)
            yield f"  {place.cluster}/{name}" if place.cluster else f"  {name}"
        if len(places) > SHOWN:
            yield f"  and {fmt.count(len(places) - SHOWN)} more"
