"""The time range that a view shows: the last so much, or from one moment to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lagloss.wire.format import WINDOW_S
from lagloss_server.base.errors import BadSpan, BadTime
from lagloss_server.base.times import parse_time_s
from lagloss_server.model.time_range import TimeRange

RANGES_S: Final = {
    "15m": 900,
    "1h": 3_600,
    "3h": 10_800,
    "6h": 21_600,
    "24h": 86_400,
    "7d": 604_800,
    "30d": 2_592_000,
    "90d": 7_776_000,
}
DEFAULT_RANGE: Final = "1h"
MAX_SPAN_S: Final = 800 * 86_400
"""A little more than roll-ups are kept by default."""


@dataclass(frozen=True, slots=True)
class ShownRange(TimeRange):
    """A time range on whole minutes. `range`: its name among RANGES_S if it ends now, else None."""

    range: str | None = None

    def query(self) -> dict[str, str]:
        """Return how a URL says it: a named range moves on with the clock, two moments stand still."""
        if self.range is not None:
            return {"range": self.range}
        bounds = self.bounds()
        return {"from": bounds["from"], "to": bounds["to"]}

    def pinned(self) -> ShownRange:
        """Return the same time, standing still."""
        return ShownRange(self.from_s, self.to_s)


def last(name: str, now_s: float) -> ShownRange:
    """Return the named range up to and with the minute that is running."""
    to_s = int(now_s) // WINDOW_S * WINDOW_S + WINDOW_S
    return ShownRange(to_s - RANGES_S[name], to_s, name)


def requested_range(query: Mapping[str, str], now_s: float, default: str = DEFAULT_RANGE) -> ShownRange:
    """Return the range that `range`, or `from` and `to` (now where it is left out), ask for.

    Raises:
        BadTime: a moment cannot be read.
        BadSpan: they are not a range.
    """
    if "from" not in query:
        if "to" in query:
            raise BadSpan(text=query["to"], expected="`from` together with `to`")
        name = query.get("range", default)
        if name not in RANGES_S:
            raise BadSpan(text=name, expected=f"one of {', '.join(RANGES_S)}")
        return last(name, now_s)
    from_s, to_s = parse_time_s(query["from"], now_s), parse_time_s(query.get("to", "now"), now_s)
    span = ShownRange(int(from_s) // WINDOW_S * WINDOW_S, -(-int(to_s) // WINDOW_S) * WINDOW_S)
    if not 0 < span.length_s <= MAX_SPAN_S:
        raise BadSpan(text=f"{query['from']} to {query.get('to', 'now')}", expected="a range of 1 minute to 800 days")
    return span


def shown_range(query: Mapping[str, str], now_s: float, default: str = DEFAULT_RANGE) -> ShownRange:
    """Return the range as `requested_range`, or the default if it is invalid: a page shows something whatever its URL
    says."""
    try:
        return requested_range(query, now_s, default)
    except (BadTime, BadSpan):
        return last(default, now_s)
