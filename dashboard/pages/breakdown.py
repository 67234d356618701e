"""Numbers of a window by destination, source, side and reason, as tables, and the way to the messages of one source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import dash_mantine_components as dmc
from dash import html
from msgspec import UNSET

from dashboard.format import VERDICTS
from dashboard.pages.base import SMALL_FACTS, Part, TableColumn, aria, number, table
from dashboard.queries.sla_periods import is_held, target_percentile
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Sla
from lagloss_server.model.window import (
    DestinationCounts,
    ListedWindow,
    LossRatio,
    ReasonRow,
    SideCounts,
    SourceCounts,
)

REASONS: Final = "Why messages were filtered or dead-lettered"
_SOURCES: Final = ("source", "messages", "lost", "E2E lag", "on time")
_PARENTS: Final = "incomplete parents"
_SIDES: Final = ("side", "verdict", "messages", "lost", "delivered", "pending")


def destinations(window: ListedWindow, sla: Sla) -> Part | None:
    """Return the numbers of each destination of a window beside its targets, the worst first; None for a single one,
    which the window's own numbers are of."""
    if len(window.destinations) < 2:
        return None
    worst_first = sorted(window.destinations, key=lambda counts: _badness(counts, sla), reverse=True)
    columns = ("destination", "due", "lost", "E2E lag", "on time")
    return table("Destinations", columns, [_destination(counts, sla) for counts in worst_first], **SMALL_FACTS)


def _destination(counts: DestinationCounts, sla: Sla) -> list[str]:
    lag, loss = sla.lag_at(counts.name), sla.loss_at(counts.name)
    percentile = target_percentile(lag)
    judged = "" if is_held(lag) else f" of {fmt.percentile(lag.percentile)}"
    lost, lag_ms = fmt.percent_interval(counts.loss_ratio), getattr(counts.e2e_lag_ms, percentile)
    return [
        counts.name,
        fmt.NOTHING if counts.messages is None else fmt.count(counts.messages),
        f"{lost} (target ≤ {fmt.percent(loss.max)})",
        f"{percentile} {fmt.duration(lag_ms)} (target{judged} ≤ {fmt.duration(lag.target)})",
        fmt.percent(counts.on_time_share),
    ]


def _badness(counts: DestinationCounts, sla: Sla) -> tuple[float, float]:
    """Return how far a destination is beyond its loss target for certain, then its lag as a share of its target."""
    lag, loss = sla.lag_at(counts.name), sla.loss_at(counts.name)
    lag_ms = getattr(counts.e2e_lag_ms, target_percentile(lag)) or 0.0
    return max(0.0, _certain(counts.loss_ratio) - loss.max), lag_ms / lag.target


def _certain(ratio: LossRatio | None) -> float:
    return ratio.min or 0.0 if ratio else 0.0


def sources(window: ListedWindow, sla: Sla) -> Part | None:
    """Return the numbers of each source of a window, the one that lost most of its messages first; None for a single
    one, which the window's own numbers are of."""
    if len(window.sources) < 2:
        return None
    has_parents = any(counts.parents_not_whole is not UNSET for counts in window.sources)
    columns = (*_SOURCES, _PARENTS) if has_parents else _SOURCES
    worst_first = sorted(window.sources, key=lambda counts: _certain(counts.loss_ratio), reverse=True)
    return table("Sources", columns, [_source(counts, sla)[: len(columns)] for counts in worst_first], **SMALL_FACTS)


def _source(counts: SourceCounts, sla: Sla) -> list[str]:
    percentile = target_percentile(sla.lag)
    return [
        counts.name,
        fmt.count(counts.messages),
        fmt.percent_interval(counts.loss_ratio),
        f"{percentile} {fmt.duration(getattr(counts.e2e_lag_ms, percentile))}",
        fmt.percent(counts.on_time_share),
        fmt.count_interval(counts.parents_not_whole or None),
    ]


def source_choice(address: Address, names: Sequence[str], chosen: str | None) -> Part | None:
    """Return links to the same page over all messages and over those of each source; None for a single one."""
    if len(names) < 2:
        return None
    ways = [("all", None), *((name, name) for name in names)]
    return html.Nav(
        ["Messages of: ", *(_way(address, text, name, is_current=name == chosen) for text, name in ways)],
        **aria(label="messages of a source"),
    )


def _way(address: Address, text: str, source: str | None, *, is_current: bool) -> Part:
    marks = aria(current="true") if is_current else {}
    href = address.asking(source=source).href
    return dmc.Anchor(text, href=href, size="sm", fw=700 if is_current else 400, className="nav-link", **marks)


def source_of(address: Address, names: Sequence[str]) -> str | None:
    """Return the source that the address names; None: all of them, also if it names none of these."""
    source = address.query.get("source")
    return source if len(names) > 1 and source in names else None


def sides(window: ListedWindow) -> Part | None:
    """Return the numbers of each side of a graph that is cut where ids are new, in the order of the flow; None if there
    is one side."""
    if len(window.sides) < 2:
        return None
    return table("Sides of the graph", _SIDES, [_side(side) for side in window.sides], **SMALL_FACTS)


def _side(side: SideCounts) -> list[str]:
    look = VERDICTS[side.verdict or "open"]
    return [
        side.name,
        f"{look.icon} {look.word}",
        fmt.count(side.messages),
        fmt.percent_interval(side.loss_ratio),
        fmt.count(side.delivered),
        fmt.count(side.pending),
    ]


def reasons(rows: Sequence[ReasonRow]) -> Part:
    """Return why messages were filtered or dead, in the order given."""
    columns = ("Node", "Exit", TableColumn("Reason", "breaks"), number("Beacons"))
    cells = [[row.node, row.exit, fmt.reason(row.reason), fmt.count(row.count)] for row in rows]
    return table(REASONS, columns, cells, striped=True, withTableBorder=True, tabularNums=True, verticalSpacing=4)
