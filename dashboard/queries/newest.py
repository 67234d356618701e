"""When the newest of what a page shows was: epoch s, None if there is nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select

from dashboard.queries.services import Services
from lagloss_server.model.canary import CANARY
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.alerting import IncidentRow
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.runs import DagRunRow


def newest_data_s(services: Services, pipeline: str | None = None) -> float | None:
    """Return the start of the newest closed minute of a pipeline, by default of any; of its newest day, if only that is
    kept."""
    minutes = [
        standing.newest.start_s
        for standing in services.overview().standings
        if standing.newest is not None and pipeline in (None, standing.pipeline)
    ]
    if minutes:
        return max(minutes)
    row = tables.RollupRow
    is_wanted = (row.period == "day", *(() if pipeline is None else (row.pipeline == pipeline,)))
    return _greatest(services, select(func.max(row.start)).where(*is_wanted))  # type: ignore[no-any-return]


def newest_incident_s(services: Services) -> float | None:
    """Return when the newest of the resolved incidents was opened."""
    opened_at = _greatest(
        services,
        select(func.max(IncidentRow.opened_at)).where(IncidentRow.state == "resolved", IncidentRow.pipeline != CANARY),
    )
    return opened_at and opened_at.timestamp()  # type: ignore[no-any-return]


def newest_entry_s(services: Services) -> float | None:
    """Return the time of the newest entry of the audit trail."""
    at = _greatest(services, select(func.max(AuditTrailRow.at)))
    return at and at.timestamp()  # type: ignore[no-any-return]


def newest_run_s(services: Services, pipeline: str, now_s: float) -> float | None:
    """Return when the newest run of the pipeline's jobs was due that is not to come."""
    row = DagRunRow
    was_due = (row.pipeline == pipeline, row.due_at <= int(now_s * 1_000))
    due_ms = _greatest(services, select(func.max(row.due_at)).where(*was_due))
    return due_ms and due_ms / 1_000  # type: ignore[no-any-return]


def _greatest(services: Services, query: Select[Any]) -> Any:
    with services.store.engine.connect() as connection:
        return connection.execute(query).scalar_one()
