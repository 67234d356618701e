"""Sources of a pipeline with several: the numbers of each, and the way to the same page over the messages of one."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash import html
from msgspec import UNSET

from dashboard.pages.base import Part, aria
from dashboard.queries.sla_periods import target_percentile
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.model.definition import Sla
from lagloss_server.model.window import ListedWindow, SourceCounts

_HEADS = ("source", "messages", "lost", "E2E lag", "on time")
_PARENTS = "parents not whole"


def sources(window: ListedWindow, sla: Sla) -> Part | None:
    """Return the numbers of each source of a window, the one that lost most of its messages first; None for a single
    one, which the window's own numbers are of."""
    found = window.sources
    if len(found) < 2:
        return None
    heads = (*_HEADS, _PARENTS) if any(there.parents_not_whole is not UNSET for there in found) else _HEADS
    rows = [_source(there, sla)[: len(heads)] for there in sorted(found, key=_lost_share, reverse=True)]
    head = dmc.TableThead(dmc.TableTr([dmc.TableTh(name) for name in heads]))
    body = dmc.TableTbody([dmc.TableTr([dmc.TableTd(cell) for cell in row]) for row in rows])
    table = dmc.Table([head, body], verticalSpacing=4, className="facts")
    return html.Div(table, className="wide", tabIndex=0, role="region", **aria(label="Sources"))


def _source(there: SourceCounts, sla: Sla) -> list[str]:
    percentile = target_percentile(sla.lag)
    return [
        there.name,
        fmt.count(there.messages),
        fmt.percent_interval(there.loss_ratio),
        f"{percentile} {fmt.duration(getattr(there.e2e_lag_ms, percentile))}",
        fmt.percent(there.on_time_share),
        fmt.count_interval(there.parents_not_whole or None),
    ]


def _lost_share(there: SourceCounts) -> float:
    return there.loss_ratio.min or 0.0 if there.loss_ratio else 0.0


def source_choice(here: Address, names: Sequence[str], chosen: str | None) -> Part | None:
    """Return links to the same page over all messages and over those of each source; None of a single one."""
    if len(names) < 2:
        return None
    ways = [("all", None), *((name, name) for name in names)]
    return html.Nav(
        ["Messages of: ", *(_way(here, text, name, is_current=name == chosen) for text, name in ways)],
        **aria(label="messages of a source"),
    )


def _way(here: Address, text: str, source: str | None, *, is_current: bool) -> Part:
    marks = aria(current="true") if is_current else {}
    href = here.asking(source=source).href
    return dmc.Anchor(text, href=href, size="sm", fw=700 if is_current else 400, className="nav-link", **marks)


def source_of(here: Address, names: Sequence[str]) -> str | None:
    """Return the source that the address names; None: all of them, also where it names none of these."""
    asked = here.query.get("source")
    return asked if len(names) > 1 and asked in names else None
