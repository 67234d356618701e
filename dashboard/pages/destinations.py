"""Destinations of a window: the numbers of each delivery checkpoint beside its targets."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, aria
from dashboard.queries.sla_periods import is_held, target_percentile
from lagloss_server import format as fmt
from lagloss_server.model.definition import Sla
from lagloss_server.model.window import loss_ratio_of


def destinations(window: dict[str, Any], sla: Sla) -> Part | None:
    """Return the numbers of each destination of a window beside its targets, the worst first; None for a single one,
    which the window's own numbers are of."""
    found = window["destinations"]
    if len(found) < 2:
        return None
    rows = [_destination(there, sla) for there in sorted(found, key=lambda there: _badness(there, sla), reverse=True)]
    heads = ("destination", "due", "lost", "E2E lag", "on time")
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(name) for name in heads]))
    body = dmc.TableTbody([dmc.TableTr([dmc.TableTd(cell) for cell in row]) for row in rows])
    table = dmc.Table([head, body], verticalSpacing=4, className="facts")
    return html.Div(table, className="wide", tabIndex=0, role="region", **aria(label="Destinations"))


def _destination(there: dict[str, Any], sla: Sla) -> list[str]:
    lag, loss = sla.lag_at(there["name"]), sla.loss_at(there["name"])
    percentile = target_percentile(lag)
    judged = "" if is_held(lag) else f" of {fmt.percentile(lag.percentile)}"
    lost = fmt.percent_interval(loss_ratio_of(there)) if there["lost"] else fmt.NOTHING
    return [
        there["name"],
        fmt.NOTHING if there["due"] is None else fmt.count(there["due"]),
        f"{lost} (target ≤ {fmt.percent(loss.max)})",
        f"{percentile} {fmt.duration(there['e2e_lag_ms'][percentile])} (target{judged} ≤ {fmt.duration(lag.target)})",
        fmt.percent(there["on_time_share"]),
    ]


def _badness(there: dict[str, Any], sla: Sla) -> tuple[float, float]:
    """Return how far a destination is beyond its loss target for certain, then its lag as a share of its target."""
    lag, loss = sla.lag_at(there["name"]), sla.loss_at(there["name"])
    lag_ms = there["e2e_lag_ms"][target_percentile(lag)] or 0.0
    lost = loss_ratio_of(there)["min"] or 0.0 if there["lost"] else 0.0
    return max(0.0, lost - loss.max), lag_ms / lag.target
