"""The alerts page: incidents, silences, deliveries, trials."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import dash_mantine_components as dmc
from dash import Dash, Input, html

from dashboard.pages.alerts import trials as alerts_trials
from dashboard.pages.alerts.tabs import DRAWN_OF_BOARD, Tab, deliveries, history, no_alerter, tabs
from dashboard.pages.base import Part, aria, page_of
from dashboard.pages.incident import forms as incident_forms
from dashboard.pages.incident.act_links import why_not
from dashboard.pages.incident.forms import Form
from dashboard.pages.opening import at_incidents
from dashboard.pages.page import Control, Page, Panel, Visit, pipeline_names
from dashboard.queries.alerts import Board, IncidentHistory, read_board, read_history
from dashboard.queries.deliveries import Deliveries, read_deliveries
from dashboard.queries.incident_filters import IncidentFilters
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from lagloss_server.incidents.deliveries import Delivery, failed_deliveries
from lagloss_server.incidents.runbooks import KINDS

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
class AlertsRead:
    """The board, and what the tab in the address shows beside it."""

    board: Board
    history: IncidentHistory | None = None
    deliveries: Deliveries | None = None
    failed: Sequence[Delivery] = ()


def frame(_params: Mapping[str, str], _here: Address) -> Part:
    return html.Div(
        [
            dmc.Title("Alerts", order=1, fz=22, mb="xs"),
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


def filters_of(address: Address) -> IncidentFilters:
    """Parse the filters in the address; unknown kinds and severities filter nothing."""
    query = address.query
    kind, severity = query.get("kind"), query.get("severity")
    return IncidentFilters(
        query.get("pipeline") or None,
        kind if kind in KINDS else None,
        severity if severity in ("critical", "warning") else None,
    )


def read(visit: Visit) -> AlertsRead:
    """Read what the tab in the address shows."""
    store, address = visit.store, visit.address
    filters, span, tab = filters_of(address), shown_range(address.query, visit.now_s), Tab.of_address(address)
    board = read_board(store, filters, span)
    if tab == Tab.HISTORY:
        return AlertsRead(board, history=read_history(store, filters, span, page_of(address)))
    if tab == Tab.DELIVERIES:
        deliveries = read_deliveries(store, filters, span, page_of(address))
        return AlertsRead(board, deliveries=deliveries, failed=failed_deliveries(store))
    return AlertsRead(board)


def _notice(alerts: AlertsRead, visit: Visit) -> Part:
    return [no_alerter(alerts.board.leader, visit.address, visit.now_s), why_not(asking())]


def _content(alerts: AlertsRead, visit: Visit) -> Part:
    address, now_s, tab = visit.address, visit.now_s, Tab.of_address(visit.address)
    if alerts.history is not None:
        return history(alerts.history, address)
    if alerts.deliveries is not None:
        return deliveries(alerts.deliveries, alerts.failed, address, now_s)
    return DRAWN_OF_BOARD[tab](alerts.board, address, asking(), now_s) if tab in DRAWN_OF_BOARD else None


def _receivers(alerts: AlertsRead, _visit: Visit) -> list[str]:
    return [receiver.name for receiver in alerts.board.receivers]


def _pipelines(services: Services, address: Address) -> list[str]:
    """Return the pipelines to choose from; one that is chosen stays, there or not."""
    names, chosen = pipeline_names(services), filters_of(address).pipeline
    return names if chosen is None or chosen in names else [*names, chosen]


def _more(app: Dash, services: Services) -> None:
    incident_forms.register(app, services)
    alerts_trials.register(app, services)


def _display(id_: AlertsId, is_shown: Callable[[Tab], bool]) -> Control:
    """Return the style of a part that belongs to some tabs."""
    return Control(id_, lambda address: {} if is_shown(Tab.of_address(address)) else _HIDDEN, prop="style")


PAGE: Final = Page(
    name="alerts",
    pattern=re.compile(r"/alerts"),
    title=lambda _params: "Alerts",
    frame=frame,
    notice=Panel(AlertsId.NOTICE, _notice),
    read=read,
    panels=(
        Panel(AlertsId.CONTENT, _content),
        Panel(AlertsId.TABS, lambda alerts, visit: tabs(visit.address, alerts.board)),
        Panel(alerts_trials.TrialId.RECEIVER, _receivers, "data"),
    ),
    also=(Input(Form.DONE, "data"), Input(alerts_trials.TrialId.TESTED, "data")),
    controls=(
        Control(
            AlertsId.PIPELINE,
            lambda address: filters_of(address).pipeline,
            lambda address, pipeline: address.asking(pipeline=pipeline, page=None),
            choices=_pipelines,
        ),
        Control(
            AlertsId.KIND,
            lambda address: filters_of(address).kind,
            lambda address, kind: address.asking(kind=kind, page=None),
        ),
        Control(
            AlertsId.SEVERITY,
            lambda address: filters_of(address).severity,
            lambda address, severity: address.asking(severity=severity, page=None),
        ),
        _display(AlertsId.FILTERS, lambda tab: tab not in (Tab.SILENCES, Tab.BACKTEST)),
        _display(AlertsId.TEST, lambda tab: tab == Tab.DELIVERIES),
        _display(AlertsId.BACKTEST, lambda tab: tab == Tab.BACKTEST),
    ),
    more=_more,
    ranged=True,
    opens=at_incidents,
)
