"""Destinations of a window: the numbers of each delivery checkpoint beside its targets."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, aria
from dashboard.queries.sla_periods import is_held, target_percentile
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Sla
from lagloss_server.model.window import DestinationCounts, ListedWindow


def destinations(window: ListedWindow, sla: Sla) -> Part | None:
    """Return the numbers of each destination of a window beside its targets, the worst first; None for a single one,
    which the window's own numbers are of."""
    found = window.destinations
    if len(found) < 2:
        return None
    rows = [_destination(there, sla) for there in sorted(found, key=lambda there: _badness(there, sla), reverse=True)]
    heads = ("destination", "due", "lost", "E2E lag", "on time")
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(name) for name in heads]))
    body = dmc.TableTbody([dmc.TableTr([dmc.TableTd(cell) for cell in row]) for row in rows])
    table = dmc.Table([head, body], verticalSpacing=4, className="facts")
    return html.Div(table, className="wide", tabIndex=0, role="region", **aria(label="Destinations"))


def _destination(there: DestinationCounts, sla: Sla) -> list[str]:
    lag, loss = sla.lag_at(there.name), sla.loss_at(there.name)
    percentile = target_percentile(lag)
    judged = "" if is_held(lag) else f" of {fmt.percentile(lag.percentile)}"
    lost, lag_ms = fmt.percent_interval(there.loss_ratio), getattr(there.e2e_lag_ms, percentile)
    return [
        there.name,
        fmt.NOTHING if there.due is None else fmt.count(there.due),
        f"{lost} (target ≤ {fmt.percent(loss.max)})",
        f"{percentile} {fmt.duration(lag_ms)} (target{judged} ≤ {fmt.duration(lag.target)})",
        fmt.percent(there.on_time_share),
    ]


def _badness(there: DestinationCounts, sla: Sla) -> tuple[float, float]:
    """Return how far a destination is beyond its loss target for certain, then its lag as a share of its target."""
    lag, loss = sla.lag_at(there.name), sla.loss_at(there.name)
    lag_ms = getattr(there.e2e_lag_ms, target_percentile(lag)) or 0.0
    lost = there.loss_ratio.min or 0.0 if there.loss_ratio else 0.0
    return max(0.0, lost - loss.max), lag_ms / lag.target
