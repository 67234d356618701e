"""Breaches of a pipeline's SLA, by the numbers of a closed window."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lagloss_server.model.definition import Definition
from lagloss_server.model.window import HeldPercentile, Lags, ListedWindow, Percentiles

_HELD: Final[Mapping[float, HeldPercentile]] = {50: "p50", 95: "p95", 99: "p99"}


def held_percentile(percentile: float) -> HeldPercentile | None:
    """Return the name of this percentile in results; None if they do not hold it."""
    return _HELD.get(percentile)


def breaches(window: ListedWindow, definition: Definition) -> bool:
    """Return True if a closed window breaches the SLA: verdict `loss`, or late."""
    if window.state == "open":
        return False
    return window.verdict == "loss" or is_late(window.e2e_lag_ms, window.on_time_share, definition)


def is_late(e2e_lag_ms: Percentiles | Lags, on_time_share: float | None, definition: Definition) -> bool:
    """Return True if a closed window's lag percentile is above the SLA's target.

    A percentile that is not in results (other than 50, 95 and 99) is judged by the share that was on time.
    """
    lag = definition.spec.sla.lag
    name = held_percentile(lag.percentile)
    if name is None:
        return on_time_share is not None and on_time_share < lag.share
    measured: float | None = getattr(e2e_lag_ms, name)
    return measured is not None and measured > lag.target
