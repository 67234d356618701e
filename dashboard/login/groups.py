"""Roles by the groups that a provider or a proxy reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from lagloss_server.model.roles import Role
from lagloss_server.settings import Settings

EVERYBODY: Final = "*"


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a,b,… without blanks around them."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True, slots=True)
class GroupRoles:
    """Whose members are operators, and whose may look."""

    operators: frozenset[str]
    viewers: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(frozenset(listed(settings.login_operators)), frozenset(listed(settings.login_viewers)))

    def role(self, groups: Collection[str]) -> Role | None:
        """Return the role of a member of these groups; None: they may not even look."""
        if not self.operators.isdisjoint(groups):
            return "operator"
        return "viewer" if EVERYBODY in self.viewers or not self.viewers.isdisjoint(groups) else None


def claimed(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Return the texts that a claim holds, one or a list. `a.b` is a claim of that name, else b within a."""
    value: Any = claims
    for part in [name] if name in claims else name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    values = value if isinstance(value, list) else [value]
    # "*" stands for everybody in the settings; a group of that name must not
    return frozenset(each for each in values if isinstance(each, str) and each not in ("", EVERYBODY))
