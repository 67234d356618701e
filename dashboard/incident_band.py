"""The band above the charts: open incidents of the pipeline, and notifications that nobody got."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import dash_mantine_components as dmc
from dash import html

from dashboard import words
from lagloss.incidents import Delivery, Incident, place_words

Part: TypeAlias = Any
"""A Dash component; the component packages carry no types."""
_SHOWN: Final = 10
_SHOWN_PLACES: Final = 3
_HIDDEN: Final[dict[str, Any]] = {"aria-hidden": "true"}
HEALED_FOR: Final = timedelta(days=1)
"""For this long a failure is shown whose receiver works again."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a severity is shown: never by colour alone."""

    word: str
    icon: str
    colour: str


SEVERITIES: Final = {"critical": Look("CRITICAL", "✖", "red"), "warning": Look("WARNING", "!", "orange")}


@dataclass(frozen=True, slots=True)
class Broken:
    """A receiver that did not take something: the newest of `count` failures, and since when it works again."""

    newest: Delivery
    count: int
    works_since: datetime | None


def band(incidents: Sequence[Incident], now_s: float) -> Part | None:
    """The open incidents, in the order given; None when there is none."""
    if not incidents:
        return None
    number = f"{len(incidents)} open incident{'' if len(incidents) == 1 else 's'}"
    rest = len(incidents) - _SHOWN
    more = f"and {rest} more: lagloss alerts list --pipeline {incidents[0].pipeline}" if rest > 0 else None
    return html.Section(
        [
            dmc.Title(number, order=2, fz=16, mb=4),
            dmc.Stack([_incident(incident, now_s) for incident in incidents[:_SHOWN]], gap="xs"),
            dmc.Text(more, size="sm", c="dimmed", mt="xs") if more else None,
        ],
        className="incidents",
    )


def _incident(incident: Incident, now_s: float) -> Part:
    look = SEVERITIES.get(incident.severity, SEVERITIES["warning"])
    since = f"since {words.clock(incident.first_window_s, date=True)} UTC, {words.ago(now_s - incident.first_window_s)}"
    places = [place_words(place) for place in incident.where[:_SHOWN_PLACES]]
    facts = [
        dmc.Text([html.Span(incident.rule, className="mono"), f": {incident.text}"], fw=600),
        dmc.Text(f"{since} · {_taken(incident)}", size="sm"),
        dmc.Text("where: " + " · ".join(places), size="sm") if places else None,
        dmc.Text(f"nobody is told: {incident.withheld}", size="sm", c="dimmed") if incident.withheld else None,
        dmc.Group(
            [
                dmc.Anchor("Runbook", href=incident.runbook or f"/runbooks/{incident.kind}", size="sm"),
                dmc.Code(_command(incident), className="copied"),
            ],
            gap="sm",
        ),
    ]
    badge = dmc.Badge(
        [html.Span(look.icon, **_HIDDEN), f" {look.word}"],
        color=look.colour,
        variant="filled",
        autoContrast=True,
        className="verdict",
    )
    return dmc.Paper(
        [badge, html.Div(facts, className="grows")],
        p="sm",
        withBorder=True,
        className=f"incident incident-{incident.severity}",
    )


def _taken(incident: Incident) -> str:
    if incident.acknowledged_at is None:
        return "nobody has acknowledged it"
    return f"acknowledged by {incident.acknowledged_by} at {words.clock(incident.acknowledged_at.timestamp())} UTC"


def _command(incident: Incident) -> str:
    """What is to be copied: with the id, whole."""
    return f"lagloss alerts {'show' if incident.acknowledged_at else 'ack'} {incident.id}"


def failures(failed: Sequence[Delivery], now_s: float) -> Part | None:
    """The notifications that were given up, by receiver, whatever pipeline they are of; None when there is none."""
    found = broken(failed, datetime.fromtimestamp(now_s, UTC))
    if not found:
        return None
    number = sum(each.count for each in found)
    still = any(each.works_since is None for each in found)
    return dmc.Alert(
        [
            dmc.List([dmc.ListItem(_failure(each)) for each in found], size="sm"),
            dmc.Text(
                ["Nobody was told by these. See that a receiver works: ", dmc.Code("lagloss alerts test RECEIVER")],
                size="sm",
                mt="xs",
            ),
        ],
        title=f"{number} notification{'' if number == 1 else 's'} not delivered in the last 7 days",
        color="red.9" if still else "orange",
        variant="filled" if still else "light",
        autoContrast=True,
        icon=html.Span("✖", **_HIDDEN),
        mb="sm",
        className="failures",
    )


def broken(failed: Sequence[Delivery], now: datetime) -> list[Broken]:
    """By receiver, those that still do not work first. `failed`: newest first."""
    by_receiver: dict[str, list[Delivery]] = {}
    for delivery in failed:
        works, at = delivery.works_since, delivery.done_at
        if works is None or at is None or now - at < HEALED_FOR:
            by_receiver.setdefault(delivery.receiver, []).append(delivery)
    found = [Broken(of[0], len(of), of[0].works_since) for of in by_receiver.values()]
    return sorted(found, key=lambda each: each.works_since is not None)


def _failure(of: Broken) -> str:
    newest = of.newest
    about = f"{newest.pipeline} {newest.rule} ({newest.change})" if newest.pipeline else newest.change
    at = words.clock(newest.done_at.timestamp(), date=True) if newest.done_at else words.NOTHING
    told = f"{newest.receiver}: {newest.last_error or 'no reason known'} · {about} · {at} UTC"
    if of.count > 1:
        told += f" · and {of.count - 1} more"
    if of.works_since:
        told += f" · takes others again since {words.clock(of.works_since.timestamp(), date=True)} UTC"
    return told
