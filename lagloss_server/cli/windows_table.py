"""The table of `lagloss windows` for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Column, Table

from lagloss_server import format as fmt
from lagloss_server.model.window import loss_ratio_of


def windows_table(windows: Iterable[dict[str, Any]]) -> Table:
    """Lay out windows, one per row; below each the numbers of its destinations, sources and sides, if it has
    several."""
    names = ("window (UTC)", "state", "verdict", "messages", "delivered", "lost", "loss", "E2E p95")
    table = Table(*(Column(name, no_wrap=True) for name in names), "reasons", box=None)
    for window in windows:
        table.add_row(
            window["window_start"].replace("T", " ").removesuffix(":00Z"),
            window["state"] if window["revision"] < 2 else f"{window['state']} r{window['revision']}",
            window["verdict"] or fmt.NOTHING,
            fmt.count(window["messages"]),
            fmt.count(window["delivered"]),
            fmt.count_interval(window["lost"]),
            fmt.percent_interval(window["loss_ratio"]),
            fmt.duration(window["e2e_lag_ms"]["p95"]),
            ", ".join([*_reasons(window), *_order(window), *_clocks(window)]),
        )
        for row in [row for kind, word in _PARTS for row in _parts(window, kind, word)]:
            table.add_row(*row)
    return table


_PARTS = (("destinations", "at"), ("sources", "from"), ("sides", "side"))


def _parts(window: dict[str, Any], kind: str, word: str) -> list[tuple[str, ...]]:
    """Return a row for each of several; of a single one the window's own numbers are."""
    found = window.get(kind) or []
    return [
        (
            f"  {word} {there['name']}",
            "",
            there.get("verdict") or "",
            fmt.count(there["due"] if "due" in there else there["messages"]),
            fmt.count(there["delivered"]),
            fmt.count_interval(there["lost"]),
            fmt.percent_interval(loss_ratio_of(there)),
            fmt.duration(there["e2e_lag_ms"]["p95"]) if "e2e_lag_ms" in there else "",
            "",
        )
        for there in found
        if len(found) > 1 and there["lost"]
    ]


def _reasons(window: dict[str, Any]) -> list[str]:
    """Return the reasons, with the size of the sample at `sample`."""
    return [fmt.sampled(window["sample"]) if reason == "sample" else reason for reason in window["reasons"]]


def _order(window: dict[str, Any]) -> list[str]:
    """Return a note for each checkpoint with messages out of order."""
    found = ((there["name"], there.get("out_of_order")) for there in window["checkpoints"])
    return [f"{fmt.count(messages)} out of order at {name}" for name, messages in found if messages]


def _clocks(window: dict[str, Any]) -> list[str]:
    """Return a note if hosts' clocks disagree: a missing message then stays pending for that much longer."""
    apart_ms = window["clock_skew_ms"]
    return [f"clocks {fmt.duration(apart_ms)} apart"] if apart_ms else []
