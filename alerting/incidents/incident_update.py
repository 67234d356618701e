"""Update of one pipeline's incidents: what a turn finds, written in one transaction with its notifications."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import structlog
from sqlalchemy import Connection

from alerting.incidents import repository as incidents
from alerting.incidents.evidence import IncidentEvidence
from alerting.incidents.findings import Findings
from alerting.incidents.lifecycle import Transition, text_of
from alerting.incidents.notifier import Notifier
from alerting.rules import Rule
from alerting.rules.assessment import Assessment
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import Incident, Withheld
from lagloss_server.model.window import rfc3339

NOTIFY_LATE_S: Final = 3_600
"""An incident that opens and resolves in one turn is notified if its breach ended at most this long ago."""
MAX_NOTES: Final = 20
_EVIDENCE: Final = ("where", "destinations", "examples", "messages", "lost", "blame")

Document = dict[str, Any]

_log = structlog.get_logger("lagloss.alerting")


@dataclass(slots=True)
class IncidentUpdate:
    """One pipeline's incidents, locked by the transaction of `connection`, while they are brought up to date.

    `current`: as they are by now, the newest changed first. `changes`: those made so far, in order, as `RULE CHANGE`.
    """

    connection: Connection
    pipeline: str
    now: datetime
    current: list[Incident]
    changes: list[str] = field(default_factory=list)
    _opened: dict[uuid.UUID, Incident] = field(default_factory=dict)

    @property
    def open(self) -> list[Incident]:
        return [incident for incident in self.current if incident.is_open]

    def apply(self, findings: Findings, evidence: Mapping[str, Document]) -> bool:
        """Write the changes that the findings make of these incidents, and the breaches that are pending; return
        whether some are left to the next turn. `evidence`: of the incidents that open or change, by rule."""
        known_by_rule = incidents.by_rule(self.current)
        changes, has_more = findings.changes(known_by_rule, self.now.timestamp())
        for name, of_rule in changes.items():
            for change in of_rule:
                self._change(findings, findings.rules[name], change, evidence.get(name))
        for incident in self.open:
            if incident.rule not in findings.rules:
                self.end(incident, "rule removed")
        pending = findings.pending({incident.rule for incident in self.open})
        incidents.write_pending(self.connection, self.pipeline, pending)
        return has_more or bool(pending)

    def notify(self, findings: Findings, notifier: Notifier) -> None:
        """Queue the notifications that are due."""
        open_rules = {incident.rule: incident.severity for incident in self.open}
        withheld: dict[uuid.UUID, Withheld | None] = {}
        for stage in self._stages(findings.pipeline.applied_at_ms / 1_000):
            current = [replace(incident, withheld=withheld.get(incident.id, incident.withheld)) for incident in stage]
            withheld |= notifier.notify(
                self.connection, findings.pipeline, current, open_rules, findings.rules, self.now
            )

    def end(self, incident: Incident, why: str) -> None:
        """Resolve an incident whose rule is evaluated no longer."""
        detail = {**incident.detail, "resolved_because": why}
        self._write(replace(incident, state="resolved", resolved_at=self.now, detail=detail), "resolved", why)

    def _stages(self, rules_since_s: float) -> list[list[Incident]]:
        """Return the incidents at each moment to notify: first those that opened and resolved in this turn, as they
        were when open, then all as they are now. Incidents that were over long ago, or before their rule existed, have
        no first stage."""
        from_s = max(rules_since_s, self.now.timestamp() - NOTIFY_LATE_S)
        passing = [
            self._opened[incident.id]
            for incident in self.current
            if not incident.is_open and incident.id in self._opened and incident.last_window_s + WINDOW_S >= from_s
        ]
        return [*([passing] if passing else []), self.current]

    def _change(self, findings: Findings, rule: Rule, change: Transition, evidence: Document | None) -> None:
        before = next((incident for incident in self.current if incident.id == change.incident), None)
        assessment = findings.assessments[rule.name]
        detail = _detail(rule, change, assessment, before.detail if before else {}, evidence)
        is_open = change.kind != "resolved"
        # the acknowledgement was of the earlier episode, or of the ticket
        acknowledged = None if change.kind in ("raised", "reopened") else before
        windows = change.breaches or ((before.first_window_s, before.last_window_s) if before else ())  # revised away
        incident = Incident(
            id=change.incident or uuid.uuid4(),
            pipeline=self.pipeline,
            rule=rule.name,
            kind=rule.kind,
            severity="critical" if change.pages else "warning",
            state="open" if is_open else "resolved",
            opened_at=self.now if before is None else before.opened_at,
            resolved_at=None if is_open else self.now,
            acknowledged_at=acknowledged.acknowledged_at if acknowledged else None,
            acknowledged_by=acknowledged.acknowledged_by if acknowledged else None,
            first_window_s=min(windows),
            last_window_s=max(windows),
            value=change.value,
            worst=change.worst,
            target=rule.target,
            detail=detail,
            withheld=before.withheld if before else None,
            runbooks=findings.pipeline.definition.spec.alerts.runbook,
        )
        self._write(incident, change.kind, change.why)

    def _write(self, incident: Incident, change: str, note: str) -> None:
        incidents.write(self.connection, incident, change, self.now, note)
        self.current = [incident, *(other for other in self.current if other.id != incident.id)]
        if change in ("opened", "raised", "reopened"):
            self._opened[incident.id] = incident
        self.changes.append(f"{incident.rule} {change}")
        _log.info(
            f"incident_{change}",
            pipeline=self.pipeline,
            rule=incident.rule,
            incident=str(incident.id),
            value=incident.value,
            worst=incident.worst,
            target=incident.target,
            why=note or None,
        )


def _detail(
    rule: Rule,
    change: Transition,
    assessment: Assessment,
    before: Mapping[str, Any],
    evidence: Document | None,
) -> Document:
    notes = [f"window {rfc3339(start)} was revised: no longer a breach" for start in change.revised]
    worst_windows = [start for start, value in change.breaches.items() if value == change.worst]
    if change.kind == "resolved":
        evidence = {name: before[name] for name in _EVIDENCE}
    elif evidence is None:  # another alerter changed the incident after the snapshot
        evidence = IncidentEvidence(where=assessment.places).document()
    return {
        **evidence,
        "breaches": incidents.ranges(change.breaches),
        "what": rule.what,
        "unit": rule.unit,
        "text": text_of(rule, change, assessment),
        "worst_window": worst_windows[-1] if worst_windows else before["worst_window"],
        "windows": len(change.breaches) or before["windows"],
        "notes": [*before.get("notes", ()), *notes][-MAX_NOTES:],
        "resolved_because": change.why or None,
    }
