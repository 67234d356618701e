"""A range of time: the one value for "from here to there" of windows, hours, reports and views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.window import rfc3339

FromTo = TypedDict("FromTo", {"from": str, "to": str})
"""The bounds of a document. (A call, since no attribute of a class can be named `from`.)"""


@dataclass(frozen=True, slots=True, order=True)
class TimeRange:
    """[from_s, to_s) in epoch s: `from_s` is in the range, `to_s` is not. A window is in it if its start is.

    Ranges sort by their start. A range of something (`RangeTotal`, `SlaPeriod`, `CalendarRange`) is a subclass.
    """

    from_s: int
    to_s: int

    @property
    def length_s(self) -> int:
        return self.to_s - self.from_s

    @property
    def minutes(self) -> int:
        """The number of windows that start in it, closed or not."""
        return -(-self.to_s // WINDOW_S) - -(-self.from_s // WINDOW_S)

    def contains(self, other: TimeRange) -> bool:
        return self.from_s <= other.from_s and other.to_s <= self.to_s

    def clipped(self, from_s: int, to_s: int) -> TimeRange | None:
        """Return what of it lies in [from_s, to_s); None if nothing does."""
        early, late = max(self.from_s, from_s), min(self.to_s, to_s)
        return TimeRange(early, late) if early < late else None

    def bounds(self) -> FromTo:
        """Return `from` and `to` in RFC 3339, as URLs and documents have them."""
        return {"from": rfc3339(self.from_s), "to": rfc3339(self.to_s)}
