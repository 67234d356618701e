"""Where a click, a zoom or a chosen path on the pipeline's page leads: to an address, like every step."""

from __future__ import annotations

from typing import Any, Final

from dashboard.figures.frame import SLOWEST
from dashboard.figures.time_axis import drawn_s
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import MAX_SPAN_S, ShownRange, shown_range
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import deliveries

_WIDER: Final = 3
"""A double click with nothing to go back to shows a span so many times as long."""


def of_click(address: Address, pipeline: str, click: Any) -> Address:
    """Return a minute's window; an hour or a day is shown as a span of its own."""
    clicked = _clicked(click)
    if clicked is None:
        return address
    start_s, length_s = clicked
    return of_bucket(address, pipeline, start_s, length_s)


def of_bucket(address: Address, pipeline: str, start_s: int, length_s: int) -> Address:
    """Return the address with more about one bucket."""
    if length_s == WINDOW_S:
        return address.to(links.window(pipeline, start_s))
    return address.over(ShownRange(start_s, start_s + length_s))


def of_zoom(address: Address, zoom: Any, offset_s: int) -> Address:
    """Return the span that was dragged over, in whole minutes."""
    ends = _dragged(zoom, offset_s)
    if ends is None:
        return address
    from_s = int(ends[0]) // WINDOW_S * WINDOW_S
    to_s = -(-int(ends[1]) // WINDOW_S) * WINDOW_S
    return address.over(ShownRange(from_s, max(to_s, from_s + WINDOW_S)))


def is_double_click(zoom: Any) -> bool:
    """Return whether the figure was double-clicked: plotly then asks for autorange."""
    return isinstance(zoom, dict) and bool(zoom.get("xaxis.autorange"))


def back(address: Address, before: list[str], now_s: float) -> tuple[Address, list[str]]:
    """Return where a double click leads, and what is left to go back to: to what was shown before the last zoom, else
    to a wider span around this one. `before`: queries of the page, the last zoom's last."""
    earlier = list(before)
    while earlier:
        target = Address.parse(address.path, earlier.pop())
        if target.query != address.query:
            return target, earlier
    span = shown_range(address.query, now_s)
    wider_s = min(_WIDER * span.length_s, MAX_SPAN_S)
    now_end_s = -(-int(now_s) // WINDOW_S) * WINDOW_S
    # wider on both sides, in whole minutes, but no further into the future than it reached, or than now
    to_s = min(span.to_s + (wider_s - span.length_s) // 2 // WINDOW_S * WINDOW_S, max(span.to_s, now_end_s))
    return address.over(ShownRange(to_s - wider_s, to_s)), []


def of_path(address: Address, path: str | None) -> Address:
    """Return the path whose hops are stacked; the slowest is not named."""
    return address.asking(path=None if path in (None, SLOWEST) else path)


def _clicked(click: Any) -> tuple[int, int] | None:
    """Start and length (s) of the bucket that was clicked."""
    for point in click.get("points") or [] if isinstance(click, dict) else []:
        data = point.get("customdata")
        if isinstance(data, list) and len(data) >= 2 and all(isinstance(part, int) for part in data[:2]):
            return data[0], data[1]
    return None


def _dragged(zoom: Any, offset_s: int) -> tuple[float, float] | None:
    """[from, to) in epoch s; None where this was no zoom."""
    if not isinstance(zoom, dict):
        return None
    # Plotly sends a list for a range that code has set, two keys for one that was dragged
    ends = zoom.get("xaxis.range") or [zoom.get("xaxis.range[0]"), zoom.get("xaxis.range[1]")]
    try:
        from_s, to_s = (drawn_s(end, offset_s) for end in ends)
    except (TypeError, ValueError):
        return None
    return min(from_s, to_s), max(from_s, to_s)


def path_of(address: Address, graph: Graph) -> str:
    """Return the path that the address names: a delivery node, or SLOWEST."""
    path = address.query.get("path", SLOWEST)
    return path if path in deliveries(graph) else SLOWEST
