"""The demo's display while it runs: a live table on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lagloss_server.base import format as fmt
from lagloss_server.model.window import NONE_LOST, ListedWindow

SHOWN_WINDOWS: Final = 12
STATUS_EVERY_S: Final = 5.0
TITLES: Final = (
    "window",
    "messages",
    "E2E p95",
    "verdict",
    "lost: injected",
    "measured",
    "by place (injected/measured)",
)


@dataclass(slots=True)
class Picture:
    """The data to show. Windows by start (epoch seconds), as the ledger and as lagloss describe them."""

    line: str = "starting"
    live_from_s: int = 0
    dashboard: str = ""
    truths: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    windows: dict[int, ListedWindow] = field(default_factory=dict)

    def live(self) -> list[int]:
        """Return the starts of the windows with live traffic, oldest first."""
        starts = {start for start, truth in self.truths.items() if truth["messages"]}
        return sorted(start for start in starts if start >= self.live_from_s)

    def history(self) -> list[ListedWindow]:
        """Return the windows of the past that was sent at the start."""
        return [window for start, window in self.windows.items() if start < self.live_from_s and window.messages]


class DemoView(Protocol):
    """A display of the picture."""

    def __enter__(self) -> DemoView: ...
    def __exit__(self, *failure: object) -> None: ...
    def say(self, line: str) -> None:
        """Show a line for an event."""

    def show(self) -> None:
        """Show the changed picture."""


class LiveView:
    """Display on a terminal: a status line over the table of windows."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._live = Live(console=Console(), refresh_per_second=4, get_renderable=self._render)

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, line: str) -> None:
        self._picture.line = line
        self._live.console.print(f"  {line}", style="dim", highlight=False, markup=False)

    def show(self) -> None:
        self._live.refresh()

    def _render(self) -> Group:
        picture = self._picture
        parts: list[Any] = [Text(picture.line, style="bold")]
        if picture.dashboard:
            parts.append(Text(f"dashboard: {picture.dashboard}   (Ctrl-C stops everything)"))
        if picture.windows or picture.truths:
            parts.append(table_of(picture))
        return Group(*parts)


class PlainView:
    """Display into a pipe or a log: a line per event and closed window, and the status now and then."""

    def __init__(self, picture: Picture, *, to_stderr: bool) -> None:
        self._picture = picture
        self._out = sys.stderr if to_stderr else sys.stdout
        self._closed: dict[int, int] = {}
        self._next_status = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *failure: object) -> None:
        return

    def say(self, line: str) -> None:
        self._out.write(f"{datetime.now(UTC):%H:%M:%S}  {line}\n")
        self._out.flush()

    def show(self) -> None:
        for start in self._picture.live():
            window = self._picture.windows.get(start)
            if window is not None and window.state != "open" and self._closed.get(start) != window.revision:
                self._closed[start] = window.revision
                titled = zip(TITLES, row_of(start, self._picture.truths.get(start), window), strict=True)
                self.say("; ".join(f"{title} {text}" for title, text in titled if text))
        if time.monotonic() >= self._next_status:
            self._next_status = time.monotonic() + STATUS_EVERY_S
            self.say(self._picture.line)


def table_of(picture: Picture) -> Table:
    """Return a table of the newest windows, injected losses beside measured ones; the past as one row."""
    table = Table(*TITLES)
    past = picture.history()
    if past:
        closed = [window for window in past if window.state != "open"]
        starts = {window.start_s for window in past}
        injected = sum(picture.truths[start]["lost"] for start in starts if start in picture.truths)
        measured = sum(window.lost_min for window in closed)
        messages = sum(window.messages for window in past)
        closed_text = f"{len(closed)} of {len(past)} closed"
        lost = (fmt.count(injected), fmt.count(measured))
        table.add_row("the past hour", fmt.count(messages), "", closed_text, *lost, "", style="dim")
    for start in picture.live()[-SHOWN_WINDOWS:]:
        window = picture.windows.get(start)
        style = {"loss": "red", "ok": "green"}.get(window.verdict or "" if window else "", "")
        table.add_row(*row_of(start, picture.truths.get(start), window), style=style)
    return table


def row_of(start_s: int, truth: Mapping[str, Any] | None, window: ListedWindow | None) -> list[str]:
    """Return one window as text: its minute, messages, E2E p95, verdict, losses injected and measured, and by place."""
    minute = fmt.clock(start_s)
    injected = str(truth["lost"]) if truth else "0"
    if window is None or window.state == "open":
        messages = window.messages if window else (truth or {}).get("messages", 0)
        return [minute, fmt.count(messages), _lag(window), "open", injected, "", _by_place(truth, None)]
    measured = fmt.count_interval(window.lost)
    verdict = " ".join([window.verdict or "", *window.reasons])
    messages = fmt.count(window.messages)
    return [minute, messages, _lag(window), verdict, injected, measured, _by_place(truth, window)]


def _by_place(truth: Mapping[str, Any] | None, window: ListedWindow | None) -> str:
    injected = {place: count_of(lost) for place, lost in (truth or {}).get("lost_at", {}).items()}
    measured = dict(window.losses) if window is not None else {}
    texts = []
    for place in sorted({*injected, *measured}):
        measured_text = "…" if window is None else fmt.count_interval(measured.get(place, NONE_LOST))
        texts.append(f"{place.removeprefix('link ')} {injected.get(place, 0)}/{measured_text}")
    return ", ".join(texts)


def count_of(lost: int | Sequence[str]) -> int:
    """Return the losses at a place: the ledger's progress has counts, its full document names."""
    return lost if isinstance(lost, int) else len(lost)


def _lag(window: ListedWindow | None) -> str:
    p95_ms = None if window is None else window.e2e_lag_ms.p95
    return "" if p95_ms is None else fmt.duration(p95_ms)
