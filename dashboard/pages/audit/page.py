"""The audit trail: who did what, or looked at message ids, when and from where."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from dashboard.pages import notices, shell
from dashboard.pages.alerts.page import page_of
from dashboard.pages.alerts.tabs import pages
from dashboard.pages.base import Page, Part, alert, live, step
from dashboard.pages.incident.cards import at, pipeline_link, table
from dashboard.pages.notices import Failed
from dashboard.pages.shell import Shell
from dashboard.queries.audit import AuditEntry, AuditFilters, read_audit
from dashboard.queries.services import Services
from dashboard.request import links
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import NotAllowed
from lagloss_server.store.audit import ACTIONS
from lagloss_server.store.store import Store

_SHOWN_PIPELINES: Final = 5
_KNOWN: Final = {
    "local": "by password",
    "oidc": "by the provider",
    "proxy": "by the proxy",
    "token": "a token",
    "machine": "a process of the collector's machine",
    "command": "on the command line",
    "none": "without a login",
}


class AuditId(StrEnum):
    """Ids of this page."""

    NOTICE = "audit-notice"
    ACTOR = "audit-actor"
    ACTION = "audit-action"
    PIPELINE = "audit-pipeline"
    CONTENT = "audit-content"


def layout(_of: dict[str, str], here: Address) -> Part:
    filters = filters_of(here)
    actor = dmc.TextInput(
        id=AuditId.ACTOR, placeholder="anybody", value=filters.actor or "", debounce=True, label="Who", size="xs", w=170
    )
    actions = [{"value": action, "label": words} for action, words in ACTIONS.items()]
    return html.Div(
        [
            _title(),
            live(AuditId.NOTICE),
            dmc.Group(
                [
                    actor,
                    _select(AuditId.ACTION, "Did what", actions, filters.action, 260),
                    _select(AuditId.PIPELINE, "Of the pipeline", _choices(filters, []), filters.pipeline, 200),
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


def filters_of(here: Address) -> AuditFilters:
    """Parse the filters in the address; an unknown action filters nothing."""
    asked = here.query
    action = asked.get("action")
    return AuditFilters(
        asked.get("actor") or None, action if action in ACTIONS else None, asked.get("pipeline") or None
    )


def _choices(filters: AuditFilters, names: list[str]) -> list[str]:
    """Return the pipelines to choose from; one that is chosen stays, there or not."""
    return sorted({*names, *([filters.pipeline] if filters.pipeline else [])})


def draw(store: Store, here: Address, now_s: float) -> tuple[Part | None, Part | None]:
    """Return a notice, and the table."""
    try:
        found = read_audit(store, filters_of(here), shown_range(here.query, now_s), page_of(here))
    except NotAllowed as error:
        return alert("Not for viewers", str(error), "orange", "!"), None
    if not found.entries:
        return alert("Nothing", "Nothing like this was done in this range.", "gray", "○"), None
    heads = ("When", "Who", "From", "Did", "What", "Pipelines", "More")
    rows = [_row(entry, here) for entry in found.entries]
    return None, html.Div([table("audit trail", heads, rows), pages(found.page, found.total, here)])


def first(services: Services, _of: dict[str, str], here: Address, now_s: float) -> Part:
    return [_title(), *draw(services.store, here, now_s)]


def _title() -> Part:
    return dmc.Title("Audit", order=1, fz=22, mb="xs")


def _row(entry: AuditEntry, here: Address) -> list[Part]:
    shown = [part for name in entry.pipelines[:_SHOWN_PIPELINES] for part in (", ", pipeline_link(name, here))][1:]
    more = len(entry.pipelines) - _SHOWN_PIPELINES
    return [
        at(entry.at, here.zone),
        html.Span([html.B(entry.actor or fmt.NOTHING), f", {_KNOWN.get(entry.known_by, entry.known_by)}"]),
        entry.address or fmt.NOTHING,
        ACTIONS.get(entry.action, entry.action),  # type: ignore[call-overload]  # a newer version may know more
        _object(entry, here),
        html.Span([*shown, f" and {more} more"] if more > 0 else shown or fmt.NOTHING),
        html.Span(_words(entry.detail), className="breaks"),
    ]


def _object(entry: AuditEntry, here: Address) -> Part:
    """Return what it was done to; an incident as a link."""
    if entry.action in ("ids.incident", "incident.acknowledge"):
        href = here.to(links.incident(entry.object)).href
        return dmc.Anchor(entry.object[:8], href=href, inherit=True, className="mono")
    return html.Span(entry.object, className="mono breaks")


def _words(detail: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{name}: {' '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in detail.items()
    )


def register(app: Dash, services: Services) -> None:
    @app.callback(
        Output(AuditId.NOTICE, "children"),
        Output(AuditId.CONTENT, "children"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        running=shell.WHILE_BUSY,
    )
    async def show(pathname: str | None, search: str | None, _tick: int | None) -> tuple[Any, Any]:
        here, _ = PAGE.asked(pathname, search)
        now_s = time.time()
        drawn = await services.threads.read(notices.attempt, draw, services.store, here, now_s)
        if isinstance(drawn, Failed):
            return notices.query_failed(drawn, here.zone, now_s), no_update
        return drawn

    @app.callback(
        Output(AuditId.ACTOR, "value"),
        Output(AuditId.ACTION, "value"),
        Output(AuditId.PIPELINE, "data"),
        Output(AuditId.PIPELINE, "value"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    async def fill(search: str | None, pathname: str | None) -> tuple[Any, ...]:
        here, _ = PAGE.asked(pathname, search)
        names = await services.threads.read(notices.or_nothing, services.store.names) or []
        filters = filters_of(here)
        return filters.actor or "", filters.action, _choices(filters, names), filters.pipeline

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(AuditId.ACTOR, "value"),
        Input(AuditId.ACTION, "value"),
        Input(AuditId.PIPELINE, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def filter_by(
        actor: str | None, action: str | None, pipeline: str | None, pathname: str | None, search: str | None
    ) -> Any:
        here, _ = PAGE.asked(pathname, search)
        if AuditFilters((actor or "").strip() or None, action, pipeline) == filters_of(here):
            return no_update
        chosen = {"actor": (actor or "").strip() or None, "action": action, "pipeline": pipeline, "page": None}
        return step(here, here.asking(**chosen))


PAGE: Final = Page(
    name="audit",
    pattern=re.compile(re.escape(links.AUDIT)),
    title=lambda _of: "Audit",
    layout=layout,
    register=register,
    ranged=True,
    first=first,
    filled=f"#{AuditId.CONTENT} > *, #{AuditId.NOTICE} > *",
)
