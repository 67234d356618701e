"""The tabs of the alerts page, drawn from what was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, alert, aria, badge, pages, table
from dashboard.pages.incident.act_links import Do, act_link
from dashboard.pages.incident.cards import OUTCOMES, at, cards, failures, pipeline_link, severity_badge, when
from dashboard.queries.alerts import Board, IncidentHistory, Pending
from dashboard.queries.deliveries import Deliveries
from dashboard.request import links
from dashboard.request.current_user import Person
from dashboard.request.links import Address
from lagloss_server.base import format as fmt
from lagloss_server.incidents.actions import Silence
from lagloss_server.incidents.deliveries import Delivery
from lagloss_server.incidents.incident import Incident
from lagloss_server.incidents.response_times import Times
from lagloss_server.store.ownership import LeaseHolder

LEADS_FOR_S: Final = 30.0
"""An alerter without a heartbeat for this long no longer leads: it sends one every 2 s."""


class Tab(StrEnum):
    """In the address as `tab`."""

    FIRING = "firing"
    PENDING = "pending"
    SILENCED = "silenced"
    HISTORY = "history"
    DELIVERIES = "deliveries"
    SILENCES = "silences"
    BACKTEST = "backtest"

    @classmethod
    def of_address(cls, address: Address) -> Tab:
        tab = address.query.get("tab")
        return cls(tab) if tab in list(cls) else cls.FIRING


def tabs(address: Address, board: Board) -> Part:
    """Links to the tabs, with how much there is behind each."""
    counts = board.counts
    numbers = {
        Tab.FIRING: counts.firing,
        Tab.PENDING: counts.pending,
        Tab.SILENCED: counts.silenced,
        Tab.HISTORY: counts.history,
        Tab.DELIVERIES: counts.undelivered,
        Tab.SILENCES: counts.silences,
        Tab.BACKTEST: None,
    }
    shown = Tab.of_address(address)
    return html.Nav(
        dmc.Group([_tab(tab, number, tab == shown, address) for tab, number in numbers.items()], gap="xs"),
        className="alert-tabs",
        **aria(label="alerts"),
    )


def _tab(tab: Tab, number: int | None, is_shown: bool, address: Address) -> Part:
    about = ""
    if number is not None:
        about = f" {number} undelivered" if tab == Tab.DELIVERIES and number else f" {number}"
        about = "" if tab == Tab.DELIVERIES and not number else about
    marks: dict[str, Any] = aria(current="page") if is_shown else {}
    href = address.asking(tab=tab, page=None, do=None, of=None).href
    return dmc.Anchor(f"{tab.capitalize()}{about}", href=href, className="nav-link alert-tab", **marks)


def no_alerter(leader: LeaseHolder | None, address: Address, now_s: float) -> Part | None:
    """Return a banner if no alerter leads."""
    if leader is not None and now_s - leader.well_at.timestamp() < LEADS_FOR_S:
        return None
    why: list[Any] = ["No alerter has become leader yet."]
    if leader is not None:
        why = [f"The last leader, on {leader.host}, sent its last heartbeat at ", at(leader.well_at, address.zone), "."]
    commands = [dmc.Code("lagloss up"), ", or ", dmc.Code("python -m alerting"), "."]
    summary = [*why, " No rules are evaluated and no notifications are sent until you start one: ", *commands]
    return alert("No active alerter", summary, "red", "✖")


def firing(board: Board, address: Address, person: Person, now_s: float) -> Part:
    if not board.firing:
        return _none("Nothing is firing", "No rule has an open incident with notifications.")
    return cards(board.firing, address, person, now_s)


def silenced(board: Board, address: Address, person: Person, now_s: float) -> Part:
    if not board.withheld:
        summary = "No open incident is withheld by a silence, maintenance, or another incident."
        return _none("Nothing is withheld", summary)
    return cards(board.withheld, address, person, now_s)


def pending(board: Board, address: Address) -> Part:
    if not board.pending:
        return _none("Nothing is pending", "No rule is in breach without an incident.")
    heads = ("Severity", "Pipeline", "Rule", "Breach", "Windows", "Newest window")
    return table("rules in breach without an incident", heads, [_pending(breach, address) for breach in board.pending])


def _pending(breach: Pending, address: Address) -> list[Part]:
    window = address.to(links.window(breach.pipeline, breach.last_window_s))
    return [
        severity_badge(breach.severity),
        pipeline_link(breach.pipeline, address),
        html.Span(breach.rule, className="mono"),
        breach.text,
        f"{breach.breaches} of the last {breach.of}; {breach.needed} open an incident",
        dmc.Anchor(when(breach.last_window_s, address.zone), href=window.href, inherit=True),
    ]


def history(incident_history: IncidentHistory, address: Address) -> list[Part | None]:
    shown: Part = _none("No resolved incidents", "No incident opened in this range has been resolved.")
    if incident_history.incidents:
        heads = ("Opened", "Severity", "Pipeline", "Rule", "Worst", "Acknowledged", "Duration", "Resolution")
        shown = table(
            "resolved incidents", heads, [_resolved(incident, address) for incident in incident_history.incidents]
        )
    return [_times(incident_history.times), shown, pages(incident_history.page, incident_history.total, address)]


def _times(times: Times) -> Part:
    facts = (
        ("opened in this range", f"{times.incidents}"),
        ("acknowledged", f"{times.acknowledged}"),
        ("MTTA, mean (median)", _mean(times.mean_to_acknowledge_s, times.median_to_acknowledge_s)),
        ("MTTR, mean (median)", _mean(times.mean_to_resolve_s, times.median_to_resolve_s)),
        ("revised (no breach)", f"{times.revised}"),
    )
    tiles = [
        dmc.Paper([dmc.Text(value, fw=700, fz=18), dmc.Text(name, size="xs")], p="xs", className="tile")
        for name, value in facts
    ]
    return dmc.Group(tiles, gap="sm", mb="sm")


def _mean(mean_s: float | None, median_s: float | None) -> str:
    if mean_s is None or median_s is None:
        return fmt.NOTHING
    return f"{fmt.duration_s(mean_s)} ({fmt.duration_s(median_s)})"


def _resolved(incident: Incident, address: Address) -> list[Part]:
    lasted = (incident.resolved_at - incident.opened_at).total_seconds() if incident.resolved_at else None
    return [
        dmc.Anchor(
            at(incident.opened_at, address.zone), href=address.to(links.incident(str(incident.id))).href, inherit=True
        ),
        severity_badge(incident.severity),
        pipeline_link(incident.pipeline, address),
        html.Span(incident.rule, className="mono"),
        incident.text,
        f"by {incident.acknowledged_by}" if incident.acknowledged_at else "not acknowledged",
        fmt.NOTHING if lasted is None else fmt.duration_s(lasted),
        incident.resolved_because or fmt.NOTHING,
    ]


def deliveries(deliveries: Deliveries, failed: Sequence[Delivery], address: Address, now_s: float) -> list[Part | None]:
    """`failed`: those of the last 7 days, whatever is filtered."""
    shown: Part = _none("No notifications", "No notification was sent in this range, and none is queued.")
    if deliveries.deliveries:
        heads = ("Outcome", "Receiver", "About", "Change", "Attempts", "When", "Last error")
        shown = table("deliveries", heads, [_delivery(delivery, address) for delivery in deliveries.deliveries])
    return [failures(failed, address, now_s), shown, pages(deliveries.page, deliveries.total, address)]


def _delivery(delivery: Delivery, address: Address) -> list[Part]:
    moment: datetime = delivery.done_at or delivery.created_at
    summary: list[Any] = [at(moment, address.zone)]
    if delivery.next_attempt_at is not None:
        summary = ["queued ", *summary, ", next attempt ", at(delivery.next_attempt_at, address.zone)]
    return [
        badge(*OUTCOMES.get(delivery.outcome, OUTCOMES["dropped"])),
        delivery.receiver,
        f"{delivery.pipeline} {delivery.rule}" if delivery.pipeline else f"a {delivery.change}",
        delivery.change,
        str(delivery.attempts),
        html.Span(summary),
        html.Span(delivery.last_error or fmt.NOTHING, className="breaks"),
    ]


def silences(silences: Sequence[Silence], address: Address, person: Person) -> Part:
    if not silences:
        return _none("No silences", "No silence is active.")
    heads = ("", "Matchers", "Until", "By", "Reason")
    return table("active silences", heads, [_silence(silence, address, person) for silence in silences])


def _silence(silence: Silence, address: Address, person: Person) -> list[Part]:
    return [
        act_link("End", Do.END_SILENCE, silence.id, address, person),
        html.Span(" ".join(silence.matchers), className="mono"),
        at(silence.ends_at, address.zone),
        silence.author,
        silence.reason,
    ]


def _none(title: str, summary: str) -> Part:
    return alert(title, summary, "gray", "○")


DRAWN_OF_BOARD: Final[dict[Tab, Callable[[Board, Address, Person, float], Part]]] = {
    Tab.FIRING: firing,
    Tab.PENDING: lambda board, address, _person, _now_s: pending(board, address),
    Tab.SILENCED: silenced,
    Tab.SILENCES: lambda board, address, person, _now_s: silences(board.silences, address, person),
}
"""Tabs that need nothing but the board."""
