"""Findings: a pipeline's rules, applied once to a snapshot of it, and what they change of its incidents. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from alerting.incidents.lifecycle import REOPEN_S, KnownIncident, Transition, transitions
from alerting.rules import Rule
from alerting.rules.assessment import Assessment, PendingBreach
from alerting.rules.view import PipelineView
from lagloss_server.model.definition import StoredPipeline


@dataclass(frozen=True, slots=True)
class PipelineSnapshot:
    """What is read of a pipeline for one turn.

    `known`: by rule, its open incident and those that were resolved within a day. `read_again_s`: when the pipeline is
    to be read completely again (epoch s), whatever was closed. `is_notification_due`: whether receivers of its open
    incidents are to get something, though none of them changes.
    """

    pipeline: StoredPipeline
    rules: Mapping[str, Rule]
    view: PipelineView
    known: Mapping[str, Sequence[KnownIncident]]
    read_again_s: float
    is_notification_due: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """Assessments of a pipeline by its rules, by their names. `failures`: of rules that raised: these find nothing, and
    their incidents stay as they are."""

    snapshot: PipelineSnapshot
    assessments: Mapping[str, Assessment]
    failures: Mapping[str, Exception]

    @property
    def pipeline(self) -> StoredPipeline:
        return self.snapshot.pipeline

    @property
    def rules(self) -> Mapping[str, Rule]:
        return self.snapshot.rules

    def changes(
        self, known_by_rule: Mapping[str, Sequence[KnownIncident]], now_s: float
    ) -> tuple[dict[str, list[Transition]], bool]:
        """Return the changes of these incidents by rule, in order, and whether more are left to the next turn."""
        changes: dict[str, list[Transition]] = {}
        has_more = False
        origin = f"{self.pipeline.name}/{self.pipeline.applied_at_ms}"
        for name, assessment in self.assessments.items():
            if not (assessment.breaches or name in known_by_rule):  # as most are
                continue
            of_rule, is_cut = transitions(origin, self.rules[name], assessment, known_by_rule.get(name, ()), now_s)
            has_more |= is_cut
            if of_rule:
                changes[name] = of_rule
        return changes, has_more

    def pending(self, with_open: Collection[str]) -> list[tuple[Rule, PendingBreach]]:
        """Return the rules that breach in too few windows yet, without those `with_open` incidents."""
        return [
            (self.rules[name], assessment.begun)
            for name, assessment in self.assessments.items()
            if assessment.begun is not None and name not in with_open
        ]

    def new_breaches(self) -> dict[str, Collection[int]]:
        """Return the windows (epoch s) that are breaches of the incidents in the snapshot which open or change, by
        rule."""
        changes, _ = self.changes(self.snapshot.known, self.snapshot.view.now_s)
        unresolved = {
            name: [change for change in of_rule if change.kind != "resolved"] for name, of_rule in changes.items()
        }
        return {name: of_rule[-1].breaches.keys() for name, of_rule in unresolved.items() if of_rule}

    @property
    def changes_nothing(self) -> bool:
        """Whether no incident of the snapshot changes, no breach is pending, and no notification is due."""
        snapshot = self.snapshot
        changes, _ = self.changes(snapshot.known, snapshot.view.now_s)
        return not changes and not self.pending(open_rules(snapshot.known)) and not snapshot.is_notification_due


def assess(snapshot: PipelineSnapshot) -> Findings:
    """Assess a pipeline by all of its rules. One that raises keeps no other from being assessed."""
    assessments: dict[str, Assessment] = {}
    failures: dict[str, Exception] = {}
    for name, rule in snapshot.rules.items():
        try:
            assessments[name] = rule.assess(snapshot.view)
        except Exception as error:
            failures[name] = error
    return Findings(snapshot, assessments, failures)


def can_change(known_by_rule: Mapping[str, Sequence[KnownIncident]], now_s: float) -> bool:
    """Return whether a breach, or its end, can change one of these incidents: it is open, or can be reopened."""
    return any(
        incident.resolved_at_s is None or now_s - incident.resolved_at_s <= REOPEN_S
        for incidents in known_by_rule.values()
        for incident in incidents
    )


def open_rules(known_by_rule: Mapping[str, Sequence[KnownIncident]]) -> set[str]:
    """Return the rules of which an incident is open."""
    return {
        rule
        for rule, incidents in known_by_rule.items()
        if any(incident.resolved_at_s is None for incident in incidents)
    }
