"""Presenting windows on the command line: the promised document, a table, numbers a person can read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.table import Column, Table

from lagloss.definition import Definition


def contract_document(window: dict[str, Any]) -> dict[str, Any]:
    """A window's fields in the order and number that the command line promises."""
    promised = {
        "pipeline": window["pipeline"],
        "window_start": window["window_start"],
        "state": window["state"],
        "revision": window["revision"],
    }
    rest = {name: value for name, value in window.items() if name not in (*promised, "history", "closed_at")}
    names = ("verdict", "reasons", "proof", "sample")  # the last is not in documents of older versions
    head: dict[str, Any] = {name: rest.pop(name) for name in names if name in rest}
    return {**promised, **head, "closed_at": window["closed_at"], **rest}


def breaches(window: dict[str, Any], definition: Definition) -> bool:
    """Whether a closed window breaches the pipeline's SLA: verdict `loss`, or late."""
    if window["state"] == "open":
        return False
    return window["verdict"] == "loss" or is_late(window["e2e_lag_ms"], window["on_time_share"], definition)


def is_late(e2e_lag_ms: Mapping[str, float | None], on_time_share: float | None, definition: Definition) -> bool:
    """Whether a closed window's lag percentile is above the SLA's target.

    A percentile that results do not hold (other than 50, 95 and 99) is told by the share that was on time.
    """
    lag = definition.spec.sla.lag
    name = f"p{lag.percentile:g}"
    if name in e2e_lag_ms:
        measured = e2e_lag_ms[name]
        return measured is not None and measured > lag.target
    return on_time_share is not None and on_time_share < lag.percentile / 100


def windows_table(windows: Iterable[dict[str, Any]]) -> Table:
    """The windows as a table for a terminal."""
    names = ("window (UTC)", "state", "verdict", "messages", "delivered", "lost", "loss", "E2E p95")
    table = Table(*(Column(name, no_wrap=True) for name in names), "reasons", box=None)
    for window in windows:
        lost, ratio, lag = window["lost"], window["loss_ratio"], window["e2e_lag_ms"]["p95"]
        table.add_row(
            window["window_start"].replace("T", " ").removesuffix(":00Z"),
            window["state"] if window["revision"] < 2 else f"{window['state']} r{window['revision']}",
            window["verdict"] or "–",
            str(window["messages"]),
            "–" if window["delivered"] is None else str(window["delivered"]),
            "–" if lost is None else _interval(lost["min"], lost["max"], str),
            "–" if ratio is None or ratio["min"] is None else _interval(ratio["min"], ratio["max"], _percent),
            "–" if lag is None else duration(lag),
            ", ".join([*_reasons(window), *_clocks(window)]),
        )
    return table


def _reasons(window: dict[str, Any]) -> list[str]:
    """The reasons, of which `sample` says how large the sample is."""
    return [sampled(window) if reason == "sample" else reason for reason in window["reasons"]]


def sampled(window: dict[str, Any]) -> str:
    """`sampled 10 %`; a window that was stored before results told their sample is just `sampled`."""
    return f"sampled {percent_of_ids(window['sample'])}" if "sample" in window else "sampled"


def percent_of_ids(sample: float) -> str:
    """A sample as a person reads it."""
    return f"{100 * sample:.3g} %"


def _clocks(window: dict[str, Any]) -> list[str]:
    """A word where hosts' clocks disagree, since what is missing then stays pending for that much longer."""
    apart_ms = window.get("clock_skew_ms")
    return [f"clocks {duration(apart_ms)} apart"] if apart_ms else []


def _interval(low: Any, high: Any, show: Any) -> str:
    return str(show(low)) if low == high else f"{show(low)} to {show(high)}"


def _percent(share: float) -> str:
    return f"{share:.2%}"


def duration(ms: float) -> str:
    """A lag as a person reads it: 12.3 ms, 1.2 s, 4.5 min."""
    size = abs(ms)
    if size < 1_000:
        return f"{ms:.3g} ms"
    return f"{ms / 1_000:.3g} s" if size < 120_000 else f"{ms / 60_000:.3g} min"
