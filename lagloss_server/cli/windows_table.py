"""The table of `lagloss windows` for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Column, Table

from lagloss_server.base import format as fmt
from lagloss_server.model.window import DestinationCounts, ListedWindow, SideCounts, SourceCounts


def windows_table(windows: Iterable[ListedWindow]) -> Table:
    """Lay out windows, one per row; below each the numbers of its destinations, sources and sides, if it has
    several."""
    names = ("window (UTC)", "state", "verdict", "messages", "delivered", "lost", "loss", "E2E p95")
    table = Table(*(Column(name, no_wrap=True) for name in names), "reasons", box=None)
    for window in windows:
        table.add_row(
            window.window_start.replace("T", " ").removesuffix(":00Z"),
            window.state if window.revision < 2 else f"{window.state} r{window.revision}",
            window.verdict or fmt.NOTHING,
            fmt.count(window.messages),
            fmt.count(window.delivered),
            fmt.count_interval(window.lost),
            fmt.percent_interval(window.loss_ratio),
            fmt.duration(window.e2e_lag_ms.p95),
            ", ".join([*_reasons(window), *_order(window), *_clocks(window)]),
        )
        for word, parts in (("at", window.destinations), ("from", window.sources), ("side", window.sides)):
            for row in _parts(word, parts):
                table.add_row(*row)
    return table


def _parts(
    word: str, parts: Sequence[DestinationCounts] | Sequence[SourceCounts] | Sequence[SideCounts]
) -> list[tuple[str, ...]]:
    """Return a row for each of several; of a single one the window's own numbers are."""
    return [
        (
            f"  {word} {part.name}",
            "",
            part.verdict or "" if isinstance(part, SideCounts) else "",
            fmt.count(part.messages),
            fmt.count(part.delivered),
            fmt.count_interval(part.lost),
            fmt.percent_interval(part.loss_ratio),
            "" if isinstance(part, SideCounts) else fmt.duration(part.e2e_lag_ms.p95),
            "",
        )
        for part in parts
        if len(parts) > 1 and part.lost
    ]


def _reasons(window: ListedWindow) -> list[str]:
    """Return the reasons, with the size of the sample at `sample`."""
    return [fmt.sampled(window.sample) if reason == "sample" else reason for reason in window.reasons]


def _order(window: ListedWindow) -> list[str]:
    """Return a note for each checkpoint with messages out of order."""
    out_of_order = ((checkpoint.name, checkpoint.out_of_order) for checkpoint in window.checkpoints)
    return [f"{fmt.count(messages)} out of order at {name}" for name, messages in out_of_order if messages]


def _clocks(window: ListedWindow) -> list[str]:
    """Return a note if hosts' clocks disagree: a missing message then stays pending for that much longer."""
    apart_ms = window.clock_skew_ms
    return [f"clock skew {fmt.duration(apart_ms)}"] if apart_ms else []
