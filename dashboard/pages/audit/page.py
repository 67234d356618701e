"""The audit trail: who did what, or looked at message ids, when and from where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, alert, live, page_of, pages, table
from dashboard.pages.incident.cards import at, pipeline_link
from dashboard.pages.opening import at_entries
from dashboard.pages.page import Control, Instead, Page, Panel, Visit, pipeline_names
from dashboard.queries.audit import AuditEntries, AuditEntry, AuditFilters, read_audit
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import NotAllowed
from lagloss_server.store.audit import ACTIONS

_SHOWN_PIPELINES: Final = 5
_KNOWN: Final = {
    "local": "password login",
    "oidc": "identity provider",
    "proxy": "proxy",
    "token": "token",
    "machine": "local process on the collector's host",
    "command": "command line",
    "none": "no login",
}


class AuditId(StrEnum):
    """Ids of this page."""

    NOTICE = "audit-notice"
    ACTOR = "audit-actor"
    ACTION = "audit-action"
    PIPELINE = "audit-pipeline"
    CONTENT = "audit-content"


def frame(_params: Mapping[str, str], address: Address) -> Part:
    filters = filters_of(address)
    actor = dmc.TextInput(
        id=AuditId.ACTOR,
        placeholder="anybody",
        value=filters.actor or "",
        debounce=True,
        label="User",
        size="xs",
        w=170,
    )
    actions = [{"value": action, "label": words} for action, words in ACTIONS.items()]
    return html.Div(
        [
            dmc.Title("Audit", order=1, fz=22, mb="xs"),
            live(AuditId.NOTICE),
            dmc.Group(
                [
                    actor,
                    _select(AuditId.ACTION, "Action", actions, filters.action, 260),
                    _select(AuditId.PIPELINE, "Pipeline", _choices(filters, []), filters.pipeline, 200),
                ],
                align="end",
                gap="xs",
                my="sm",
            ),
            html.Div(id=AuditId.CONTENT),
        ]
    )


def _select(id_: AuditId, label: str, data: list[Any], value: str | None, width_px: int) -> Part:
    return dmc.Select(
        id=id_, label=label, data=data, value=value, placeholder="any", clearable=True, searchable=True, size="xs",
        w=width_px,
    )  # fmt: skip


def filters_of(address: Address) -> AuditFilters:
    """Parse the filters in the address; an unknown action filters nothing."""
    query = address.query
    action = query.get("action")
    return AuditFilters(
        query.get("actor") or None, action if action in ACTIONS else None, query.get("pipeline") or None
    )


def _choices(filters: AuditFilters, names: list[str]) -> list[str]:
    """Return the pipelines to choose from; one that is chosen stays, there or not."""
    return sorted({*names, *([filters.pipeline] if filters.pipeline else [])})


def read(visit: Visit) -> AuditEntries:
    """Read the entries that the address asks for.

    Raises:
        Instead: there are none, or the reader may not see them.
    """
    address = visit.address
    try:
        entries = read_audit(
            visit.store, filters_of(address), shown_range(address.query, visit.now_s), page_of(address)
        )
    except NotAllowed as error:
        raise Instead(alert("Operators only", str(error), "orange", "!")) from None
    if not entries.entries:
        raise Instead(alert("No entries", "No matching entries in this range.", "gray", "○"))
    return entries


def _trail(entries: AuditEntries, visit: Visit) -> Part:
    address = visit.address
    columns = ("Time", "User", "Address", "Action", "Object", "Pipelines", "Details")
    rows = [_row(entry, address) for entry in entries.entries]
    return html.Div([table("audit trail", columns, rows), pages(entries.page, entries.total, address)])


def _row(entry: AuditEntry, address: Address) -> list[Part]:
    shown = [part for name in entry.pipelines[:_SHOWN_PIPELINES] for part in (", ", pipeline_link(name, address))][1:]
    more = len(entry.pipelines) - _SHOWN_PIPELINES
    return [
        at(entry.at, address.zone),
        html.Span([html.B(entry.actor or fmt.NOTHING), f", {_KNOWN.get(entry.known_by, entry.known_by)}"]),
        entry.address or fmt.NOTHING,
        ACTIONS.get(entry.action, entry.action),  # type: ignore[call-overload]  # a newer version may know more
        _object(entry, address),
        html.Span([*shown, f" and {more} more"] if more > 0 else shown or fmt.NOTHING),
        html.Span(_words(entry.detail), className="breaks"),
    ]


def _object(entry: AuditEntry, address: Address) -> Part:
    """Return what it was done to; an incident as a link."""
    if entry.action in ("ids.incident", "incident.acknowledge"):
        href = address.to(links.incident(entry.object)).href
        return dmc.Anchor(entry.object[:8], href=href, inherit=True, className="mono")
    return html.Span(entry.object, className="mono breaks")


def _words(detail: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in detail.items()
    )


PAGE: Final = Page(
    name="audit",
    pattern=re.compile(re.escape(links.AUDIT)),
    title=lambda _params: "Audit",
    frame=frame,
    notice=AuditId.NOTICE,
    read=read,
    panels=(Panel(AuditId.CONTENT, _trail),),
    controls=(
        Control(
            AuditId.ACTOR,
            lambda address: filters_of(address).actor or "",
            lambda address, actor: address.asking(actor=(actor or "").strip() or None, page=None),
        ),
        Control(
            AuditId.ACTION,
            lambda address: filters_of(address).action,
            lambda address, action: address.asking(action=action, page=None),
        ),
        Control(
            AuditId.PIPELINE,
            lambda address: filters_of(address).pipeline,
            lambda address, pipeline: address.asking(pipeline=pipeline, page=None),
            choices=lambda services, address: _choices(filters_of(address), pipeline_names(services)),
        ),
    ),
    ranged=True,
    opens=at_entries,
)
