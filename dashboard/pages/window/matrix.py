"""The matrix part of a window's page: read from the log, filtered there, or what stands in for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, cast, get_args

import dash_mantine_components as dmc
from dash import html

from dashboard.pages import notices
from dashboard.pages.base import Part, alert
from dashboard.pages.window.grid import matrix_grid, missing_grid
from dashboard.queries.services import Services
from dashboard.queries.window import WindowRead, read_window_page
from dashboard.queries.window_cache import UNREADABLE
from dashboard.request import links
from dashboard.request.links import Address
from lagloss.wire.format import share_of
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import IdsHidden
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.queries.matrix import Only, Presence

SHOWN_ROWS: Final = 10_000
"""A browser scrolls through so many without effort; the filters look at all of the window."""
GRID: Final = "window-grid"


@dataclass(frozen=True, slots=True)
class MatrixFilters:
    """Which messages of the window are shown, as the page's address says it."""

    only: Only | None
    where: str | None
    text: str

    @classmethod
    def of(cls, address: Address) -> MatrixFilters:
        only = address.query.get("only")
        filter_ = cast("Only", only) if only in get_args(Only) else None
        return cls(filter_, address.query.get("where"), address.query.get("text", ""))

    def query(self) -> dict[str, str | None]:
        return {"only": self.only, "where": self.where, "text": self.text or None}


def draw_matrix(services: Services, pipeline: str, start_s: int, address: Address, now_s: float) -> Part:
    """Read the log: to be called in its threads. Raises UnknownPipeline."""
    result = read_window_page(services.store, pipeline, start_s, now_s)
    if result.window is None:
        return None
    try:
        presence = services.logged.read(services.store, services.log, pipeline, start_s)
    except IdsHidden as error:
        return notices.ids_hidden(error)
    except UNREADABLE as error:
        return _without_log(result, address, services.trace_links, str(error))
    filters = MatrixFilters.of(address)
    rows = presence.select(only=filters.only, where=filters.where, text=filters.text)
    is_cut = rows.size > SHOWN_ROWS and filters.only != "late"  # late ones come worst first
    shown = presence.missing_first(rows)[:SHOWN_ROWS] if is_cut else rows[:SHOWN_ROWS]
    csv = links.window_data(pipeline, start_s, "matrix", format="csv", **filters.query())
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Text(
                        _describe(presence, int(rows.size), int(shown.size)), size="sm", c="dimmed", className="grows"
                    ),
                    dmc.Anchor("CSV of these messages", href=csv, size="sm", target="_blank"),
                ],
                mb="xs",
                gap="sm",
            ),
            matrix_grid(GRID, result, presence, presence.messages(shown), address, services.trace_links),
        ]
    )


def _describe(presence: Presence, count: int, shown: int) -> str:
    total = int(presence.ids.size)
    summary = (
        fmt.counted(total, "message") if count == total else f"{fmt.count(count)} of {fmt.counted(total, 'message')}"
    )
    if shown < count:
        summary += f"; the first {fmt.count(shown)} shown, messages with gaps first"
    if presence.blocks.sample < (1 << 32):
        summary += f"; a sample of {fmt.percent(share_of(presence.blocks.sample))} of the ids, counts are not scaled"
    return summary + ". ● seen, with its lag; ✖ expected but not seen; ×2: two beacons."


def _without_log(result: WindowRead, address: Address, traces: TraceLinks, why: str) -> Part:
    """Names of missing messages are kept with the result, for a while."""
    if result.missing:
        summary = "The messages that its result lists as missing are shown instead, 1,000 at most."
    elif result.window is not None and result.window.verdict is None:
        summary = "The window is not closed yet, so there is no other data on individual messages."
    else:
        summary = "Its result lists no missing messages, or their names have expired."
    parts: list[Any] = [alert("No matrix: its beacons cannot be read", f"{why} {summary}", "orange", "!")]
    return html.Div([*parts, missing_grid(GRID, result, address, traces) if result.missing else None])
