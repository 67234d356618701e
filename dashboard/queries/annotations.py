"""Annotations of a pipeline over a span of time: incidents, versions of its definition, processes that started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import func, select

from dashboard.request.span import Span
from lagloss.wire.format import WINDOW_S
from lagloss_server.incidents.incident import Incident, chosen_incidents, incident_table
from lagloss_server.model.window_result import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

MAX_INCIDENTS: Final = 50
"""Incidents shown: critical ones first, then the newest. More cannot be distinguished in a strip."""
MAX_STARTS: Final = 500
"""The newest started processes that are shown."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """Something was put into service at `at_s` (epoch s): a version of the definition (`node` None), or `count`
    processes of a node within a minute."""

    at_s: float
    text: str
    node: str | None = None
    count: int = 1

    def document(self) -> dict[str, Any]:
        return {"at": rfc3339(round(self.at_s)), "text": self.text, "node": self.node, "count": self.count}


@dataclass(frozen=True, slots=True)
class Happenings:
    """`incidents`: those that a part of lies in the span, the longest open first, `MAX_INCIDENTS` at most; there are
    `more_incidents` beside them. `deploys`: oldest first."""

    incidents: tuple[Incident, ...] = ()
    deploys: tuple[Deploy, ...] = ()
    more_incidents: int = 0

    def document(self) -> dict[str, Any]:
        return {
            "incidents": [incident.document() for incident in self.incidents],
            "more_incidents": self.more_incidents,
            "deploys": [deploy.document() for deploy in self.deploys],
        }


def read_happenings(store: Store, pipeline: str, span: Span) -> Happenings:
    """Read the pipeline's events within the span."""
    within, more = _incidents(store, pipeline, span)
    deploys = [*_versions(store, pipeline, span), *_starts(store, pipeline, span)]
    return Happenings(within, tuple(sorted(deploys, key=lambda deploy: deploy.at_s)), more)


def _incidents(store: Store, pipeline: str, span: Span) -> tuple[tuple[Incident, ...], int]:
    """Return those that are shown, and how many there are beside them."""
    row = incident_table.c
    chosen = [
        row.pipeline == pipeline,
        row.first_window < span.to_s,
        (row.state == "open") | (row.resolved_at >= datetime.fromtimestamp(span.from_s, UTC)),
    ]
    found = chosen_incidents(store, chosen, (row.severity, row.opened_at.desc(), row.id), MAX_INCIDENTS)
    more = 0
    if len(found) == MAX_INCIDENTS:
        with store.engine.connect() as connection:
            more = connection.execute(select(func.count()).where(*chosen)).scalar_one() - len(found)
    found.sort(key=lambda incident: (incident.first_window_s, str(incident.id)))
    return tuple(found), more


def _versions(store: Store, pipeline: str, span: Span) -> Sequence[Deploy]:
    row = tables.PipelineRow
    asked = select(row.version, row.applied_at).where(
        row.name == pipeline, row.applied_at >= span.from_s * 1_000, row.applied_at < span.to_s * 1_000
    )
    with store.engine.connect() as connection:
        return [
            Deploy(at_ms / 1_000, f"version {version} of the definition applied")
            for version, at_ms in connection.execute(asked)
        ]


def _starts(store: Store, pipeline: str, span: Span) -> Sequence[Deploy]:
    row = tables.EmitterRow
    asked = (
        select(row.node, row.started_at)
        .where(row.pipeline == pipeline, row.started_at >= span.from_s * 1_000, row.started_at < span.to_s * 1_000)
        .order_by(row.started_at.desc())
        .limit(MAX_STARTS)
    )
    together: dict[tuple[str, int], list[int]] = {}
    with store.engine.connect() as connection:
        for node, at_ms in connection.execute(asked):
            together.setdefault((node, at_ms // (1_000 * WINDOW_S)), []).append(at_ms)
    return [_start(node, times_ms) for (node, _), times_ms in together.items()]


def _start(node: str, times_ms: Sequence[int]) -> Deploy:
    number = len(times_ms)
    summary = f"a process of {node} started" if number == 1 else f"{number} processes of {node} started"
    return Deploy(min(times_ms) / 1_000, summary, node, number)
