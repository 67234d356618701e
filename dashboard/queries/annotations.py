"""Annotations of a pipeline over a span of time: incidents, versions of its definition, deploys and scaling of its
nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, TypedDict, cast

from sqlalchemy import case, func, literal, null, select, union_all
from sqlalchemy.orm import aliased

from dashboard.queries.incident_documents import IncidentDocument
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import Incident, chosen_incidents, incident_table
from lagloss_server.judging.freshness import SILENT_AFTER_MS
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

MAX_INCIDENTS: Final = 50
"""Incidents shown: critical ones first, then the newest. More cannot be distinguished in a strip."""
MAX_CHANGES: Final = 500
"""The newest changes of processes that are shown."""


DeployKind = Literal["definition", "version", "start", "restart", "scale-out", "scale-in"]


class DeployDocument(TypedDict):
    """Something was put into service, or taken out of it: see `Deploy`."""

    at: str
    text: str
    node: str | None
    count: int
    kind: DeployKind


class HappeningsDocument(TypedDict):
    """Incidents and deploys of a range: see `Happenings`."""

    incidents: list[IncidentDocument]
    more_incidents: int
    deploys: list[DeployDocument]


@dataclass(frozen=True, slots=True)
class Deploy:
    """Something was put into service, or taken out of it, at `at_s` (epoch s): a version of the definition (`node`
    None), or `count` processes of a node within a minute. `kind`: `version` where they have a label `version` that the
    node had not; else by how many processes it has before and after."""

    at_s: float
    text: str
    node: str | None = None
    count: int = 1
    kind: DeployKind = "definition"

    def document(self) -> DeployDocument:
        return {
            "at": rfc3339(round(self.at_s)),
            "text": self.text,
            "node": self.node,
            "count": self.count,
            "kind": self.kind,
        }


@dataclass(frozen=True, slots=True)
class Happenings:
    """`incidents`: those that a part of lies in the span, the longest open first, `MAX_INCIDENTS` at most; there are
    `more_incidents` beside them. `deploys`: oldest first."""

    incidents: tuple[Incident, ...] = ()
    deploys: tuple[Deploy, ...] = ()
    more_incidents: int = 0

    def document(self) -> HappeningsDocument:
        return {
            "incidents": [cast("IncidentDocument", incident.document()) for incident in self.incidents],
            "more_incidents": self.more_incidents,
            "deploys": [deploy.document() for deploy in self.deploys],
        }


def read_happenings(store: Store, pipeline: str, span: TimeRange) -> Happenings:
    """Read the pipeline's events within the span."""
    within, more = _incidents(store, pipeline, span)
    deploys = [*_versions(store, pipeline, span), *_processes(store, pipeline, span)]
    return Happenings(within, tuple(sorted(deploys, key=lambda deploy: deploy.at_s)), more)


def _incidents(store: Store, pipeline: str, span: TimeRange) -> tuple[tuple[Incident, ...], int]:
    """Return those that are shown, and how many there are beside them."""
    row = incident_table.c
    chosen = [
        row.pipeline == pipeline,
        row.first_window < span.to_s,
        (row.state == "open") | (row.resolved_at >= datetime.fromtimestamp(span.from_s, UTC)),
    ]
    incidents = chosen_incidents(store, chosen, (row.severity, row.opened_at.desc(), row.id), MAX_INCIDENTS)
    more = 0
    if len(incidents) == MAX_INCIDENTS:
        with store.engine.connect() as connection:
            more = connection.execute(select(func.count()).where(*chosen)).scalar_one() - len(incidents)
    incidents.sort(key=lambda incident: (incident.first_window_s, str(incident.id)))
    return tuple(incidents), more


def _versions(store: Store, pipeline: str, span: TimeRange) -> Sequence[Deploy]:
    row = tables.PipelineRow
    statement = select(row.version, row.applied_at).where(
        row.name == pipeline, row.applied_at >= span.from_s * 1_000, row.applied_at < span.to_s * 1_000
    )
    with store.engine.connect() as connection:
        return [
            Deploy(at_ms / 1_000, f"version {version} of the definition applied")
            for version, at_ms in connection.execute(statement)
        ]


def _processes(store: Store, pipeline: str, span: TimeRange) -> list[Deploy]:
    """Return how the processes of each node changed, by minute. One that ended without saying so has fallen silent:
    it ended with its last report."""
    row, every = tables.EmitterRow, aliased(tables.EmitterRow)
    newest = select(func.max(every.appended_at)).where(every.pipeline == pipeline).scalar_subquery()
    ended = case((row.closed | (row.appended_at < newest - SILENT_AFTER_MS), row.sent_at))
    version = row.labels["version"].astext
    conditions = (row.pipeline == pipeline, row.started_at < span.to_s * 1_000)
    changes = union_all(
        select(row.node, row.started_at.label("at"), version.label("version"), literal(1).label("change")).where(
            *conditions
        ),
        select(row.node, ended, null(), literal(-1)).where(*conditions, ended.is_not(None), ended < span.to_s * 1_000),
    ).subquery()
    change = changes.c
    minute = func.greatest(change.at // (1_000 * WINDOW_S), span.from_s // WINDOW_S - 1)
    statement = (
        select(
            change.node,
            func.min(change.at),
            func.count().filter(change.change > 0),
            func.count().filter(change.change < 0),
            func.array_agg(func.distinct(change.version)).filter(change.version.is_not(None)),
        )
        .group_by(change.node, minute)
        .order_by(func.min(change.at))
    )
    running: Counter[str] = Counter()
    versions: dict[str, set[str]] = {}
    deploys: list[Deploy] = []
    with store.engine.connect() as connection:
        for node, at_ms, started, stopped, versions_seen in connection.execute(statement):
            known_versions, new = versions.setdefault(node, set()), sorted(set(versions_seen or ()))
            if at_ms >= span.from_s * 1_000:
                fresh = [version for version in new if known_versions and version not in known_versions]
                deploys.append(_change(node, at_ms / 1_000, running[node], started, stopped, fresh))
            running[node] += started - stopped
            known_versions.update(new)
    return deploys[-MAX_CHANGES:]


def _change(node: str, at_s: float, before: int, started: int, stopped: int, versions: Sequence[str]) -> Deploy:
    after, count = before + started - stopped, max(started, stopped)
    if versions:
        summary = f"version {', '.join(versions)} of {node}: {_processes_word(started)} started"
        return Deploy(at_s, summary, node, started, "version")
    if not before:
        return Deploy(at_s, f"{_processes_word(started)} of {node} started", node, count, "start")
    if after == before:
        return Deploy(at_s, f"{count} of {_processes_word(before)} of {node} restarted", node, count, "restart")
    out = after > before
    summary = f"{node} scaled {'out' if out else 'in'}: {before} → {_processes_word(after)}"
    return Deploy(at_s, summary, node, count, "scale-out" if out else "scale-in")


def _processes_word(number: int) -> str:
    return "a process" if number == 1 else f"{number} processes"
