"""The audit trail, as its page and `/api/v1` show it: to operators, of a team what concerns its pipelines alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import ColumnElement, Row, func, select

from dashboard.queries.incident_filters import PAGE_SIZE, within
from dashboard.request.current_user import asking, require_operator
from dashboard.request.grants import Grants
from lagloss_server.base.times import moment
from lagloss_server.model.time_range import TimeRange
from lagloss_server.store.audit import audit_table
from lagloss_server.store.store import Store

HIDDEN: str = "a message"
"""Stands for the hash of a message id for whom ids of its pipeline are hidden from."""


class AuditEntryDocument(TypedDict):
    """Who did what: see `AuditEntry`. What is in `detail` depends on the action."""

    at: str | None
    actor: str
    known_by: str
    address: str | None
    action: str
    object: str
    pipelines: list[str]
    detail: dict[str, Any]


class AuditDocument(TypedDict):
    """A page of the audit trail, the newest entry first. `total`: on all pages."""

    entries: list[AuditEntryDocument]
    page: int
    total: int


@dataclass(frozen=True, slots=True)
class AuditFilters:
    """Which entries are asked for; None: whatever. `actor`: part of a name, in any case."""

    actor: str | None = None
    action: str | None = None
    pipeline: str | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        row = audit_table.c
        clauses: list[ColumnElement[bool]] = []
        if self.actor is not None:
            clauses.append(row.actor.icontains(self.actor, autoescape=True))
        if self.action is not None:
            clauses.append(row.action == self.action)
        if self.pipeline is not None:
            clauses.append(row.pipelines.contains([self.pipeline]))
        return clauses


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who (and how that is known) did what, when, from which address, to what, of which pipelines."""

    at: datetime
    actor: str
    known_by: str
    address: str | None
    action: str
    object: str
    pipelines: list[str]
    detail: dict[str, Any]

    def document(self) -> AuditEntryDocument:
        return {
            "at": moment(self.at),
            "actor": self.actor,
            "known_by": self.known_by,
            "address": self.address,
            "action": self.action,
            "object": self.object,
            "pipelines": self.pipelines,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class AuditEntries:
    """A page of the entries, the newest first. `total`: on all pages."""

    entries: Sequence[AuditEntry]
    page: int
    total: int

    def document(self) -> AuditDocument:
        return {"entries": [entry.document() for entry in self.entries], "page": self.page, "total": self.total}


def read_audit(
    store: Store, filters: AuditFilters, span: TimeRange, page: int = 1, size: int = PAGE_SIZE
) -> AuditEntries:
    """Read entries of a span. Pages count from 1.

    Raises:
        NotAllowed: the user may only look at pipelines.
    """
    require_operator()
    chosen = [within(audit_table.c.at, span), *filters.conditions()]
    statement = (
        select(audit_table).where(*chosen).order_by(audit_table.c.id.desc()).limit(size).offset((page - 1) * size)
    )
    with store.engine.connect() as connection:
        total = connection.execute(select(func.count()).select_from(audit_table).where(*chosen)).scalar_one()
        entries = [_entry(row, asking().grants) for row in connection.execute(statement)]
    return AuditEntries(entries, page, total)


def _entry(row: Row[Any], grants: Grants) -> AuditEntry:
    is_hidden = row.action == "ids.search" and not all(map(grants.may_see_ids, row.pipelines))
    about = HIDDEN if is_hidden else row.object
    return AuditEntry(row.at, row.actor, row.known_by, row.address, row.action, about, row.pipelines, row.detail)
