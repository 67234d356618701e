"""Evaluator: judges a pipeline's windows by its rules, and writes the results in one transaction: incidents, their
changes, and notifications for their receivers."""

from __future__ import annotations

import math
import uuid
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import structlog
from msgspec import structs
from sqlalchemy import Connection
from sqlalchemy.exc import InterfaceError, OperationalError

from alerting.incidents import pending_breaches as pending
from alerting.incidents import repository as incidents
from alerting.incidents.body import BLAMED, MAX_EXAMPLES, MAX_NOTES, IncidentEvidence, suffering
from alerting.incidents.lifecycle import Transition, text_of
from alerting.incidents.notifier import Notifier
from alerting.incidents.watch_list import read_watched
from alerting.rules import Rule
from alerting.rules.assessment import SHOWN_WINDOWS, Assessment, BreachPlace, PendingBreach
from alerting.rules.blind import ReportsHealth
from alerting.rules.time_to_loss import TimeToLoss
from alerting.rules.view import HORIZON_S, PipelineView
from alerting.views import judged_windows
from alerting.views.view_cache import ViewCache
from alerting.views.window_cache import read_lossy
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import Incident
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.blame import read_blame
from lagloss_server.queries.named_messages import NamedMessage, PickedKind, of_kind, read_picked
from lagloss_server.rules.facts import MAX_NAMES
from lagloss_server.store.store import MissingMessage, Store
from lagloss_server.trace_links import NO_LINKS, TraceLinks

_CHANGES_AT_MOST: Final = 4
"""Maximum state changes per incident and evaluation; stops open/resolve loops."""

EXAMPLES_OF: Final = {"loss": ("lost", "perhaps"), "uncertain-loss": ("perhaps", "overdue")}
"""Kinds of missing messages that incidents name, by the kind of rule."""
PICKED_OF: Final[Mapping[str, PickedKind]] = {
    "lag": "late",
    "on-time": "late",
    "dead-letters": "dead",
    "corruption": "corrupted",
}
"""Kinds of picked messages that incidents name, by the kind of rule."""
_NAMED_WINDOWS: Final = 5
"""The newest of so many breached windows that has picked messages names the examples."""

NOTIFY_LATE_S: Final = 3_600
"""An incident that opens and resolves in one evaluation is notified if its breach ended at most this long ago."""

_log = structlog.get_logger("lagloss.alerting")


READ_AGAIN_S: Final = 3_600.0
"""A settled pipeline is evaluated at least this long after it was, or a little later, whatever was closed or not."""


@dataclass(slots=True)
class _Settled:
    """A pipeline of which the last evaluation left no breach pending, as long as nothing is new.

    `handled`: breaches of resolved incidents, by rule. `due_s`: when a rule may find a breach by the clock, and
    `awaited_s`: how long after messages came in. `read_again_s`: when to evaluate it in any case. `has_groups`: whether
    a rule goes by consumer groups.
    """

    version: int
    handled: Mapping[str, Set[int]]
    due_s: float
    awaited_s: float
    read_again_s: float
    has_groups: bool


@dataclass(slots=True)
class Evaluator:
    """Evaluator of pipelines, used by one thread. `dashboard_url`: base of the links in messages.

    Most pipelines are settled, and a glance at what is new of many of them says which need an evaluation.
    """

    store: Store
    notifier: Notifier
    dashboard_url: str = ""
    rule_failed: Callable[[str], None] = lambda _: None
    """Called with the pipeline's name when one of its rules raises, or its end: all others are judged all the same."""
    trace_links: TraceLinks = NO_LINKS
    _views: ViewCache = field(init=False)
    _settled: dict[str, _Settled] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._views = ViewCache(self.store)

    def evaluate(self, pipeline: StoredPipeline) -> list[str]:
        """Evaluate the pipeline's windows and update its incidents. Return the changes made, in order, as `RULE
        CHANGE`."""
        self._settled.pop(pipeline.name, None)
        rules = self._views.rules(pipeline)
        if not self._views.has_read(pipeline):
            self.read_along(pipeline)  # a day of windows, before others have to wait for our lock
        with self.store.engine.begin() as connection:
            now = incidents.lock(connection, pipeline.name)
            view = self._views.view(pipeline, now.timestamp())
            runbooks = pipeline.definition.spec.alerts.runbook
            known = incidents.read(connection, pipeline.name, int(now.timestamp()) - HORIZON_S, runbooks)
            applied_s, links = pipeline.applied_at_ms / 1_000, self.trace_links
            work = _Work(connection, self.store, pipeline.name, now, known, applied_s, runbooks, links)
            has_more = False
            for rule in rules.values():
                assessment = self._assess(rule, view)
                if assessment is not None:
                    work.judge(rule, assessment)
                has_more |= assessment is None or work.has_more(rule, assessment)
            for incident in work.open():
                if incident.rule not in rules:
                    work.end(incident, "rule removed")
            pending.write(connection, pipeline.name, work.pending())
            tells_of = {incident.rule: incident.severity for incident in work.open()}
            for known in work.stages():
                self.notifier.notify(connection, pipeline, known, tells_of, rules, self.dashboard_url, now)
        is_seen = all(_is_seen_at_a_glance(rules.get(incident.rule)) for incident in work.open())
        if is_seen and not (has_more or work.pending()):
            self._settle(pipeline, view, work.known)
        return work.changes

    def _settle(self, pipeline: StoredPipeline, view: PipelineView, known: Sequence[Incident]) -> None:
        handled: dict[str, set[int]] = {}
        for incident in known:
            if not incident.is_open:
                handled.setdefault(incident.rule, set()).update(incidents.known(incident).breaches)
        is_open = {incident.rule for incident in known if incident.is_open}
        rules, due_s = self._views.rules(pipeline).values(), self._due_s(pipeline, view, is_open)
        if due_s > view.now_s:
            self._settled[pipeline.name] = _Settled(
                version=pipeline.version,
                handled=handled,
                due_s=due_s,
                awaited_s=min((rule.target for rule in rules if rule.watches), default=math.inf),
                read_again_s=view.now_s + READ_AGAIN_S * (1 + zlib.crc32(pipeline.name.encode()) / 2**32),  # in turn
                has_groups=any(isinstance(rule, TimeToLoss) for rule in rules),
            )
            if not is_open:
                self._views.settle([pipeline], view.now_s)

    def _due_s(self, pipeline: StoredPipeline, view: PipelineView, is_open: Collection[str] = ()) -> float:
        """Return when one of the rules without an open incident may find a breach by the clock (epoch s)."""
        rules = self._views.rules(pipeline).values()
        return min(
            [self._views.habits_due_s(pipeline), *(rule.due_s(view) for rule in rules if rule.name not in is_open)]
        )

    def unsettle(self) -> None:
        """Forget which pipelines are settled: closings went by unheard, or another alerter led."""
        self._settled.clear()

    def find_due(self, versions: Mapping[str, int]) -> list[str]:
        """Return those of these pipelines, given with their newest versions, that have to be looked at, though nothing
        was heard of them."""
        with self.store.engine.connect() as connection:
            now_s = incidents.clock(connection).timestamp()
            with_groups = [name for name, settled in self._settled.items() if settled.has_groups]
            for name in read_watched(connection, now_s, with_groups):
                self._settled.pop(name, None)
            with_open = incidents.pipelines_with_open(connection)
        for name, came_s in self._views.refresh_minutes(now_s).items():
            if (settled := self._settled.get(name)) is not None:
                settled.due_s = min(settled.due_s, came_s + settled.awaited_s)
        found = []
        for name, version in versions.items():
            settled = self._settled.get(name)
            if settled is None or settled.version != version or settled.read_again_s <= now_s:
                self._settled.pop(name, None)
                found.append(name)
            elif settled.due_s <= now_s or name in with_open:
                found.append(name)
        return found

    def glance(self, pipelines: Sequence[StoredPipeline], closed: Mapping[str, Collection[int]]) -> list[str]:
        """Return those of these pipelines that need an evaluation, with `closed` the starts of windows that were closed
        since their last one: evaluated, the others would stay as they are."""
        settled = {one.name: self._settled.pop(one.name, None) for one in pipelines}
        known = [one for one in pipelines if (at := settled[one.name]) is not None and at.version == one.version]
        with self.store.engine.connect() as connection:
            now = incidents.clock(connection)
            with_open = incidents.pipelines_with_open(connection, settled)
        now_s, unchanged = now.timestamp(), []
        for pipeline, view in self._views.glance(known, closed, now_s, with_open):
            before = settled[pipeline.name]
            if before is not None and pipeline.name in with_open:
                self._glance_at_open(pipeline, view, before, now)
            elif before is not None and self._finds_nothing(pipeline, view, before):
                before.due_s = self._due_s(pipeline, view)
                if before.due_s > view.now_s:
                    self._settled[pipeline.name] = before
                    unchanged.append(pipeline)
        self._views.settle(unchanged, now_s)
        return [one.name for one in pipelines if one.name not in self._settled]

    def _finds_nothing(self, pipeline: StoredPipeline, view: PipelineView, settled: _Settled) -> bool:
        """Return whether the rules find no breach but those that are handled; one that fails is left to the
        evaluation."""
        try:
            for rule in self._views.rules(pipeline).values():
                found = rule.assess(view)
                if found.begun is not None or not found.breaches.keys() <= settled.handled.get(rule.name, _NONE):
                    return False
        except Exception:
            return False
        return True

    def _glance_at_open(self, pipeline: StoredPipeline, view: PipelineView, settled: _Settled, now: datetime) -> None:
        """Look at a pipeline with open incidents, and leave it settled if none of them changes, no other opens, and
        nothing is due to their receivers."""
        rules = self._views.rules(pipeline)
        try:
            with self.store.engine.connect() as connection:
                horizon_s, runbooks = int(view.now_s) - HORIZON_S, pipeline.definition.spec.alerts.runbook
                known = incidents.read(connection, pipeline.name, horizon_s, runbooks, locks=False)
                is_open = {incident.rule for incident in known if incident.is_open}
                for rule in rules.values():
                    found = rule.assess(view)
                    begins = found.begun is not None and rule.name not in is_open
                    if begins or incidents.judge_by(rule, found, known, view.now_s) is not None:
                        return
                if self.notifier.is_due(connection, pipeline, known, rules, self.dashboard_url, now):
                    return
        except (OperationalError, InterfaceError):  # the database is away
            raise
        except Exception:  # left to the evaluation, which reports it
            return
        settled.due_s = self._due_s(pipeline, view, is_open)
        if settled.due_s > view.now_s and all(_is_seen_at_a_glance(rules.get(name)) for name in is_open):
            self._settled[pipeline.name] = settled

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
        names, changes = set(self.store.names()), []
        with self.store.engine.begin() as connection:
            pending.forget_deleted(connection)
            judged_windows.forget_deleted(connection)
            gone = incidents.pipelines_with_open(connection) - names
        for name in sorted(gone):
            try:
                changes += self._end_incidents_of(name)
            except (OperationalError, InterfaceError):  # the database is away
                raise
            except Exception:  # those of the others end all the same
                _log.exception("ending_failed", pipeline=name)
                self.rule_failed(name)
        self._views.forget(names)
        self._settled = {name: settled for name, settled in self._settled.items() if name in names}
        return changes

    def _end_incidents_of(self, name: str) -> list[str]:
        with self.store.engine.begin() as connection:
            now = incidents.lock(connection, name)
            known = incidents.read(connection, name, int(now.timestamp()) - HORIZON_S)
            work = _Work(connection, self.store, name, now, known)
            for incident in work.open():
                work.end(incident, "deleted")
            self.notifier.notify_deleted(connection, work.known, self.dashboard_url, now)
        return work.changes

    def _assess(self, rule: Rule, view: PipelineView) -> Assessment | None:
        """None where the rule fails: then it says nothing, and its incident stays as it is."""
        try:
            return rule.assess(view)
        except Exception:
            _log.exception("rule_failed", pipeline=view.definition.name, rule=rule.name)
            self.rule_failed(view.definition.name)
            return None


_NONE: Final[Set[int]] = frozenset()


def _is_seen_at_a_glance(rule: Rule | None) -> bool:
    """Return whether a glance has all that a rule with an open incident goes by."""
    return rule is not None and not isinstance(rule, ReportsHealth | TimeToLoss)


@dataclass(slots=True)
class _Work:
    """One pipeline's incidents while they are brought up to date."""

    connection: Connection
    store: Store
    pipeline: str
    now: datetime
    known: list[Incident]
    rules_since_s: float = 0.0
    runbooks: str | None = None
    trace_links: TraceLinks = NO_LINKS
    changes: list[str] = field(default_factory=list)
    _opened: dict[uuid.UUID, Incident] = field(default_factory=dict)
    _begun: list[tuple[Rule, PendingBreach]] = field(default_factory=list)

    def stages(self) -> list[list[Incident]]:
        """Return the incidents at each moment to notify: first those that opened and resolved in this evaluation, as
        they were when open, then all as they are now. Incidents that were over long ago, or before their rule existed,
        have no first stage."""
        from_s = max(self.rules_since_s, self.now.timestamp() - NOTIFY_LATE_S)
        passing = [
            each
            for each in self.known
            if not each.is_open and each.id in self._opened and each.last_window_s + WINDOW_S >= from_s
        ]
        return [*([[self._opened[each.id] for each in passing]] if passing else []), self.known]

    def open(self) -> list[Incident]:
        return [incident for incident in self.known if incident.is_open]

    def pending(self) -> list[tuple[Rule, PendingBreach]]:
        """Return rules that breach in too few windows yet and have no open incident."""
        is_open = {incident.rule for incident in self.open()}
        return [(rule, begun) for rule, begun in self._begun if rule.name not in is_open]

    def judge(self, rule: Rule, assessment: Assessment) -> None:
        if assessment.begun is not None:
            self._begun.append((rule, assessment.begun))
        for _ in range(_CHANGES_AT_MOST):
            change = self._next_change(rule, assessment)
            if change is None:
                return
            self._make(rule, change, assessment)

    def has_more(self, rule: Rule, assessment: Assessment) -> bool:
        """Return whether changes are left to the next evaluation."""
        return self._next_change(rule, assessment) is not None

    def _next_change(self, rule: Rule, assessment: Assessment) -> Transition | None:
        return incidents.judge_by(rule, assessment, self.known, self.now.timestamp())

    def end(self, incident: Incident, why: str) -> None:
        detail = {**incident.detail, "resolved_because": why}
        self._write(replace(incident, state="resolved", resolved_at=self.now, detail=detail), "resolved", why)

    def _make(self, rule: Rule, change: Transition, assessment: Assessment) -> None:
        before = next((incident for incident in self.known if incident.id == change.incident), None)
        self._write(self._changed(rule, change, assessment, before), change.kind, change.why)

    def _write(self, incident: Incident, change: str, note: str) -> None:
        incidents.write(self.connection, incident, change, self.now, note)
        self.known = [incident, *(other for other in self.known if other.id != incident.id)]
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

    def _changed(self, rule: Rule, change: Transition, assessment: Assessment, before: Incident | None) -> Incident:
        is_open = change.kind != "resolved"
        # the acknowledgement was of the earlier episode, or of the ticket
        taken = None if change.kind in ("raised", "reopened") else before
        windows = change.breaches or ((before.first_window_s, before.last_window_s) if before else ())  # revised away
        return Incident(
            id=uuid.uuid4() if before is None else before.id,
            pipeline=self.pipeline,
            rule=rule.name,
            kind=rule.kind,
            severity="critical" if change.pages else "warning",
            state="open" if is_open else "resolved",
            opened_at=self.now if before is None else before.opened_at,
            resolved_at=None if is_open else self.now,
            acknowledged_at=taken.acknowledged_at if taken else None,
            acknowledged_by=taken.acknowledged_by if taken else None,
            first_window_s=min(windows),
            last_window_s=max(windows),
            value=change.value,
            worst=change.worst,
            target=rule.target,
            detail=self._detail(rule, change, assessment, before.detail if before else {}),
            withheld=before.withheld if before else None,
            runbooks=self.runbooks,
        )

    def _detail(
        self, rule: Rule, change: Transition, assessment: Assessment, before: Mapping[str, Any]
    ) -> dict[str, Any]:
        notes = [f"window {rfc3339(start)} was revised: no breach any more" for start in change.revised]
        worst_window = [start for start, value in change.breaches.items() if value == change.worst]
        if change.kind == "resolved":
            evidence = before
        else:
            evidence = self._evidence(rule, change, assessment.places).document(self.trace_links)
        return {
            **{name: evidence[name] for name in ("where", "destinations", "examples", "messages", "lost", "blame")},
            "breaches": incidents.ranges(change.breaches),
            "what": rule.what,
            "unit": rule.unit,
            "text": text_of(rule, change, assessment),
            "worst_window": worst_window[-1] if worst_window else before["worst_window"],
            "windows": len(change.breaches) or before["windows"],
            "notes": [*before.get("notes", ()), *notes][-MAX_NOTES:],
            "resolved_because": change.why or None,
        }

    def _evidence(self, rule: Rule, change: Transition, places: Sequence[BreachPlace]) -> IncidentEvidence:
        """Collect evidence of the newest breached windows: places (`places`, if the rule has found them), and the
        newest losses."""
        starts = sorted(change.breaches)[-SHOWN_WINDOWS:]
        windows = self.store.closed_windows(self.pipeline, starts)
        newest = windows[-1] if windows else None
        return IncidentEvidence(
            where=places or rule.where(windows),
            destinations=suffering(windows),
            examples=self._examples(rule, starts[-1]) or self._picked(rule, starts),
            messages=newest.messages if newest else None,
            lost=structs.asdict(newest.lost) if newest and newest.lost else None,
            blame=self._blame(rule.kind, starts),
        )

    def _examples(self, rule: Rule, start_s: int) -> list[MissingMessage]:
        """Return messages of a window that are missing where a rule about loss looks, as its kind of incident says."""
        kinds = EXAMPLES_OF.get(rule.kind)
        if kinds is None:
            return []
        within: frozenset[str] | None = getattr(rule, "within", None)
        at_most = MAX_EXAMPLES if within is None else MAX_NAMES
        found = self.store.missing(self.pipeline, start_s, at_most, kinds=kinds)
        return [each for each in found if within is None or within.intersection(each.places)][:MAX_EXAMPLES]

    def _picked(self, rule: Rule, starts: Sequence[int]) -> list[NamedMessage]:
        """Return late (worst first), dead or corrupted messages of the newest window that has some where the rule
        looks. Like blame, no page waits for them."""
        kind = PICKED_OF.get(rule.kind)
        if kind is None:
            return []
        place, late_ms = getattr(rule, "place", None), getattr(rule, "within_ms", rule.target)
        try:
            graph = self.store.graph_at(self.pipeline, starts[-1])
            for start in sorted(starts, reverse=True)[:_NAMED_WINDOWS]:
                with self.store.engine.connect() as connection:
                    picked = read_picked(connection, self.pipeline, start)
                found = of_kind(start, picked, kind, graph=graph, place=place, above_ms=late_ms)
                if found:
                    return found[:MAX_EXAMPLES]
        except Exception:
            _log.exception("examples_failed", pipeline=self.pipeline)
        return []

    def _blame(self, kind: str, starts: Sequence[int]) -> dict[str, Any] | None:
        """Return what the bad messages of these windows have in common; None where it is not known. No page waits for
        a cause that cannot be found out."""
        of = BLAMED.get(kind)
        if of is None:
            return None
        try:
            found = read_blame(self.store, self.pipeline, starts, [of])
        except Exception:
            _log.exception("blame_failed", pipeline=self.pipeline)
            return None
        return dict(found[0].document()) if found else None
