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
    def of_address(cls, here: Address) -> Tab:
        asked = here.query.get("tab")
        return cls(asked) if asked in list(cls) else cls.FIRING


def tabs(here: Address, board: Board) -> Part:
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
    shown = Tab.of_address(here)
    return html.Nav(
        dmc.Group([_tab(tab, number, tab == shown, here) for tab, number in numbers.items()], gap="xs"),
        className="alert-tabs",
        **aria(label="alerts"),
    )


def _tab(tab: Tab, number: int | None, is_shown: bool, here: Address) -> Part:
    about = ""
    if number is not None:
        about = f" {number} undelivered" if tab == Tab.DELIVERIES and number else f" {number}"
        about = "" if tab == Tab.DELIVERIES and not number else about
    marks: dict[str, Any] = aria(current="page") if is_shown else {}
    href = here.asking(tab=tab, page=None, do=None, of=None).href
    return dmc.Anchor(f"{tab.capitalize()}{about}", href=href, className="nav-link alert-tab", **marks)


def no_alerter(leader: LeaseHolder | None, here: Address, now_s: float) -> Part | None:
    """Return a banner if no alerter leads."""
    if leader is not None and now_s - leader.well_at.timestamp() < LEADS_FOR_S:
        return None
    why: list[Any] = ["No alerter has led yet."]
    if leader is not None:
        why = [f"The last one that led, on {leader.host}, was well at ", at(leader.well_at, here.zone), "."]
    commands = [dmc.Code("lagloss up"), ", or ", dmc.Code("python -m alerting"), "."]
    summary = [*why, " No rule is judged and no notification sent until one runs: ", *commands]
    return alert("No alerter leads", summary, "red", "✖")


def firing(board: Board, here: Address, person: Person, now_s: float) -> Part:
    if not board.firing:
        return _none("Nothing is firing", "No rule has an open incident with notifications.")
    return cards(board.firing, here, person, now_s)


def silenced(board: Board, here: Address, person: Person, now_s: float) -> Part:
    if not board.withheld:
        summary = "No open incident is kept from its receivers by a silence, maintenance, or another incident."
        return _none("Nothing is withheld", summary)
    return cards(board.withheld, here, person, now_s)


def pending(board: Board, here: Address) -> Part:
    if not board.pending:
        return _none("Nothing is pending", "No rule has begun to breach without being an incident yet.")
    heads = ("Severity", "Pipeline", "Rule", "What", "Windows", "Newest breach")
    return table("rules that have begun to breach", heads, [_pending(each, here) for each in board.pending])


def _pending(each: Pending, here: Address) -> list[Part]:
    window = here.to(links.window(each.pipeline, each.last_window_s))
    return [
        severity_badge(each.severity),
        pipeline_link(each.pipeline, here),
        html.Span(each.rule, className="mono"),
        each.text,
        f"{each.breaches} of the last {each.of}; {each.needed} open an incident",
        dmc.Anchor(when(each.last_window_s, here.zone), href=window.href, inherit=True),
    ]


def history(found: IncidentHistory, here: Address) -> list[Part | None]:
    shown: Part = _none("Nothing was resolved", "No incident that was opened in this range is over.")
    if found.incidents:
        heads = ("Opened", "Severity", "Pipeline", "Rule", "Worst", "Acknowledged", "Lasted", "Ended")
        shown = table("resolved incidents", heads, [_resolved(each, here) for each in found.incidents])
    return [_times(found.times), shown, pages(found.page, found.total, here)]


def _times(times: Times) -> Part:
    facts = (
        ("opened in this range", f"{times.incidents}"),
        ("acknowledged", f"{times.acknowledged}"),
        ("MTTA, mean (median)", _mean(times.mean_to_acknowledge_s, times.median_to_acknowledge_s)),
        ("MTTR, mean (median)", _mean(times.mean_to_resolve_s, times.median_to_resolve_s)),
        ("revised: no breach after all", f"{times.revised}"),
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


def _resolved(incident: Incident, here: Address) -> list[Part]:
    lasted = (incident.resolved_at - incident.opened_at).total_seconds() if incident.resolved_at else None
    return [
        dmc.Anchor(
            at(incident.opened_at, here.zone), href=here.to(links.incident(str(incident.id))).href, inherit=True
        ),
        severity_badge(incident.severity),
        pipeline_link(incident.pipeline, here),
        html.Span(incident.rule, className="mono"),
        incident.text,
        f"by {incident.acknowledged_by}" if incident.acknowledged_at else "not acknowledged",
        fmt.NOTHING if lasted is None else fmt.duration_s(lasted),
        incident.resolved_because or fmt.NOTHING,
    ]


def deliveries(found: Deliveries, failed: Sequence[Delivery], here: Address, now_s: float) -> list[Part | None]:
    """`failed`: those of the last 7 days, whatever is filtered."""
    shown: Part = _none("Nothing was sent", "No notification was sent in this range, and none waits.")
    if found.deliveries:
        heads = ("Outcome", "Receiver", "About", "Change", "Attempts", "When", "Last error")
        shown = table("deliveries", heads, [_delivery(each, here) for each in found.deliveries])
    return [failures(failed, here, now_s), shown, pages(found.page, found.total, here)]


def _delivery(each: Delivery, here: Address) -> list[Part]:
    moment: datetime = each.done_at or each.created_at
    summary: list[Any] = [at(moment, here.zone)]
    if each.next_attempt_at is not None:
        summary = ["queued ", *summary, ", next attempt ", at(each.next_attempt_at, here.zone)]
    return [
        badge(*OUTCOMES.get(each.outcome, OUTCOMES["dropped"])),
        each.receiver,
        f"{each.pipeline} {each.rule}" if each.pipeline else f"a {each.change}",
        each.change,
        str(each.attempts),
        html.Span(summary),
        html.Span(each.last_error or fmt.NOTHING, className="breaks"),
    ]


def silences(found: Sequence[Silence], here: Address, person: Person) -> Part:
    if not found:
        return _none("No silences", "No silence is active.")
    heads = ("", "Matchers", "Until", "By", "Reason")
    return table("silences that hold", heads, [_silence(each, here, person) for each in found])


def _silence(each: Silence, here: Address, person: Person) -> list[Part]:
    return [
        act_link("End", Do.END_SILENCE, each.id, here, person),
        html.Span(" ".join(each.matchers), className="mono"),
        at(each.ends_at, here.zone),
        each.author,
        each.reason,
    ]


def _none(title: str, summary: str) -> Part:
    return alert(title, summary, "gray", "○")


DRAWN_OF_BOARD: Final[dict[Tab, Callable[[Board, Address, Person, float], Part]]] = {
    Tab.FIRING: firing,
    Tab.PENDING: lambda board, here, _person, _now_s: pending(board, here),
    Tab.SILENCED: silenced,
    Tab.SILENCES: lambda board, here, person, _now_s: silences(board.silences, here, person),
}
"""Tabs that need nothing but the board."""
