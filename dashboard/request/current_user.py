"""Who is asking: the person behind the request that is being answered, and what their role lets them do."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from lagloss_server.errors import NotAllowed
from lagloss_server.model.roles import Role


@dataclass(frozen=True, slots=True)
class Person:
    """A user who may look (`viewer`) or also act (`operator`). `name` is recorded with their actions."""

    name: str
    role: Role


LOCAL: Final = Person("local", "operator")
"""The user of a dashboard without a login, which listens on loopback only: they have this machine anyway. Recognised by
identity: a user who logs in may have the same name."""

NO_PERSON: Final = Person("nobody", "viewer")
"""Who asks where no request is answered: they must not act."""

_asking: ContextVar[Person] = ContextVar("asking", default=NO_PERSON)


def asking() -> Person:
    """Return the person whose request is being answered, in its handlers and the threads they wait for."""
    return _asking.get()


def answer_for(person: Person) -> None:
    """Says who is asking, for the rest of this request."""
    _asking.set(person)


def require_operator() -> Person:
    """Return the person who asks, if they may act.

    Raises:
        NotAllowed: their role only lets them look.
    """
    person = asking()
    if person.role != "operator":
        raise NotAllowed(name=person.name, role=person.role)
    return person
