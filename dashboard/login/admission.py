"""What a logged-in user may see: everything, or what the teams of the access file grant them, asked at each request."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import HTTPConnection

from dashboard.access.policy import AccessFile, TeamSpec, grants_of, load_access
from dashboard.login.groups import listed
from dashboard.queries.services import Services
from dashboard.request.current_user import Person, answer_for
from lagloss_server.incidents.actions import pipeline_labels
from lagloss_server.net.clients import client, parse_networks
from lagloss_server.net.problem_details import Problem
from lagloss_server.store.audit import Actor, act_as
from lagloss_server.store.store import Store

LABELS_KEPT_S: Final = 2.0
"""A pipeline that is applied, or gets another label, is seen this much later."""


class Admission:
    """Sets who asks, with what they may see, for the rest of a request. Raises BadDefinition for a bad access file."""

    def __init__(self, services: Services) -> None:
        self._file: AccessFile | None = load_access(services.settings)
        self._known_by = services.settings.login or "none"
        self._trusted = parse_networks(listed(services.settings.proxy_trusted))
        self._threads = services.threads
        self._store = services.store
        self._labels: Mapping[str, Mapping[str, str]] = {}
        self._read_at = float("-inf")

    async def admit(self, connection: HTTPConnection, person: Person) -> None:
        """Answer the request for this person.

        Raises:
            Problem: 403, they are in no team.
            SQLAlchemyError: what the teams may see cannot be read.
        """
        teams = self.teams_of(person)
        if teams is not None:
            person = _granted(person, teams, await self._read_labels())
        answer_for(person)
        act_as(self._actor(connection, person.name))

    def begin(self, connection: HTTPConnection) -> None:
        """Answer a request of the login's own pages, of whom it is not known yet who asks."""
        act_as(self._actor(connection, ""))

    def teams_of(self, person: Person) -> tuple[TeamSpec, ...] | None:
        """Return the person's teams; None: they may see everything.

        Raises:
            Problem: 403, they are in none.
        """
        if self._file is None or person.role == "operator":
            return None
        teams = self._file.teams_of(person.name, person.groups)
        if not teams:
            raise Problem(403, "Not allowed", f"{person.name} is not in a team with access. Ask an operator.")
        return teams

    def _actor(self, connection: HTTPConnection, name: str) -> Actor:
        return Actor(name, self._known_by, client(connection, self._trusted))

    async def _read_labels(self) -> Mapping[str, Mapping[str, str]]:
        if time.monotonic() >= self._read_at + LABELS_KEPT_S:
            asked_at = time.monotonic()
            self._labels = await self._threads.read(_labels, self._store)
            self._read_at = asked_at
        return self._labels


def _granted(person: Person, teams: tuple[TeamSpec, ...], labels: Mapping[str, Mapping[str, str]]) -> Person:
    is_operator = any(team.role == "operator" for team in teams)
    return replace(person, role="operator" if is_operator else "viewer", granted=grants_of(teams, labels))


def _labels(store: Store) -> dict[str, dict[str, str]]:
    with store.engine.connect() as connection:
        return pipeline_labels(connection)
