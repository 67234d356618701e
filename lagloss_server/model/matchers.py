"""Matchers choose by labels: incidents (`pipeline=clicks`, `rule!=lag`, `team!~a|b`) and places (`node=~conn-.*`)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Protocol

import re2
from pydantic import BeforeValidator, Field

from lagloss_server.base.errors import BadMatchers
from lagloss_server.base.fields import describe
from lagloss_server.model.place import PlaceKind

INCIDENT_LABELS: Final = ("pipeline", "rule", "kind", "severity")
"""Labels that every incident has; its pipeline's definition adds others."""
PLACE_LABELS: Final[tuple[PlaceKind, ...]] = ("destination", "node", "link", "checkpoint")
"""Labels of an incident of a rule that is about one place: `destination=conn-ga`, `link=a->b`."""
_OF_RULE: Final = frozenset((*INCIDENT_LABELS, *PLACE_LABELS)) - {"pipeline"}
_QUIET: Final = re2.Options()
_QUIET.log_errors = False
_FORM = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_-]*)\s*(=~|!~|!=|=)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Matcher:
    """One condition on a label; a label that is not there is empty. Patterns match the whole value."""

    label: str
    operator: str
    value: str

    @classmethod
    def parse(cls, text: object) -> Matcher:
        """`label=value`, or with `!=`, `=~`, `!~`, as Alertmanager writes them.

        Raises:
            ValueError: for anything else, and for a pattern that is none.
        """
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"expected a matcher such as pipeline=clicks or rule=~lag.*, found {describe(text)}")
        label, operator, value = match[1], match[2], match[3]
        if len(value) >= 2 and value[0] == value[-1] == '"':
            value = value[1:-1]
        if operator in ("=~", "!~"):
            try:
                _pattern(value)
            except re2.error as error:
                raise ValueError(f"expected an RE2 regular expression in {text!r}, found {error}") from error
        return cls(label, operator, value)

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{self.value}"

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.label, "")
        if self.operator in ("=", "!="):
            return (value == self.value) == (self.operator == "=")
        return (_pattern(self.value).fullmatch(value) is not None) == (self.operator == "=~")


MAX_MATCHERS: Final = 20
MAX_MATCHER: Final = 1_000
"""Characters."""
MatcherList = Annotated[tuple[Annotated[Matcher, BeforeValidator(Matcher.parse)], ...], Field(max_length=MAX_MATCHERS)]


def of_pipelines(matchers: MatcherList) -> MatcherList:
    """Return matchers that choose pipelines, if none is on a label of incidents.

    Raises:
        ValueError: one is.
    """
    of_incidents = [matcher for matcher in matchers if matcher.label in _OF_RULE]
    if of_incidents:
        raise ValueError(
            f"expected matchers on `pipeline` or labels of definitions, found {of_incidents[0]}, "
            "which is a label of incidents"
        )
    return matchers


def parse_matchers(texts: Iterable[str]) -> MatcherList:
    """Return the matchers of some texts, each of which may hold several, parted by blanks: `team=web tier=~"a b|c"`.

    Raises:
        BadMatchers: one is none, or on a label that only incidents have.
    """
    matchers: list[Matcher] = []
    try:
        for text in texts:
            words = shlex.shlex(text, posix=True, punctuation_chars=False)
            words.whitespace_split, words.escape, words.commenters = True, "", ""
            matchers += map(Matcher.parse, words)
        return of_pipelines(tuple(matchers))
    except ValueError as error:
        raise BadMatchers(problem=error) from error


Matchers = Annotated[MatcherList, Field(min_length=1)]
"""A field of a YAML file: matchers, all of which must match. Of none all would: a file has to say so otherwise."""


@lru_cache(1_000)
def _pattern(text: str) -> Any:
    """Compile a pattern as Alertmanager does: RE2 takes time in proportion to what it reads, whatever is in it."""
    return re2.compile(text, _QUIET)


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
    own = {name: getattr(incident, name) for name in INCIDENT_LABELS}
    return {**(pipeline_labels or {}), **own, **place_label(incident.rule)}


def place_label(rule: str) -> dict[str, str]:
    """Return the label of the place that a rule is about, by its name (`lag/node/mid`); none of a whole pipeline's."""
    _, _, rest = rule.partition("/")
    kind, _, name = rest.partition("/")
    return {kind: name} if kind in PLACE_LABELS and name else {}


def match_all(matchers: Iterable[Matcher], labels: Mapping[str, str]) -> bool:
    """Return whether all of them match; of no matchers, all do."""
    return all(matcher.matches(labels) for matcher in matchers)


def reach(matchers: Iterable[Matcher], pipelines: Mapping[str, Mapping[str, str]]) -> frozenset[str]:
    """Return which of these pipelines, given with the labels of their definitions, have incidents that could match:
    whatever their rule, kind and severity."""
    of_pipeline = [matcher for matcher in matchers if matcher.label not in _OF_RULE]
    return frozenset(name for name, labels in pipelines.items() if match_all(of_pipeline, {**labels, "pipeline": name}))
