"""Evaluator: a pipeline's turn, from what is read of it to incidents and notifications.

1. Snapshot: the news of its windows, for many pipelines at once, or all that its rules go by.
2. `assess`: the rules are applied to it, once; where that changes nothing, the turn is over.
3. Evidence of the incidents that open or change.
4. `apply`: one transaction writes incidents, their changes, and the notifications that are due.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Final

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError

from alerting.incidents import repository as incidents
from alerting.incidents.evidence import read_evidence
from alerting.incidents.findings import Findings, PipelineSnapshot, assess, can_change, open_rules
from alerting.incidents.incident_update import IncidentUpdate
from alerting.incidents.lifecycle import KnownIncident
from alerting.incidents.notifier import NotificationContext, Notifier
from alerting.incidents.pre_check import PreCheck, SettledPipeline, has_groups, has_rechecks, is_judged_by_news
from alerting.incidents.repository import NotLeading
from alerting.rules.view import HORIZON_S
from alerting.views import judged_windows
from alerting.views.view_cache import ViewCache
from alerting.views.window_cache import read_lossy
from lagloss_server.base.trace_links import NO_LINKS, TraceLinks
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.ownership import Lease
from lagloss_server.store.store import Store

READ_AGAIN_S: Final = 3_600.0
"""A settled pipeline is read completely at least this long after it was, or a little later, whatever was closed."""

_log = structlog.get_logger("lagloss.alerting")


@dataclass(frozen=True, slots=True)
class News:
    """The news of some pipelines: `findings` that are to be applied, and the pipelines that are `unread`: the news of
    their windows are not enough, so they are to be evaluated."""

    findings: Sequence[Findings]
    unread: Sequence[str]


@dataclass(slots=True)
class Evaluator:
    """Evaluator of pipelines, used by one thread."""

    store: Store
    notifier: Notifier
    rule_failed: Callable[[str], None] = lambda _: None
    """Called with the pipeline's name when one of its rules raises, or its end: all others are judged all the same."""
    trace_links: TraceLinks = NO_LINKS
    lead: Lease | None = None
    """Condition of whatever is written; None: no other alerter evaluates."""
    _views: ViewCache = field(init=False)
    _pre_check: PreCheck = field(default_factory=PreCheck)

    def __post_init__(self) -> None:
        self._views = ViewCache(self.store)

    def evaluate(self, pipeline: StoredPipeline) -> list[str]:
        """Read all that the pipeline's rules go by, and update its incidents. Return the changes made, in order, as
        `RULE CHANGE`."""
        self._pre_check.take(pipeline)
        with self.store.engine.connect() as connection:
            now = incidents.clock(connection)
            [stored] = self._read_incidents(connection, [pipeline], now, locks=False).values()
        view = self._views.view(pipeline, now.timestamp())
        read_again_s = view.now_s + READ_AGAIN_S * (1 + zlib.crc32(pipeline.name.encode()) / 2**32)  # in turn
        known_by_rule = incidents.by_rule(stored)
        findings = assess(PipelineSnapshot(pipeline, self._views.rules(pipeline), view, known_by_rule, read_again_s))
        for rule, error in findings.failures.items():
            _log.error("rule_failed", pipeline=pipeline.name, rule=rule, exc_info=error)
            self.rule_failed(pipeline.name)
        return self.apply(findings)

    def assess_news(self, pipelines: Sequence[StoredPipeline], closed: Mapping[str, Collection[int]]) -> News:
        """Assess the news of those of these pipelines that are settled, `closed` the starts of windows that were closed
        since the last turn of each. Those that an evaluation would leave as they are stay settled."""
        to_apply: list[Findings] = []
        unread = dict.fromkeys(pipeline.name for pipeline in pipelines)
        unchanged: list[PipelineSnapshot] = []
        for snapshot in self._read_news(pipelines, closed):
            findings = assess(snapshot)
            try:
                if findings.failures:
                    continue
                if not findings.changes_nothing:
                    to_apply.append(findings)
                elif not self._settle(snapshot, snapshot.known):
                    continue
                elif not open_rules(snapshot.known):
                    unchanged.append(snapshot)
                del unread[snapshot.pipeline.name]
            except Exception:
                continue  # left to the evaluation, as failures are: it reports them
        if unchanged:
            self._views.settle([snapshot.pipeline for snapshot in unchanged], unchanged[0].view.now_s)
        return News(to_apply, [*unread])

    def _read_news(
        self, pipelines: Sequence[StoredPipeline], closed: Mapping[str, Collection[int]]
    ) -> Iterable[PipelineSnapshot]:
        """Read the news of the pipelines that are settled, and the incidents of those that have open ones."""
        taken = {pipeline.name: self._pre_check.take(pipeline) for pipeline in pipelines}
        settled = {name: before for name, before in taken.items() if before is not None}
        readable = {pipeline.name: pipeline for pipeline in pipelines if pipeline.name in settled}
        with self.store.engine.connect() as connection:
            now = incidents.clock(connection)
            with_open = [readable[name] for name in incidents.pipelines_with_open(connection, readable)]
            stored = self._read_incidents(connection, with_open, now, locks=False)
            context = self.notifier.read_context(connection, with_open, [*chain.from_iterable(stored.values())], now)
        known_by_pipeline = {name: before.known for name, before in settled.items()}
        known_by_pipeline |= {name: incidents.by_rule(rows) for name, rows in stored.items()}
        changeable = {
            name for name, known_by_rule in known_by_pipeline.items() if can_change(known_by_rule, now.timestamp())
        }
        for pipeline, view in self._views.news([*readable.values()], closed, now.timestamp(), changeable):
            name, rules = pipeline.name, self._views.rules(pipeline)
            is_due = name in stored and self._is_notification_due(context, pipeline, stored[name], now)
            yield PipelineSnapshot(pipeline, rules, view, known_by_pipeline[name], settled[name].read_again_s, is_due)

    def _is_notification_due(
        self, context: NotificationContext, pipeline: StoredPipeline, stored: Sequence[Incident], now: datetime
    ) -> bool:
        try:
            return self.notifier.is_due(context, pipeline, stored, self._views.rules(pipeline), now)
        except Exception:  # left to the update of this pipeline alone, which reports it
            return True

    def apply(self, findings: Findings) -> list[str]:
        """Update the pipeline's incidents, and notify their receivers. Return the changes made, in order, as `RULE
        CHANGE`.

        Raises:
            NotLeading: another alerter leads by now.
        """
        pipeline = findings.pipeline
        evidence = read_evidence(self.store, findings, self.trace_links)
        with self.store.engine.begin() as connection:
            now = incidents.lock(connection, pipeline.name, self.lead)
            [stored] = self._read_incidents(connection, [pipeline], now).values()
            update = IncidentUpdate(connection, pipeline.name, now, stored)
            is_unfinished = update.apply(findings, evidence)
            update.notify(findings, self.notifier)
        if not is_unfinished and not findings.failures:
            is_settled = self._settle(findings.snapshot, incidents.by_rule(update.current))
            if is_settled and not update.open:
                self._views.settle([pipeline], findings.snapshot.view.now_s)
        return update.changes

    def _read_incidents(
        self, connection: Connection, pipelines: Sequence[StoredPipeline], now: datetime, *, locks: bool = True
    ) -> dict[str, list[Incident]]:
        runbooks = {pipeline.name: pipeline.definition.spec.alerts.runbook for pipeline in pipelines}
        return incidents.read(connection, runbooks, int(now.timestamp()) - HORIZON_S, locks=locks)

    def _settle(self, snapshot: PipelineSnapshot, known_by_rule: Mapping[str, Sequence[KnownIncident]]) -> bool:
        """Note that nothing is to be found in a pipeline until something is new; return whether that is so."""
        pipeline, rules, view, is_open = snapshot.pipeline, snapshot.rules, snapshot.view, open_rules(known_by_rule)
        due_s = [rule.due_s(view) for name, rule in rules.items() if name not in is_open]
        due_s.append(self._views.habits_due_s(pipeline))
        if min(due_s) <= view.now_s or not all(is_judged_by_news(rules.get(name)) for name in is_open):
            return False
        settled = SettledPipeline(
            version=pipeline.version,
            known=known_by_rule,
            due_s=min(due_s),
            awaited_s=min((rule.target for rule in rules.values() if rule.watches), default=math.inf),
            read_again_s=snapshot.read_again_s,
            has_groups=has_groups(rules.values()),
            has_rechecks=has_rechecks(rules.values()),
        )
        self._pre_check.settle(pipeline.name, settled)
        return True

    def unsettle(self) -> None:
        """Forget which pipelines are settled: closings went by unheard, or another alerter led."""
        self._pre_check.clear()

    def find_due(self, versions: Mapping[str, int]) -> list[str]:
        """Return those of these pipelines, given with their newest versions, that need a turn, though nothing was heard
        of them."""
        with self.store.engine.connect() as connection:
            now_s = incidents.clock(connection).timestamp()
        first_seen_s = self._views.refresh_minutes(now_s)  # may take longer than a transaction may idle
        with self.store.engine.connect() as connection:
            return self._pre_check.find_due(connection, versions, first_seen_s, now_s)

    def find_lossy(self, closed: Mapping[str, Collection[int]]) -> list[str]:
        """Return the pipelines of which one of these windows is lossy."""
        with self.store.engine.connect() as connection:
            return read_lossy(connection, closed)

    def read_along(self, pipeline: StoredPipeline) -> None:
        """Read the view ahead of an evaluation, so that the next one has less to read."""
        with self.store.engine.connect() as connection:
            now_s = incidents.clock(connection).timestamp()
        self._views.view(pipeline, now_s, follows=True)

    def end_incidents_of_deleted(self) -> list[str]:
        """Resolve open incidents of deleted pipelines and notify their receivers; return the changes."""
        names, changes = set(self.store.names(unlisted=True)), []
        with self.store.engine.begin() as connection:
            incidents.forget_pending_of_deleted(connection)
            judged_windows.forget_deleted(connection)
            gone = incidents.pipelines_with_open(connection) - names
        for name in sorted(gone):
            try:
                changes += self._end_incidents_of(name)
            except (OperationalError, InterfaceError, NotLeading):  # none of the others could be ended
                raise
            except Exception:  # those of the others end all the same
                _log.exception("resolution_failed", pipeline=name)
                self.rule_failed(name)
        self._views.forget(names)
        self._pre_check.retain(names)
        return changes

    def _end_incidents_of(self, name: str) -> list[str]:
        with self.store.engine.begin() as connection:
            now = incidents.lock(connection, name, self.lead)
            [stored] = incidents.read(connection, {name: None}, int(now.timestamp()) - HORIZON_S).values()
            update = IncidentUpdate(connection, name, now, stored)
            for incident in update.open:
                update.end(incident, "deleted")
            self.notifier.notify_deleted(connection, update.current, now)
        return update.changes
