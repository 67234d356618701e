"""Matchers choose incidents by their labels: `pipeline=clicks`, `rule!=lag`, `rule=~lag/.*`, `team!~a|b`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

INCIDENT_LABELS: Final = ("pipeline", "rule", "kind", "severity")
"""Labels that every incident has; its pipeline's definition adds others."""
_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)\s*(=~|!~|!=|=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a label that is not there is empty. Patterns match the whole value."""

    label: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: str) -> Matcher:
        """`label=value`, or with `!=`, `=~`, `!~`, as Alertmanager writes them.

        Raises:
            ValueError: for anything else, and for a pattern that is none.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"expected a matcher such as pipeline=clicks or rule=~lag.*, found {text!r}")
        label, operator, value = found[1], found[2], found[3]
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if operator in ("=~", "!~"):
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"expected a regular expression in {text!r}, found one with {error}") from error
        return cls(label, operator, value)

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{self.value}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.label, "")
        if self.operator in ("=", "!="):
            return (found == self.value) == (self.operator == "=")
        return (re.fullmatch(self.value, found) is not None) == (self.operator == "=~")


class Labelled(Protocol):
    """An incident with labels, in whatever form, or a row of one."""

    @property
    def pipeline(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def severity(self) -> str: ...


def labels_of(incident: Labelled, pipeline_labels: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the labels that matchers compare: those of the pipeline's definition, and the incident's own."""
    return {**(pipeline_labels or {}), **{name: getattr(incident, name) for name in INCIDENT_LABELS}}


def match_all(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Return whether all of them match; of no matchers, all do."""
    return all(matcher.matches(labels) for matcher in matchers)
