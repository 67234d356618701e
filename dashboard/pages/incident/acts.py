"""Actions on incidents: for each, the fields of its form and the confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import dash_mantine_components as dmc

from dashboard import actions as acts
from dashboard import repairing
from dashboard.access.silences import read_silences
from dashboard.pages.base import Part
from dashboard.pages.incident.act_links import Do
from dashboard.pages.incident.cards import at
from dashboard.request.zones import Zone
from lagloss.errors import LaglossError
from lagloss_server.incidents.actions import matched_words
from lagloss_server.incidents.incident import Incident, incident
from lagloss_server.store.store import Store

Typed: TypeAlias = Mapping[str, str]
"""Values of the fields of a form, by their ids."""
_SILENT_FOR_S: Final = {
    "30 minutes": 1_800,
    "1 hour": 3_600,
    "2 hours": 7_200,
    "4 hours": 14_400,
    "8 hours": 28_800,
    "24 hours": 86_400,
}


class Field(StrEnum):
    """Ids of what is typed or chosen, besides the name, which every form asks for."""

    NOTE = "acknowledge-note"
    MATCHERS = "silence-matchers"
    DURATION = "silence-duration"
    REASON = "silence-reason"
    PLACE = "repair-place"
    TOPIC = "repair-topic"
    COUNT = "repair-count"
    UNDECLARED = "repair-undeclared"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted form. `of`: an incident's id or a silence's, as the address says."""

    of: str
    typed: Typed
    author: str
    zone: Zone


@dataclass(frozen=True, slots=True)
class Fresh:
    """A form as it is opened. `subject`: of what, in words."""

    subject: str
    typed: Typed


@dataclass(frozen=True, slots=True)
class Act:
    """`title`: of the form and its button; `about`: what comes of it. `fresh`: how the form stands when it is opened of
    something. `perform` does it and returns the confirmation shown under `done`; it raises LaglossErrors."""

    do: Do
    title: str
    about: str
    fields: tuple[Part, ...]
    fresh: Callable[[Store, str], Fresh]
    perform: Callable[[Store, Submitted], Any]
    done: str


def _acknowledge(store: Store, submitted: Submitted) -> str:
    acts.acknowledge(store, submitted.of, submitted.typed[Field.NOTE], submitted.author)
    return "Its receivers are notified."


def _silence(store: Store, submitted: Submitted) -> list[Any]:
    typed = submitted.typed
    silenced, about = acts.silence(
        store,
        typed[Field.MATCHERS].splitlines(),
        reason=typed[Field.REASON],
        for_s=float(typed[Field.DURATION] or 0),
        author=submitted.author,
    )
    return ["Until ", at(silenced.ends_at, submitted.zone), f"; {matched_words(about)}."]


def _end_silence(store: Store, submitted: Submitted) -> str:
    acts.end_silence(store, submitted.of, submitted.author)
    return "Receivers are notified of incidents that are still open."


def _repair(store: Store, submitted: Submitted) -> str:
    typed = submitted.typed
    return repairing.repair(
        store,
        submitted.of,
        at=typed[Field.PLACE],
        from_topic=typed[Field.TOPIC],
        confirmed=typed[Field.COUNT],
        undeclared=typed[Field.UNDECLARED],
        author=submitted.author,
    )


def _fresh_repair(store: Store, incident_id: str) -> Fresh:
    """With the place where most was lost."""
    fresh = _found(store, incident_id)
    places = [] if fresh is None else repairing.places_to_repair(fresh)
    typed: Typed = {Field.PLACE: places[0] if places else "", Field.TOPIC: "", Field.COUNT: "", Field.UNDECLARED: "ask"}
    return Fresh("This incident does not exist." if fresh is None else _words(fresh), typed)


def _fresh_acknowledgement(store: Store, incident_id: str) -> Fresh:
    fresh = _found(store, incident_id)
    return Fresh("This incident does not exist." if fresh is None else _words(fresh), {Field.NOTE: ""})


def _fresh_silence(store: Store, incident_id: str) -> Fresh:
    """With matchers that choose just this incident's rule in its pipeline."""
    fresh = _found(store, incident_id)
    matchers = "" if fresh is None else f"pipeline={fresh.pipeline}\nrule={fresh.rule}"
    typed: Typed = {Field.MATCHERS: matchers, Field.DURATION: str(_SILENT_FOR_S["2 hours"]), Field.REASON: ""}
    return Fresh("" if fresh is None else _words(fresh), typed)


def _fresh_end(store: Store, silence_id: str) -> Fresh:
    for silence in read_silences(store):
        if (stored := silence.silence).id == silence_id:
            return Fresh(f"{' '.join(stored.matchers)}, by {stored.author}: {stored.reason}", {})
    return Fresh("This silence has ended.", {})


def _found(store: Store, incident_id: str) -> Incident | None:
    try:
        return incident(store, incident_id)
    except LaglossError:
        return None


def _words(incident: Incident) -> str:
    return f"{incident.pipeline}: {incident.rule}, {incident.text}"


_NOTE: Final = dmc.Textarea(
    id=Field.NOTE,
    label="Note (optional)",
    description="findings or next steps",
    autosize=True,
    minRows=3,
    **{"data-autofocus": True},
)
_MATCHERS: Final = dmc.Textarea(
    id=Field.MATCHERS,
    label="Matchers",
    description="one per line: label=value, !=, =~ or !~",
    autosize=True,
    minRows=3,
    classNames={"input": "mono"},
)
_DURATION: Final = dmc.Select(
    id=Field.DURATION,
    label="Duration",
    data=[{"label": name, "value": str(for_s)} for name, for_s in _SILENT_FOR_S.items()],
    allowDeselect=False,
)
_REASON: Final = dmc.Textarea(
    id=Field.REASON,
    label="Reason",
    description="visible to all users",
    required=True,
    autosize=True,
    minRows=2,
    **{"data-autofocus": True},
)

_PLACE: Final = dmc.TextInput(
    id=Field.PLACE, label="Place", description="link:A->B or node:N", classNames={"input": "mono"}
)
_TOPIC: Final = dmc.TextInput(
    id=Field.TOPIC,
    label="Topic (optional)",
    description="that the records are in, if the definition does not name it",
    classNames={"input": "mono"},
)
_UNDECLARED: Final = dmc.Select(
    id=Field.UNDECLARED,
    label="Nodes that do not declare idempotent: true",
    data=[
        {"label": "send nothing through them", "value": "ask"},
        {"label": "send all the same", "value": repairing.SEND_ALL_THE_SAME},
    ],
    allowDeselect=False,
)
_COUNT: Final = dmc.TextInput(
    id=Field.COUNT,
    label="Number of messages",
    description="leave it empty for a dry run, which says how many there are",
    **{"data-autofocus": True},
)

ACTS: Final = (
    Act(
        Do.ACKNOWLEDGE,
        title="Acknowledge the incident",
        about="Stops its escalation and reminders.",
        fields=(_NOTE,),
        fresh=_fresh_acknowledgement,
        perform=_acknowledge,
        done="Acknowledged",
    ),
    Act(
        Do.SILENCE,
        title="Silence",
        about="Incidents that match all of these send no notifications. They are still recorded.",
        fields=(_MATCHERS, _DURATION, _REASON),
        fresh=_fresh_silence,
        perform=_silence,
        done="Silenced",
    ),
    Act(
        Do.END_SILENCE,
        title="End the silence",
        about="Receivers are notified of incidents that are still open, and of new ones.",
        fields=(),
        fresh=_fresh_end,
        perform=_end_silence,
        done="Silence ended",
    ),
    Act(
        Do.REPAIR,
        title="Send lost messages again",
        about="Sends what was lost for certain at a place in the windows of this incident into the topic before the "
        "place, each message once.",
        fields=(_PLACE, _TOPIC, _UNDECLARED, _COUNT),
        fresh=_fresh_repair,
        perform=_repair,
        done="Sending",
    ),
)
