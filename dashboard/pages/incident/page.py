"""The page of one incident: its history and its deliveries."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import dash_mantine_components as dmc
from dash import Input, html

from dashboard.pages.base import Part, TableColumn, alert, badge, bare_table, outward, table
from dashboard.pages.incident import forms as incident_forms
from dashboard.pages.incident.act_links import why_not
from dashboard.pages.incident.cards import (
    OUTCOMES,
    act_links,
    at,
    pipeline_link,
    runbook_link,
    severity_badge,
    taken,
    when,
    why_withheld,
)
from dashboard.pages.incident.forms import Form
from dashboard.pages.page import Instead, Page, Panel, Visit
from dashboard.queries.alerts import OpenIncident, read_incident
from dashboard.request import links
from dashboard.request.current_user import Person, asking
from dashboard.request.links import Address
from dashboard.request.shown_range import ShownRange
from dashboard.request.zones import Zone
from lagloss_server.base import format as fmt
from lagloss_server.base.errors import AmbiguousIncident, UnknownIncident
from lagloss_server.incidents.changes import IncidentRecord
from lagloss_server.incidents.deliveries import Delivery
from lagloss_server.incidents.incident import Incident, destination_words, example_words, place_words

_AROUND_S: Final = 1_800
"""How much of the pipeline is shown before and after an incident."""


class IncidentId(StrEnum):
    """Ids of this page."""

    NOTICE = "incident-notice"
    CONTENT = "incident-content"


def frame(_params: Mapping[str, str], _here: Address) -> Part:
    return html.Div([incident_forms.forms(), html.Div(id=IncidentId.NOTICE), html.Div(id=IncidentId.CONTENT)])


@dataclass(frozen=True, slots=True)
class IncidentRead:
    """An incident as it stands, and its history."""

    opened: OpenIncident
    record: IncidentRecord


def read(visit: Visit) -> IncidentRead:
    """Read the incident in the path.

    Raises:
        Instead: there is none, or more than one that begins like this.
    """
    try:
        return IncidentRead(*read_incident(visit.store, visit.params["incident"]))
    except (UnknownIncident, AmbiguousIncident) as error:
        way = dmc.Anchor("All alerts", href=visit.address.to(links.ALERTS).href)
        raise Instead(alert("No such incident", [f"{error} ", way], "orange", "?")) from None


def _content(result: IncidentRead, visit: Visit) -> Part:
    address, record, incident = visit.address, result.record, result.record.incident
    return html.Div(
        [
            _head(result.opened, address, asking(), visit.now_s),
            _section("Where", _where(incident)),
            _section(
                "Affected destinations",
                [dmc.ListItem(destination_words(destination)) for destination in incident.destinations],
            ),
            _section("What the messages have in common", _blame(incident)),
            _section("Examples", _examples(incident, address)),
            _without_examples(incident, asking()),
            _section("Repairs", [dmc.ListItem(repair.words, className="breaks") for repair in record.repairs]),
            _section("Notes", [dmc.ListItem(note) for note in incident.notes]),
            dmc.Paper([_heading("Timeline"), _timeline(record, address.zone)], p="sm", mt="sm", withBorder=True),
            dmc.Paper(
                [_heading("Deliveries"), _describe(record.deliveries, address.zone)], p="sm", mt="sm", withBorder=True
            ),
        ]
    )


def _head(opened: OpenIncident, address: Address, person: Person, now_s: float) -> Part:
    incident = opened.incident
    facts = {
        "Breach": [f"{incident.text}; at worst {fmt.amount(incident.worst, incident.unit)}"],
        "Since": [
            when(incident.first_window_s, address.zone),
            f", {fmt.ago(now_s - incident.first_window_s)}; {incident.windows} breaching windows, the last at ",
            _window("", incident.pipeline, incident.last_window_s, address),
        ],
        "State": _state(incident, address.zone),
        "Acknowledged": taken(incident, address.zone),
        "Withheld": why_withheld(opened, address.zone) if opened.withheld else None,
    }
    rows = [[dmc.TableTh(name), html.Span(value)] for name, value in facts.items() if value]
    title = [
        severity_badge(incident.severity),
        html.Span([pipeline_link(incident.pipeline, address), f": {incident.rule}"]),
    ]
    return dmc.Paper(
        [
            dmc.Title(dmc.Group(title, gap="sm"), order=1, fz=22),
            dmc.Text(str(incident.id), size="xs", c="dimmed", className="mono breaks"),
            bare_table(("", TableColumn("", "breaks")), rows, variant="vertical", my="xs"),
            why_not(person, incident.pipeline) if incident.state == "open" else None,
            dmc.Group([*act_links(opened, address, person), *_ways(incident, address)], gap="sm"),
        ],
        p="sm",
        withBorder=True,
        className=f"incident-{incident.severity}",
    )


def _state(incident: Incident, zone: Zone) -> list[Any]:
    opened: list[Any] = ["opened ", at(incident.opened_at, zone)]
    if incident.resolved_at is None:
        return ["open, ", *opened]
    return [f"resolved ({incident.resolved_because}), ", *opened, ", ended ", at(incident.resolved_at, zone)]


def _ways(incident: Incident, address: Address) -> list[Part]:
    span = ShownRange(incident.first_window_s - _AROUND_S, incident.last_window_s + _AROUND_S)
    around = address.to(links.pipeline(incident.pipeline)).over(span)
    ways = [dmc.Anchor("The pipeline at that time", href=around.href, size="sm")]
    if incident.worst_window_s is not None:
        ways.append(_window("Worst window, ", incident.pipeline, incident.worst_window_s, address))
    return [*ways, runbook_link(incident)]


def _window(before: str, pipeline: str, start_s: int, address: Address) -> Part:
    href = address.to(links.window(pipeline, start_s)).href
    return dmc.Anchor([before, when(start_s, address.zone)], href=href, size="sm")


def _section(title: str, items: Sequence[Part]) -> Part | None:
    if not items:
        return None
    return dmc.Paper([_heading(title), dmc.List(items, size="sm")], p="sm", mt="sm", withBorder=True)


def _heading(title: str) -> Part:
    return dmc.Title(title, order=2, fz=16, mb="xs")


def _where(incident: Incident) -> list[Part]:
    return [dmc.ListItem(place_words(place), className="breaks") for place in incident.where]


def _blame(incident: Incident) -> list[Part]:
    return [dmc.ListItem(incident.blame["text"], className="breaks")] if incident.blame else []


def _examples(incident: Incident, address: Address) -> list[Part]:
    return [
        dmc.ListItem(_example(example, incident.pipeline, address), className="breaks") for example in incident.examples
    ]


def _without_examples(incident: Incident, person: Person) -> Part | None:
    """Say that there may be examples; None for whom they are not hidden from."""
    if person.grants.may_see_ids(incident.pipeline):
        return None
    return dmc.Text("Examples are not shown: message ids of this pipeline are hidden from you.", size="sm", mt="sm")


def _example(example: Mapping[str, Any], pipeline: str, address: Address) -> list[Any]:
    message_id = example.get("message_id")
    shown: Part = html.Span(example.get("id_hash"), className="mono")
    if message_id:
        href = address.to(links.message(pipeline), id=message_id).href
        shown = dmc.Anchor(message_id, href=href, inherit=True, className="mono")
    return [shown, f": {example_words(example)}", *_trace(example)]


def _trace(example: Mapping[str, Any]) -> list[Any]:
    trace_id, url = example.get("trace_id"), example.get("trace_url")
    if url:
        return [", ", outward("trace", url)]
    return [", trace ", html.Span(trace_id, className="mono")] if trace_id else []


def _timeline(record: IncidentRecord, zone: Zone) -> Part:
    unit = record.incident.unit
    return html.Ol(
        [
            html.Li(
                [
                    at(change.at, zone),
                    html.Strong(f" {change.change}"),
                    f" by {change.by}" if change.by else "",
                    f": {change.note}" if change.note else "",
                    f" (then {fmt.amount(change.value, unit)}, at worst {fmt.amount(change.worst, unit)})",
                ]
            )
            for change in record.changes
        ],
        className="timeline breaks",
    )


def _describe(deliveries: Sequence[Delivery], zone: Zone) -> Part:
    if not deliveries:
        return dmc.Text("None sent or queued.", size="sm")
    heads = ("Outcome", "Receiver", "Change", "Attempts", "When", "Last error")
    rows = [
        [
            badge(*OUTCOMES.get(delivery.outcome, OUTCOMES["dropped"])),
            delivery.receiver,
            delivery.change,
            str(delivery.attempts),
            at(delivery.done_at or delivery.created_at, zone),
            html.Span(delivery.last_error or fmt.NOTHING, className="breaks"),
        ]
        for delivery in deliveries
    ]
    return table("deliveries of this incident", heads, rows)


PAGE: Final = Page(
    name="incident",
    pattern=re.compile(r"/incidents/(?P<incident>[0-9a-f-]{1,36})"),
    title=lambda params: f"incident {params['incident'][:8]}",
    frame=frame,
    notice=IncidentId.NOTICE,
    read=read,
    panels=(Panel(IncidentId.CONTENT, _content),),
    also=(Input(Form.DONE, "data"),),
)
