"""Roles by the groups that a provider or a proxy reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from dashboard.access.policy import EVERY_USER
from lagloss_server.base.settings import Settings
from lagloss_server.model.roles import Role

EVERYBODY: Final = EVERY_USER


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a,b,… without blanks around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """Whose members are operators, and whose may look. `by_teams`: whether an access file says who may look, and at
    what; then these do not."""

    operators: frozenset[str]
    viewers: frozenset[str]
    by_teams: bool = False

    @classmethod
    def of(cls, settings: Settings) -> Self:
        operators, viewers = (frozenset(listed(text)) for text in (settings.login_operators, settings.login_viewers))
        return cls(operators, viewers, settings.access_file is not None)

    def role(self, groups: Collection[str]) -> Role | None:
        """Return the role of a member of these groups; None: they may not even look."""
        if not self.operators.isdisjoint(groups):
            return "operator"
        may_look = self.by_teams or EVERYBODY in self.viewers or not self.viewers.isdisjoint(groups)
        return "viewer" if may_look else None


def claimed(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts that a claim holds, one or a list. `a.b` is a claim of that name, else b within a."""
    value: Any = claims
    for part in [name] if name in claims else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    values = value if isinstance(value, list) else [value]
    # "*" stands for everybody in the settings; a group of that name must not
    return frozenset(value for value in values if isinstance(value, str) and value not in ("", EVERYBODY))
