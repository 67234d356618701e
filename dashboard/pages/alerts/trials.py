"""Trials on the alerts page: a test of a receiver, and a backtest of a pipeline's rules."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from dashboard import actions as acts
from dashboard.backtesting import backtest
from dashboard.pages import notices
from dashboard.pages.base import Part, alert, live, step, table
from dashboard.pages.incident.cards import severity_badge, when
from dashboard.pages.notices import Failed
from dashboard.pages.shell import Shell
from dashboard.queries.services import Services
from dashboard.request.current_user import asking
from dashboard.request.links import Address
from dashboard.request.shown_range import shown_range
from dashboard.request.zones import Zone
from lagloss.errors import LaglossError
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import NoAlerter
from lagloss_server.base.times import parse_time_s
from lagloss_server.incidents.receiver_check import WAIT_S, CheckOutcome


class TrialId(StrEnum):
    """Ids of the trials; `TESTED` changes when a test is over."""

    RECEIVER = "test-receiver"
    TEST = "test-it"
    TESTED = "test-done"
    OUTCOME = "test-outcome"
    PIPELINE = "backtest-pipeline"
    BACKTEST = "backtest-it"
    FOUND = "backtest-found"


def test_panel() -> Part:
    return dmc.Paper(
        [
            dmc.Title("Test a receiver", order=2, fz=16, mb="xs"),
            dmc.Text(
                f"The alerter sends it a test notification. The result takes up to {WAIT_S:g} s.",
                size="sm",
                mb="xs",
            ),
            dcc.Store(id=TrialId.TESTED),
            dmc.Group(
                [
                    dmc.Select(id=TrialId.RECEIVER, data=[], label="Receiver", size="xs", w=200),
                    dmc.Button("Send a test", id=TrialId.TEST, size="xs"),
                ],
                align="end",
                mb="xs",
            ),
            live(TrialId.OUTCOME),
        ],
        p="sm",
        mt="sm",
        withBorder=True,
    )


def backtest_panel() -> Part:
    summary = (
        "Shows which incidents the current rules of the pipeline would have opened on the stored windows of "
        "the range in the header. Nothing is stored or sent."
    )
    return dmc.Paper(
        [
            dmc.Title("Backtest", order=2, fz=16, mb="xs"),
            dmc.Text(summary, size="sm", mb="xs"),
            dmc.Group(
                [
                    dmc.Select(id=TrialId.PIPELINE, data=[], label="Pipeline", size="xs", w=200, searchable=True),
                    dmc.Button("Run the backtest", id=TrialId.BACKTEST, size="xs"),
                ],
                align="end",
                mb="xs",
            ),
            live(TrialId.FOUND),
        ],
        p="sm",
        withBorder=True,
    )


def register(app: Dash, services: Services) -> None:
    _register_choices(app)
    _register_test(app, services)
    _register_backtest(app, services)


def _register_choices(app: Dash) -> None:
    @app.callback(
        Output(TrialId.PIPELINE, "data"),
        Output(TrialId.PIPELINE, "value"),
        Output(TrialId.TEST, "disabled"),
        Output(TrialId.BACKTEST, "disabled"),
        Input(Shell.PIPELINE, "data"),
        Input(Shell.URL, "search"),
        State(Shell.URL, "pathname"),
    )
    def fill(names: list[str] | None, search: str | None, pathname: str | None) -> tuple[Any, ...]:
        address = Address.parse(pathname, search)
        grants, is_viewer = asking().grants, asking().role != "operator"
        own = [name for name in names or () if is_viewer or grants.may_act_on(name)]
        return own, address.query.get("pipeline"), is_viewer or not grants.acts_on_all, is_viewer

    @app.callback(
        Output(Shell.URL, "href", allow_duplicate=True),
        Input(TrialId.PIPELINE, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        prevent_initial_call=True,
    )
    def choose(pipeline: str | None, pathname: str | None, search: str | None) -> str:
        address = Address.parse(pathname, search)
        if not pipeline:
            raise PreventUpdate
        return step(address, address.asking(pipeline=pipeline))


def _register_test(app: Dash, services: Services) -> None:
    @app.callback(
        Output(TrialId.OUTCOME, "children"),
        Output(TrialId.TESTED, "data"),
        Input(TrialId.TEST, "n_clicks"),
        State(TrialId.RECEIVER, "value"),
        running=[(Output(TrialId.TEST, "disabled"), True, False), (Output(TrialId.TEST, "loading"), True, False)],
        prevent_initial_call=True,
    )
    async def test(clicks: int | None, receiver: str | None) -> tuple[Any, float]:
        if not clicks:
            raise PreventUpdate
        if not receiver:
            return alert("No receiver chosen", "Choose one first.", "orange", "!"), time.time()
        try:
            outcome = await services.threads.trial(notices.attempt, acts.rehearse, services.store, receiver)
        except LaglossError as error:
            title = "Not sent by any alerter" if isinstance(error, NoAlerter) else "Action failed"
            return alert(title, str(error), "red", "✖"), time.time()
        shown = notices.not_done(outcome) if isinstance(outcome, Failed) else tested(receiver, outcome)
        return shown, time.time()


def tested(receiver: str, outcome: CheckOutcome) -> Part:
    """Show a receiver's answer to a test."""
    match outcome.outcome:
        case "sent":
            return alert("Sent", f"{receiver} accepted the test. Check that it has arrived.", "teal", "✔")
        case "refused":
            return alert("Refused", f"{receiver} refused the test: {outcome.error or 'no reason given'}", "red", "✖")
    summary = f"{receiver} has not accepted it yet ({outcome.error or 'no response'}); the alerter keeps trying."
    return alert("Not accepted yet", summary, "orange", "…")


def _register_backtest(app: Dash, services: Services) -> None:
    @app.callback(
        Output(TrialId.FOUND, "children"),
        Input(TrialId.BACKTEST, "n_clicks"),
        State(TrialId.PIPELINE, "value"),
        State(Shell.URL, "pathname"),
        State(Shell.URL, "search"),
        running=[
            (Output(TrialId.BACKTEST, "disabled"), True, False),
            (Output(TrialId.BACKTEST, "loading"), True, False),
        ],
        prevent_initial_call=True,
    )
    async def run(clicks: int | None, pipeline: str | None, pathname: str | None, search: str | None) -> Any:
        if not clicks:
            raise PreventUpdate
        address = Address.parse(pathname, search)
        if not pipeline:
            return alert("No pipeline chosen", "Choose one first.", "orange", "!")
        span = shown_range(address.query, time.time()).pinned()
        try:
            result = await services.threads.trial(
                notices.attempt, backtest, services.store, services.settings, pipeline, span
            )
        except LaglossError as error:
            return alert("Backtest failed", str(error), "red", "✖")
        return notices.not_done(result) if isinstance(result, Failed) else backtested(result, address.zone)


def backtested(result: Mapping[str, Any], zone: Zone) -> Part:
    """Show what would have been sent when, and what a backtest cannot know."""
    from_s, to_s = (parse_time_s(result[key]) for key in ("from", "to"))
    number = len(result["incidents"])
    summary = (
        f"{fmt.counted(number, 'incident')} of {result['pipeline']}, {zone.moment(from_s)} to "
        f"{zone.moment(to_s)}, on {fmt.count(result['windows'])} windows "
        f"({fmt.count(result['revisions'])} of them revised later)."
    )
    heads = ("Opened", "Resolved", "Severity", "Rule", "Worst", "Windows", "Where")
    shown = table(
        "incidents that would have opened", heads, [_would_be(incident, zone) for incident in result["incidents"]]
    )
    limits = [
        dmc.ListItem(
            f"{limit['rule']}: {'approximated from windows' if limit['tried'] else 'not tried'}; {limit['why']}"
        )
        for limit in result["limits"]
    ]
    return html.Div([dmc.Text(summary, fw=600), shown if number else None, dmc.List(limits, size="sm", mt="xs")])


def _would_be(incident: Mapping[str, Any], zone: Zone) -> list[Part]:
    over: list[Any] = ["open at the end"]
    if incident["resolved_at"]:
        over = [when(parse_time_s(incident["resolved_at"]), zone), f" ({incident['resolved_because']})"]
    silent = f" (inhibited by {', '.join(incident['inhibited_by'])})" if incident["inhibited_by"] else ""
    return [
        when(parse_time_s(incident["opened_at"]), zone),
        html.Span(over),
        severity_badge(incident["severity"]),
        html.Span([html.Span(incident["rule"], className="mono"), silent]),
        incident["text"],
        str(incident["windows"]["count"]),
        ", ".join(f"{place['kind']} {place['name']}" for place in incident["where"][:3]) or fmt.NOTHING,
    ]
