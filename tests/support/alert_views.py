"""Views for tests of rules: made of windows' documents, as readings make them of stored ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from alerting.incidents.lifecycle import KnownIncident, Transition, next_change, text_of
from alerting.rules import Rule, reader_of, rules_of
from alerting.rules.assessment import Assessment
from alerting.rules.view import PipelineView
from lagloss_server.model.definition import Definition, parse_definition
from tests.support.window_documents import CHAIN, document, window_of

START = 1_795_000_020 // 60 * 60
"""Minute 0."""


def defined(alerts: str = "", sla: str = "") -> Definition:
    """The chain, with these lines of `spec.alerts` and this `spec.sla`."""
    lines = "".join(f"    {line}\n" for line in alerts.splitlines())
    text = CHAIN if not sla else CHAIN[: CHAIN.index("  sla:")] + f"  sla: {sla}\n"
    return parse_definition(text + (f"  alerts:\n{lines}" if lines else ""))


def rule_of(definition: Definition, name: str) -> Rule:
    return next(rule for rule in rules_of(definition) if rule.name == name)


def minute(at: int) -> int:
    """Start of a minute's window, epoch s."""
    return START + 60 * at


def window(
    definition: Definition, at: int, verdict: str = "ok", messages: int = 1_000, lost: int = 0, **more: Any
) -> dict[str, Any]:
    places = {"src->mid": (lost, lost)} if lost else None
    return document(definition, minute(at), verdict=verdict, messages=messages, lost=places, **more)


def view_of(
    definition: Definition, documents: Mapping[int, dict[str, Any]], now_at: float = 0, **more: Any
) -> PipelineView:
    """Documents by minute; by default it is a minute after the newest, and all are spoken of."""
    reader = reader_of(definition)
    now_s = minute(0) + 60 * (now_at or max(documents, default=0) + 2)
    rows = [reader.row(minute(at), window_of(found)) for at, found in sorted(documents.items())]
    given = {"seen_from_s": minute(min(documents, default=0)), **more}
    return PipelineView(definition=definition, now_s=now_s, windows=reader.windows(rows), **given)


class Told:
    """What is written of one rule of a pipeline: its incidents, with every change."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.incidents: dict[int, KnownIncident] = {}
        self.changes: list[Transition] = []
        self._found: Assessment | None = None

    @classmethod
    def of(cls, definition: Definition, name: str) -> Told:
        return cls(rule_of(definition, name))

    @classmethod
    def all_of(cls, definition: Definition) -> list[Told]:
        return [cls(rule) for rule in rules_of(definition)]

    @property
    def severity(self) -> str:
        """Of the newest incident."""
        return "critical" if self.changes[-1].pages else "warning"

    @property
    def text(self) -> str:
        """What its rule said when it last changed."""
        assert self._found is not None
        return text_of(self.rule, self.changes[-1], self._found)

    def evaluate(self, view: PipelineView) -> list[Transition]:
        """Judges until there is no change any more, and writes each."""
        made = []
        found = self._found = self.rule.assess(view)
        while change := next_change(self.rule, found, self.incidents.values(), view.now_s):
            made.append(change)
            assert len(made) < 10, "judging does not come to rest"
            self._write(change, view.now_s)
        self.changes += made
        return made

    def _write(self, change: Transition, now_s: float) -> None:
        number = len(self.incidents) + 1 if change.incident is None else change.incident.int
        self.incidents[number] = change.after(UUID(int=number), now_s)

    @property
    def open(self) -> KnownIncident | None:
        return next((found for found in self.incidents.values() if found.resolved_at_s is None), None)

    @property
    def resolved(self) -> list[KnownIncident]:
        return [found for found in self.incidents.values() if found.resolved_at_s is not None]

    @property
    def kinds(self) -> list[str]:
        return [change.kind for change in self.changes]
