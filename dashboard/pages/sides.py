"""Sides of a graph that is cut where ids are new: the verdict and the numbers of each."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html

from dashboard.format import VERDICTS
from dashboard.pages.base import Part, aria
from lagloss_server.base import format as fmt
from lagloss_server.model.window import ListedWindow, SideCounts

_HEADS = ("side", "verdict", "messages", "lost", "delivered", "pending")


def sides(window: ListedWindow) -> Part | None:
    """Return the numbers of each side of a window, in the order of the flow; None where there is one."""
    found = window.sides
    if len(found) < 2:
        return None
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(name) for name in _HEADS]))
    body = dmc.TableTbody([dmc.TableTr([dmc.TableTd(cell) for cell in _side(side)]) for side in found])
    table = dmc.Table([head, body], verticalSpacing=4, className="facts")
    return html.Div(table, className="wide", tabIndex=0, role="region", **aria(label="Sides of the graph"))


def _side(side: SideCounts) -> list[str]:
    look = VERDICTS[side.verdict or "open"]
    return [
        side.name,
        f"{look.icon} {look.word}",
        fmt.count(side.messages),
        fmt.percent_interval(side.loss_ratio),
        fmt.count(side.delivered),
        fmt.count(side.pending),
    ]
