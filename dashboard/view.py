"""What the page is asked to show, kept in its URL: `?pipeline=clicks&range=1h&window=2026-11-21T08:40:00Z&path=ga`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

RANGES_S: Final = {"15m": 900, "1h": 3_600, "3h": 10_800, "6h": 21_600, "24h": 86_400}
DEFAULT_RANGE: Final = "1h"
SLOWEST: Final = "slowest"
"""The path that is drawn when none is chosen: of each minute the one to the delivery with the highest p95."""
WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class View:
    """`window_s` None follows the newest closed window; `path` is a delivery node's name or SLOWEST."""

    pipeline: str | None = None
    range: str = DEFAULT_RANGE
    window_s: int | None = None
    path: str = SLOWEST

    @property
    def range_s(self) -> int:
        return RANGES_S[self.range]

    def bounds_s(self, now_s: float) -> tuple[int, int]:
        """[from, to) to show: up to now, unless the chosen window is older than that; then it stands in the middle."""
        to_s = int(now_s) // WINDOW_S * WINDOW_S + WINDOW_S
        if self.window_s is not None and self.window_s < to_s - self.range_s:
            to_s = min(to_s, self.window_s + self.range_s // 2 // WINDOW_S * WINDOW_S)
        return to_s - self.range_s, to_s

    def search(self) -> str:
        """The URL's query string, with its question mark."""
        asked = {"pipeline": self.pipeline, "range": self.range}
        if self.window_s is not None:
            asked["window"] = datetime.fromtimestamp(self.window_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.path != SLOWEST:
            asked["path"] = self.path
        return "?" + urlencode({key: value for key, value in asked.items() if value}, safe=":")

    def with_pipeline(self, name: str | None) -> View:
        """Another pipeline over the same range; window and path belong to the old one."""
        return self if name == self.pipeline else View(name, self.range)

    def with_range(self, name: str | None) -> View:
        return replace(self, range=name) if name in RANGES_S else self

    def with_path(self, name: str | None) -> View:
        return replace(self, path=name or SLOWEST)

    def with_window(self, window_s: int | None) -> View:
        return replace(self, window_s=window_s)


def parse_search(search: str | None) -> View:
    """The view a URL asks for; what cannot be read is left at its default."""
    asked = {key: values[-1] for key, values in parse_qs((search or "").removeprefix("?")).items()}
    view = View(pipeline=asked.get("pipeline")).with_range(asked.get("range")).with_path(asked.get("path"))
    try:
        moment = datetime.fromisoformat(asked.get("window", ""))
    except ValueError:
        return view
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return view.with_window(int(moment.timestamp()) // WINDOW_S * WINDOW_S)


def clicked_window_s(click: dict[str, Any] | None) -> int | None:
    """The minute of a click on a chart; charts place a minute's marks in its middle."""
    points = (click or {}).get("points") or []
    if not points:
        return None
    try:
        moment = datetime.fromisoformat(str(points[0]["x"]))
    except (KeyError, ValueError):
        return None
    return int(moment.replace(tzinfo=UTC).timestamp()) // WINDOW_S * WINDOW_S
