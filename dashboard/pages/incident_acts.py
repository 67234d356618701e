"""What operators can do about incidents: for each act what its form asks for, and what it says once that is done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import dash_mantine_components as dmc

from dashboard import acts
from dashboard.pages.act_links import Do
from dashboard.pages.band import at
from dashboard.pages.base import Part
from dashboard.zones import Zone
from lagloss.errors import LaglossError
from lagloss.incident_actions import matched_words
from lagloss.incidents import incident
from lagloss.store import Store

Typed: TypeAlias = Mapping[str, str]
"""What stands in the fields of a form, by their ids."""
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


@dataclass(frozen=True, slots=True)
class Submitted:
    """A form that somebody sent off. `of`: an incident's id or a silence's, as the address says."""

    of: str
    typed: Typed
    author: str
    zone: Zone


@dataclass(frozen=True, slots=True)
class Act:
    """`title`: of the form and its button; `about`: what comes of it. `fresh`: what stands in the fields when the form
    is opened of something. `perform` does it and returns what is told under `done`; it raises LaglossErrors."""

    do: Do
    title: str
    about: str
    fields: tuple[Part, ...]
    fresh: Callable[[Store, str], Typed]
    perform: Callable[[Store, Submitted], Any]
    done: str


def _acknowledge(store: Store, given: Submitted) -> str:
    acts.acknowledge(store, given.of, given.typed[Field.NOTE], given.author)
    return "It is yours: its receivers are told who has it."


def _silence(store: Store, given: Submitted) -> list[Any]:
    typed = given.typed
    made, about = acts.silence(
        store,
        typed[Field.MATCHERS].splitlines(),
        reason=typed[Field.REASON],
        for_s=float(typed[Field.DURATION] or 0),
        author=given.author,
    )
    return ["Until ", at(made.ends_at, given.zone), f"; {matched_words(about)}."]


def _end_silence(store: Store, given: Submitted) -> str:
    acts.end_silence(store, given.of, given.author)
    return "Receivers are told of what is still open."


def _matchers_of(store: Store, incident_id: str) -> str:
    """What chooses just this incident's rule in its pipeline; nothing where there is no such incident."""
    try:
        found = incident(store, incident_id)
    except LaglossError:
        return ""
    return f"pipeline={found.pipeline}\nrule={found.rule}"


_NOTE: Final = dmc.Textarea(
    id=Field.NOTE,
    label="Note (optional)",
    description="what you know or are going to do",
    autosize=True,
    minRows=3,
)
_MATCHERS: Final = dmc.Textarea(
    id=Field.MATCHERS,
    label="Matchers",
    description="one a line: label=value, !=, =~ or !~",
    autosize=True,
    minRows=3,
    classNames={"input": "mono"},
)
_DURATION: Final = dmc.Select(
    id=Field.DURATION,
    label="For",
    data=[{"label": name, "value": str(for_s)} for name, for_s in _SILENT_FOR_S.items()],
    allowDeselect=False,
)
_REASON: Final = dmc.Textarea(
    id=Field.REASON, label="Reason", description="everybody sees it", required=True, autosize=True, minRows=2
)

ACTS: Final = (
    Act(
        Do.ACKNOWLEDGE,
        title="Acknowledge the incident",
        about="It is not escalated any further, and no reminders of it are sent.",
        fields=(_NOTE,),
        fresh=lambda _store, _of: {Field.NOTE: ""},
        perform=_acknowledge,
        done="Acknowledged",
    ),
    Act(
        Do.SILENCE,
        title="Silence",
        about="Nobody is told of incidents that match all of these. They are recorded all the same.",
        fields=(_MATCHERS, _DURATION, _REASON),
        fresh=lambda store, of: {
            Field.MATCHERS: _matchers_of(store, of),
            Field.DURATION: str(_SILENT_FOR_S["2 hours"]),
            Field.REASON: "",
        },
        perform=_silence,
        done="Silenced",
    ),
    Act(
        Do.END_SILENCE,
        title="End the silence",
        about="Receivers are told of what is still open, and of what comes.",
        fields=(),
        fresh=lambda _store, _of: {},
        perform=_end_silence,
        done="Silence ended",
    ),
)
