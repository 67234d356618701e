"""The access file: teams, and the pipelines that each may see and act on. YAML that operators write, named by
LAGLOSS_ACCESS_FILE."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from dashboard.request.grants import Grants
from lagloss_server.base.fields import MAX_LISTED, Name, Strict, refuse
from lagloss_server.base.settings import Settings
from lagloss_server.base.yaml_files import load_yaml
from lagloss_server.model.matchers import Matchers, of_pipelines, reach
from lagloss_server.model.roles import Role

EVERY_USER: Final = "*"
"""As a group: every user who is logged in. No login reports a group of this name."""
Text = Annotated[str, Field(min_length=1, max_length=255)]


class TeamSpec(Strict):
    """Members, by group or by name, of the pipelines that match all of `pipelines`. `ids`: whether they see message
    ids."""

    name: Name
    groups: Annotated[tuple[Text, ...], Field(max_length=MAX_LISTED)] = ()
    users: Annotated[tuple[Text, ...], Field(max_length=MAX_LISTED)] = ()
    pipelines: Matchers
    role: Role = "viewer"
    ids: Literal["show", "hide"] = "hide"

    @model_validator(mode="after")
    def _can_be_used(self) -> TeamSpec:
        if not self.groups and not self.users:
            raise ValueError("expected groups or users, found neither")
        of_pipelines(self.pipelines)
        return self

    def has_member(self, name: str, groups: Collection[str]) -> bool:
        return name in self.users or EVERY_USER in self.groups or not set(self.groups).isdisjoint(groups)


class AccessFile(Strict):
    """Teams. Who is in several has what any of them grants."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Access"]
    teams: Annotated[tuple[TeamSpec, ...], Field(min_length=1, max_length=MAX_LISTED)]

    @model_validator(mode="after")
    def _names_are_given_once(self) -> AccessFile:
        names = [team.name for team in self.teams]
        refuse(
            (("teams", index, "name"), f"expected each team once, found {name} twice")
            for index, name in enumerate(names)
            if name in names[:index]
        )
        return self

    def teams_of(self, name: str, groups: Collection[str]) -> tuple[TeamSpec, ...]:
        """Return the teams of a user of this name, who is in these groups."""
        return tuple(team for team in self.teams if team.has_member(name, groups))


def grants_of(teams: Sequence[TeamSpec], pipelines: Mapping[str, Mapping[str, str]]) -> Grants:
    """Return what these teams grant together. `pipelines`: all that there are, with the labels of their definitions."""
    sees, acts, ids = set[str](), set[str](), set[str]()
    for team in teams:
        of_team = reach(team.pipelines, pipelines)
        sees |= of_team
        if team.role == "operator":
            acts |= of_team
        if team.ids == "show":
            ids |= of_team
    return Grants(frozenset(sees), frozenset(acts), frozenset(ids))


def load_access(settings: Settings) -> AccessFile | None:
    """Return the file that the settings name; None without one.

    Raises:
        BadDefinition: with file, line and what was expected.
    """
    return load_yaml(AccessFile, settings.access_file) if settings.access_file else None
