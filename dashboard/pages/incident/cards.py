"""Open incidents as cards, and failed notifications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import dash_mantine_components as dmc
from dash import html

from dashboard.pages.base import Part, badge, fold, icon, moment
from dashboard.pages.incident.act_links import Do, act_link
from dashboard.queries.alerts import OpenIncident
from dashboard.repairing import places_to_repair
from dashboard.request import links
from dashboard.request.current_user import Person
from dashboard.request.links import Address
from dashboard.request.zones import Zone, utc
from lagloss_server.base import format as fmt
from lagloss_server.incidents.deliveries import Delivery
from lagloss_server.incidents.incident import Incident, place_words

_SHOWN: Final = 10
OF_LOSS: Final = frozenset({"loss", "budget"})
"""Kinds of incidents whose messages can be sent again."""
_SHOWN_PLACES: Final = 3
HEALED_FOR: Final = timedelta(days=1)
"""For this long a failure is shown whose receiver works again."""


OUTCOMES: Final = {
    "failed": ("failed", "✖", "red"),
    "waiting": ("waiting", "…", "orange"),
    "sent": ("sent", "✔", "teal"),
    "dropped": ("dropped", "○", "gray"),
}


@dataclass(frozen=True, slots=True)
class CardLook:
    """How a severity is shown: never by colour alone."""

    word: str
    icon: str
    colour: str


SEVERITIES: Final = {"critical": CardLook("CRITICAL", "✖", "red"), "warning": CardLook("WARNING", "!", "orange")}


@dataclass(frozen=True, slots=True)
class Broken:
    """A receiver that did not take something: the newest of `count` failures, and since when it works again."""

    newest: Delivery
    count: int
    works_since: datetime | None


def band(opened: Sequence[OpenIncident], address: Address, person: Person, now_s: float) -> Part | None:
    """Return the open incidents of a pipeline above its charts, in the order given; None when there is none."""
    if not opened:
        return None
    number = fmt.counted(len(opened), "open incident")
    note = [_in_short(shown.incident, address.zone) for shown in opened[:_SHOWN]]
    rest = len(opened) - _SHOWN
    pipeline = opened[0].incident.pipeline
    more = (
        dmc.Anchor(f"and {rest} more", href=address.to(links.ALERTS, pipeline=pipeline).href, size="sm")
        if rest > 0
        else None
    )
    details = [cards(opened[:_SHOWN], address, person, now_s), more]
    return html.Section(fold("incidents", number, note, details), className="incidents")


def _in_short(incident: Incident, zone: Zone) -> Part:
    """Return severity, rule and start of an incident in a few words."""
    look = SEVERITIES.get(incident.severity, SEVERITIES["warning"])
    since = f" since {zone.clock(incident.first_window_s)} "
    sign = html.Span([icon(look.icon), f" {look.word.lower()}"], className=f"of-{incident.severity}")
    return html.Span([sign, " ", html.Span(incident.rule, className="mono"), since], className="in-short")


def cards(opened: Sequence[OpenIncident], address: Address, person: Person, now_s: float) -> Part:
    return dmc.Stack([card(shown, address, person, now_s) for shown in opened], gap="xs")


def card(shown: OpenIncident, address: Address, person: Person, now_s: float) -> Part:
    """Draw an incident: what is wrong, since when, where, its owner, and the possible actions."""
    incident = shown.incident
    places = [place_words(place) for place in incident.where[:_SHOWN_PLACES]]
    title = dmc.Anchor(incident.rule, href=address.to(links.incident(str(incident.id))).href, fw=600, className="mono")
    facts = [
        dmc.Text([title, " of ", pipeline_link(incident.pipeline, address), f": {incident.text}"], fw=600),
        dmc.Text([*_since(incident, address.zone, now_s), " · ", *taken(incident, address.zone)], size="sm"),
        dmc.Text("where: " + " · ".join(places), size="sm") if places else None,
        dmc.Text(incident.named_cause, size="sm") if incident.named_cause else None,
        dmc.Text(why_withheld(shown, address.zone), size="sm", c="dimmed") if shown.withheld else None,
        dmc.Group([*act_links(shown, address, person), *_ways(incident, address)], gap="sm", mt=4),
    ]
    return dmc.Paper(
        [severity_badge(incident.severity), html.Div(facts, className="grows")],
        p="sm",
        withBorder=True,
        className=f"incident incident-{incident.severity}",
    )


def severity_badge(severity: str) -> Part:
    look = SEVERITIES.get(severity, SEVERITIES["warning"])
    return badge(look.word, look.icon, look.colour)


def pipeline_link(pipeline: str, address: Address) -> Part:
    return dmc.Anchor(pipeline, href=address.to(links.pipeline(pipeline)).href, inherit=True)


def when(epoch_s: float, zone: Zone, *, seconds: bool = False) -> Part:
    return moment(zone.moment(epoch_s, seconds=seconds), utc(epoch_s, seconds=seconds))


def at(moment_: datetime, zone: Zone) -> Part:
    return when(moment_.timestamp(), zone, seconds=True)


def _since(incident: Incident, zone: Zone, now_s: float) -> list[Any]:
    return ["since ", when(incident.first_window_s, zone), f", {fmt.ago(now_s - incident.first_window_s)}"]


def taken(incident: Incident, zone: Zone) -> list[Any]:
    if incident.acknowledged_at is None:
        return ["not acknowledged"]
    return [f"acknowledged by {incident.acknowledged_by} at ", at(incident.acknowledged_at, zone)]


def why_withheld(shown: OpenIncident, zone: Zone) -> list[Any]:
    """Why notifications are withheld, by whom, and until when as far as that is known."""
    summary: list[Any] = [f"notifications withheld: {shown.withheld}"]
    return summary if shown.silence is None else [*summary, ", until ", at(shown.silence.ends_at, zone)]


def act_links(shown: OpenIncident, address: Address, person: Person) -> list[Part]:
    """Return links to the actions possible now."""
    incident = shown.incident
    incident_id, links_ = str(incident.id), []
    if incident.kind in OF_LOSS and places_to_repair(incident):
        links_.append(act_link("Repair", Do.REPAIR, incident_id, address, person, incident.pipeline))
    if incident.state != "open":
        return links_
    if incident.acknowledged_at is None:
        links_.append(act_link("Acknowledge", Do.ACKNOWLEDGE, incident_id, address, person, incident.pipeline))
    if shown.silence is None:
        links_.append(act_link("Silence", Do.SILENCE, incident_id, address, person, incident.pipeline))
    else:
        links_.append(act_link("End the silence", Do.END_SILENCE, shown.silence.id, address, person, incident.pipeline))
    return links_


def runbook_link(incident: Incident) -> Part:
    # not a page of the app: the browser has to load it
    return dmc.Anchor("Runbook", href=incident.runbook or f"/runbooks/{incident.kind}", refresh=True, size="sm")


def _ways(incident: Incident, address: Address) -> list[Part]:
    window = address.to(links.window(incident.pipeline, incident.last_window_s))
    return [dmc.Anchor("Last window", href=window.href, size="sm"), runbook_link(incident)]


def failures(failed: Sequence[Delivery], address: Address, now_s: float) -> Part | None:
    """Return the notifications that were given up, by receiver, whatever pipeline they are of; None when there is
    none."""
    failures_ = broken(failed, datetime.fromtimestamp(now_s, UTC))
    if not failures_:
        return None
    number = sum(failure.count for failure in failures_)
    still = any(failure.works_since is None for failure in failures_)
    trial = dmc.Anchor(
        "Test a receiver", href=address.to(links.ALERTS, tab="deliveries").href, inherit=True, c="inherit"
    )
    return dmc.Alert(
        [
            dmc.List([dmc.ListItem(_failure(failure, address.zone)) for failure in failures_], size="sm"),
            dmc.Text(["These notifications failed. Check that a receiver works: ", trial], size="sm", mt="xs"),
        ],
        title=f"{fmt.counted(number, 'notification')} not delivered in the last 7 days",
        color="red.9" if still else "orange",
        variant="filled" if still else "light",
        autoContrast=True,
        icon=icon("✖"),
        mb="sm",
        className="failures",
    )


def broken(failed: Sequence[Delivery], now: datetime) -> list[Broken]:
    """Group failed deliveries by receiver, those that still fail first. `failed`: newest first."""
    by_receiver: dict[str, list[Delivery]] = {}
    for delivery in failed:
        works, done_at = delivery.works_since, delivery.done_at
        if works is None or done_at is None or now - done_at < HEALED_FOR:
            by_receiver.setdefault(delivery.receiver, []).append(delivery)
    failures = [
        Broken(deliveries[0], len(deliveries), deliveries[0].works_since) for deliveries in by_receiver.values()
    ]
    return sorted(failures, key=lambda failure: failure.works_since is not None)


def _failure(failure: Broken, zone: Zone) -> list[Any]:
    newest = failure.newest
    about = f"{newest.pipeline} {newest.rule} ({newest.change})" if newest.pipeline else newest.change
    summary: list[Any] = [f"{newest.receiver}: {newest.last_error or 'no reason given'} · {about} · "]
    summary.append(at(newest.done_at, zone) if newest.done_at else fmt.NOTHING)
    if failure.count > 1:
        summary.append(f" · and {failure.count - 1} more")
    if failure.works_since:
        summary += [" · delivering again since ", at(failure.works_since, zone)]
    return summary
