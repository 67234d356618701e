"""The alerts page: incidents, silences, deliveries, trials."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html, no_update

from dashboard.pages import notices
from dashboard.pages.alerts import trials as alerts_trials
from dashboard.pages.alerts.tabs import DRAWN_OF_BOARD, Tab, deliveries, history, no_alerter, tabs
from dashboard.pages.base import Page, Part, aria
from dashboard.pages.incident import forms as incident_forms
from dashboard.pages.incident.act_links import why_not
from dashboard.pages.incident.forms import Form
from dashboard.pages.notices import Failed
from dashboard.pages.shell import Shell
from dashboard.queries.alerts import read_board, read_history
from dashboard.queries.deliveries import read_deliveries
from dashboard.queries.incident_filters import MAX_PAGE, IncidentFilters
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.incidents.deliveries import failed_deliveries
from lagloss_server.incidents.runbooks import KINDS
from lagloss_server.store.store import Store

_HIDDEN: Final = {"display": "none"}


class AlertsId(StrEnum):
    """Ids of this page."""

    NOTICE = "alerts-notice"
    TABS = "alerts-tabs"
    FILTERS = "alerts-filters"
    PIPELINE = "alerts-pipeline"
    KIND = "alerts-kind"
    SEVERITY = "alerts-severity"
    CONTENT = "alerts-content"
    TEST = "alerts-test"
    BACKTEST = "alerts-backtest"


@dataclass(frozen=True, slots=True)
class Drawn:
    """State that changes at each refresh."""

    notice: list[Part | None]
    tabs: Part
    content: Any
    receivers: list[str]


def layout(_of: dict[str, str], _here: Address) -> Part:
    return html.Div(
        [
            _title(),
            incident_forms.forms(),
            html.Div(id=AlertsId.NOTICE),
            html.Div(id=AlertsId.TABS),
            _filters(),
            html.Div(id=AlertsId.CONTENT),
            html.Div(alerts_trials.test_panel(), id=AlertsId.TEST, style=_HIDDEN),
            html.Div(alerts_trials.backtest_panel(), id=AlertsId.BACKTEST, style=_HIDDEN),
        ]
    )


def _filters() -> Part:
    def select(id_: AlertsId, label: str, data: list[str], shown: str | None = None) -> Part:
        return dmc.Select(
            id=id_, data=data, placeholder=f"any {shown or label}", clearable=True, searchable=True, size="xs", w=170,
            **aria(label=label),
        )  # fmt: skip

    return dmc.Group(
        [
            select(AlertsId.PIPELINE, "pipeline with alerts", [], "pipeline"),
            select(AlertsId.KIND, "kind of rule", list(KINDS)),
            select(AlertsId.SEVERITY, "severity", ["critical", "warning"]),
        ],
        id=AlertsId.FILTERS,
        gap="xs",
        my="sm",
    )


def filters_of(here: Address) -> IncidentFilters:
    """Parse the filters in the address; unknown kinds and severities filter nothing."""
    asked = here.query
    kind, severity = asked.get("kind"), asked.get("severity")
    return IncidentFilters(
        asked.get("pipeline") or None,
        kind if kind in KINDS else None,
        severity if severity in ("critical", "warning") else None,
    )


def page_of(here: Address) -> int:
    asked = here.query.get("page", "1")
    return min(int(asked), MAX_PAGE) if re.fullmatch(r"[1-9]\d{0,8}", asked) else 1


def draw(store: Store, here: Address, now_s: float) -> Drawn:
    """Read what the address asks for, and draws it."""
    person, filters, span, tab = asking(), filters_of(here), shown_range(here.query, now_s), Tab.of_address(here)
    board = read_board(store, filters, span)
    content: Any = None
    if tab in DRAWN_OF_BOARD:
        content = DRAWN_OF_BOARD[tab](board, here, person, now_s)
    elif tab == Tab.HISTORY:
        content = history(read_history(store, filters, span, page_of(here)), here)
    elif tab == Tab.DELIVERIES:
        found = read_deliveries(store, filters, span, page_of(here))
        content = deliveries(found, failed_deliveries(store), here, now_s)
    notice = [no_alerter(board.leader, here, now_s), why_not(person)]
    return Drawn(notice, tabs(here, board), content, [receiver.name for receiver in board.receivers])


def first(services: Services, _of: dict[str, str], here: Address, now_s: float) -> Part:
    drawn = draw(services.store, here, now_s)
    return [_title(), drawn.notice, drawn.tabs, drawn.content]


def _title() -> Part:
    return dmc.Title("Alerts", order=1, fz=22, mb="xs")


def register(app: Dash, services: Services) -> None:
    incident_forms.register(app, services)
    alerts_trials.register(app, services)
    _register_drawing(app, services)
    _register_filters(app, services)


def _register_drawing(app: Dash, services: Services) -> None:
    @app.callback(
        Output(AlertsId.NOTICE, "children"),
        Output(AlertsId.TABS, "children"),
        Output(AlertsId.CONTENT, "children"),
        Output(alerts_trials.TrialId.RECEIVER, "data"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
        Input(Shell.TICK, "n_intervals"),
        Input(Form.DONE, "data"),
        Input(alerts_trials.TrialId.TESTED, "data"),
    )
    async def show(pathname: str | None, search: str | None, *_: Any) -> tuple[Any, ...]:
        here, _of = PAGE.asked(pathname, search)
        now_s = time.time()
        drawn = await services.threads.read(notices.attempt, draw, services.store, here, now_s)
        if isinstance(drawn, Failed):
            return notices.query_failed(drawn, here.zone, now_s), no_update, no_update, no_update
        return drawn.notice, drawn.tabs, drawn.content, drawn.receivers


def _register_filters(app: Dash, services: Services) -> None:
    @app.callback(
        Output(AlertsId.PIPELINE, "data"),
        Output(AlertsId.PIPELINE, "value"),
        Output(AlertsId.KIND, "value"),
        Output(AlertsId.SEVERITY, "value"),
        Output(AlertsId.FILTERS, "style"),
        Output(AlertsId.TEST, "style"),
        Output(AlertsId.BACKTEST, "style"),
        Input(Shell.URL, "pathname"),
        Input(Shell.URL, "search"),
    )
    async def fill(pathname: str | None, search: str | None) -> tuple[Any, ...]:
        here, _ = PAGE.asked(pathname, search)
        names = await services.threads.read(notices.or_nothing, services.store.names) or []
        filters, tab = filters_of(here), Tab.of_address(here)
        of_deleted = {filters.pipeline} - {None, *names}
        return (
            [*names, *of_deleted],
            filters.pipeline,
            filters.kind,
            filters.severity,
            _HIDDEN if tab in (Tab.SILENCES, Tab.BACKTEST) else {},
            {} if tab == Tab.DELIVERIES else _HIDDEN,
            {} if tab == Tab.BACKTEST else _HIDDEN,
        )

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(AlertsId.PIPELINE, "value"),
        Input(AlertsId.KIND, "value"),
        Input(AlertsId.SEVERITY, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def filter_by(
        pipeline: str | None, kind: str | None, severity: str | None, pathname: str | None, search: str | None
    ) -> Any:
        here, _ = PAGE.asked(pathname, search)
        if IncidentFilters(pipeline, kind, severity) == filters_of(here):
            return no_update
        return here.asking(pipeline=pipeline, kind=kind, severity=severity, page=None).href


PAGE: Final = Page(
    name="alerts",
    pattern=re.compile(r"/alerts"),
    title=lambda _of: "Alerts",
    layout=layout,
    register=register,
    ranged=True,
    first=first,
    filled=f"#{AlertsId.CONTENT} > *, #{AlertsId.NOTICE} > *",
)
