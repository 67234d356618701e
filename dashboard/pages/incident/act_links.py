"""Links that ask for something to be done: `do` in the address opens its form, on the page or on the incident's own."""

from __future__ import annotations

from enum import StrEnum

import dash_mantine_components as dmc

from dashboard.pages.base import Part
from dashboard.request import links
from dashboard.request.current_user import Person
from dashboard.request.links import Address

FORMS_ON: tuple[str, ...] = (links.ALERTS, "/incidents/")
"""How paths begin whose pages have the forms."""


class Do(StrEnum):
    """Actions that an address can ask for; `of` names the incident or silence."""

    ACKNOWLEDGE = "acknowledge"
    SILENCE = "silence"
    END_SILENCE = "end-silence"
    REPAIR = "repair"


def act_link(label: str, do: Do, target: str, address: Address, person: Person, pipeline: str | None = None) -> Part:
    """Return a link that opens the form for an operator of the pipeline, if it is about one; for others a disabled
    button that says why."""
    if person.role != "operator" or (pipeline is not None and not person.grants.may_act_on(pipeline)):
        return dmc.Button(label, disabled=True, size="compact-sm", variant="default", **{"data-why": "operators only"})
    if address.path.startswith(FORMS_ON):
        form = address.asking(do=do, of=target)
    elif do == Do.END_SILENCE:
        form = address.to(links.ALERTS, tab="silences", do=do, of=target)
    else:
        form = address.to(links.incident(target), do=do)
    return dmc.Anchor(label, href=form.href, size="sm", className="act")


def why_not(person: Person, pipeline: str | None = None) -> Part | None:
    """Why buttons are disabled; None where none is."""
    if person.role == "operator" and (pipeline is None or person.grants.may_act_on(pipeline)):
        return None
    scope = "" if pipeline is None else f" of {pipeline}"
    role = f", a {person.role}" if person.role == "viewer" else ""
    summary = (
        f"You are {person.name}{role}, with read access. "
        f"Acknowledging, silencing and testing require an operator{scope}."
    )
    return dmc.Text(summary, size="sm", c="dimmed", className="why-not", mb="xs")
