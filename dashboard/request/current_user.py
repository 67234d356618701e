"""Who is asking: the person behind the request that is being answered, and what they may see and do."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from dashboard.request.grants import EVERYTHING, NOTHING, ONLY_LOOKS, Grants
from lagloss_server.base.errors import NotAllowed, NotForTeams, NotOfYourTeam
from lagloss_server.model.roles import Role


@dataclass(frozen=True, slots=True)
class Person:
    """A user who may look (`viewer`) or also act (`operator`). `name` is recorded with their actions. `groups`: as the
    login knows them. `granted`: what their teams grant; None: everything that their role lets them do."""

    name: str
    role: Role
    groups: frozenset[str] = frozenset()
    granted: Grants | None = None

    @property
    def grants(self) -> Grants:
        if self.granted is not None:
            return self.granted
        return EVERYTHING if self.role == "operator" else ONLY_LOOKS


LOCAL: Final = Person("local", "operator")
"""The user of a dashboard without a login, which listens on loopback only: they have this machine anyway. Recognised by
identity: a user who logs in may have the same name."""

NO_PERSON: Final = Person("nobody", "viewer", granted=NOTHING)
"""Who asks where no request is answered: they must not see or do anything."""

_asking: ContextVar[Person] = ContextVar("asking", default=NO_PERSON)


def asking() -> Person:
    """Return the person whose request is being answered, in its handlers and the threads they wait for."""
    return _asking.get()


def sight() -> Hashable:
    """Return all that decides what the person who asks is shown: those for whom it is the same may share an answer."""
    return asking().role, asking().grants


def answer_for(person: Person) -> None:
    """Says who is asking, for the rest of this request."""
    _asking.set(person)


def require_operator() -> Person:
    """Return the person who asks, if they may act at all.

    Raises:
        NotAllowed: their role only lets them look.
    """
    person = asking()
    if person.role != "operator":
        raise NotAllowed(name=person.name, role=person.role)
    return person


def require_operator_of(pipeline: str) -> Person:
    """Return the person who asks, if they may act on this pipeline, which they may see.

    Raises:
        NotAllowed: they may only look.
    """
    person = require_operator()
    if not person.grants.may_act_on(pipeline):
        raise NotOfYourTeam(name=person.name, pipeline=pipeline)
    return person


def require_operator_of_all(what: str) -> Person:
    """Return the person who asks, if they may do what concerns all pipelines.

    Raises:
        NotAllowed: they may only look, or act for a team.
    """
    person = require_operator()
    if not person.grants.acts_on_all:
        raise NotForTeams(name=person.name, what=what)
    return person
