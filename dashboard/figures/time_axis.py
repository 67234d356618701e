"""A time axis in the viewer's zone, at one fixed offset from UTC, so that no hour stands on it twice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Self

from dashboard.design import Palette
from dashboard.request.zones import Zone
from lagloss_server.base import format as fmt
from lagloss_server.model.time_range import TimeRange


@dataclass(frozen=True, slots=True)
class TimeAxis(TimeRange):
    """A time range, drawn `offset_s` ahead of UTC. Plotly knows no zones: it is given times of a clock
    that is `offset_s` ahead, as texts, since it would move numbers to the browser's zone."""

    offset_s: int
    offset: str

    @classmethod
    def over(cls, zone: Zone, from_s: int, to_s: int) -> Self:
        """Return the title with the offset that holds at the end."""
        ahead = zone.at(to_s).utcoffset() or timedelta(0)
        return cls(from_s, to_s, int(ahead.total_seconds()), zone.offset(to_s))

    def at(self, epoch_s: float) -> str:
        """Return where a moment is drawn."""
        return _text(epoch_s + self.offset_s)

    def clock(self, epoch_s: float) -> str:
        """`2026-11-21 09:40`, as the axis has it."""
        return fmt.clock(epoch_s + self.offset_s, date=True)

    def layout(self, colours: Palette, hover: str) -> dict[str, Any]:
        """`hover`: what stands behind the time where the mouse is."""
        return {
            "type": "date",
            "range": [self.at(self.from_s), self.at(self.to_s)],
            "title": {"text": f"time, {self.offset}", "standoff": 6},
            "hoverformat": f"%Y-%m-%d %H:%M {self.offset}{hover}",
            "tickformatstops": [
                {"dtickrange": [None, 43_200_000], "value": "%H:%M"},
                {"dtickrange": [43_200_000, None], "value": "%b %-d"},
            ],
            "showgrid": False,
            "ticks": "outside",
            "tickcolor": colours.grid,
            "linecolor": colours.grid,
            "nticks": 8,
            "showspikes": True,
            "spikemode": "across",
            "spikethickness": 1,
            "spikedash": "dot",
            "spikecolor": colours.dim,
        }


@lru_cache(20_000)
def _text(clock_s: float) -> str:
    return fmt.datetime_of(clock_s).replace(tzinfo=None).isoformat(" ")


def drawn_s(moment: str, offset_s: int) -> float:
    """Epoch s of a moment as plotly gives it, `2026-11-21 09:40:12.345`.

    Raises:
        ValueError: it is none.
    """
    return datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp() - offset_s
