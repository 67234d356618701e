"""The set difference between two points of a window, as a part of its page."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, outward
from dashboard.queries.services import Services
from dashboard.queries.window import count_difference
from dashboard.queries.window_cache import UNREADABLE
from dashboard.request import links
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import IdsHidden, UnknownCheckpoint
from lagloss_server.base.trace_links import TraceLinks
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.difference import Difference, difference_in


def draw_difference(services: Services, pipeline: str, start_s: int, address: Address) -> Part:
    """Read the log: to be called in its threads. Raises UnknownPipeline."""
    source, target = address.query.get("a"), address.query.get("b")
    if not source or not target:
        return dmc.Text("Choose two checkpoints to list the messages at the first but not at the second.", c="dimmed")
    try:
        counted = count_difference(services.store, pipeline, start_s, source, target)
        difference = difference_in(
            services.logged.read(services.store, services.log, pipeline, start_s).blocks, source, target
        )
    except UnknownCheckpoint as error:
        return dmc.Text(str(error))
    except (IdsHidden, *UNREADABLE) as error:
        return _by_count(counted, source, target, str(error))
    return _by_name(difference, pipeline, start_s, address, services.trace_links)


def _by_count(counted: int | None, source: str, target: str, why: str) -> Part:
    """Count by the result's presence patterns, which are kept as long as the result."""
    if counted is None:
        return dmc.Text(f"Unknown: {why}")
    summary = f"{fmt.counted(counted, 'message')} at {source} but not at {target}, according to the window's result."
    return dmc.Text(f"{summary} Their names cannot be read: {why}")


def _by_name(difference: Difference, pipeline: str, start_s: int, address: Address, traces: TraceLinks) -> Part:
    csv = links.window_data(
        pipeline, start_s, "difference", from_=difference.source, to=difference.target, format="csv"
    )
    first = (
        f"; the first {fmt.count(len(difference.message_ids))} shown"
        if difference.count > len(difference.message_ids)
        else ""
    )
    names = [
        html.Li(
            [
                dmc.Anchor(name, href=_href(pipeline, start_s, name, address), size="sm", className="mono"),
                *_trace(traces.url(difference.traces.get(name), start_s)),
            ]
        )
        for name in difference.message_ids
    ]
    return html.Div(
        [
            dmc.Group(
                [
                    dmc.Text(
                        f"{fmt.counted(difference.count, 'message')} at {difference.source} but not at "
                        f"{difference.target}{first}.",
                        fw=600,
                    ),
                    dmc.Anchor("CSV of all names", href=csv, size="sm", target="_blank") if difference.count else None,
                ],
                gap="sm",
            ),
            html.Ul(names, className="names", tabIndex=0) if names else None,
        ]
    )


def _trace(url: str | None) -> list[Part]:
    return [] if url is None else [" ", outward("trace", url)]


def _href(pipeline: str, start_s: int, name: str, address: Address) -> str:
    return address.to(links.message(pipeline), id=name, around=rfc3339(start_s)).href
