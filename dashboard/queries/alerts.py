"""Incidents and deliveries, as the alerts page and `/api/v1` show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

from sqlalchemy import ColumnElement, func, select

from dashboard.access.silences import HeldSilence, read_silences
from dashboard.queries.deliveries import ReceiverStatus, count_outcomes, read_leader, read_receivers
from dashboard.queries.incident_documents import IncidentDocument, IncidentRecordDocument, OpenIncidentDocument
from dashboard.queries.incident_filters import PAGE_SIZE, IncidentFilters, within
from lagloss_server.incidents.actions import Silence, pipeline_labels
from lagloss_server.incidents.changes import IncidentRecord, read_record
from lagloss_server.incidents.incident import WORST_FIRST, Incident, Withheld, chosen_incidents, incident_table
from lagloss_server.incidents.response_times import Times, courses
from lagloss_server.model.matchers import labels_of, match_all
from lagloss_server.model.time_range import TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.store.ownership import LeaseHolder
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

_pending_table = table_of(alert_tables.PendingBreachRow)


class PendingWindows(TypedDict):
    """The oldest and the newest of the windows that breach."""

    first: str
    last: str


class PendingDocument(TypedDict):
    """A rule that has begun to breach: see `Pending`."""

    pipeline: str
    rule: str
    kind: str
    severity: str
    breaches: int
    needed: int
    of: int
    text: str
    windows: PendingWindows


class OpenIncidents(TypedDict):
    """Open incidents, worst first, and the rules that have begun to breach."""

    incidents: list[OpenIncidentDocument]
    pending: list[PendingDocument]


class ResolvedIncidents(TypedDict):
    """A page of the resolved incidents that were opened in a range: see `IncidentHistory`."""

    incidents: list[IncidentDocument]
    page: int
    total: int
    times: Times


@dataclass(frozen=True, slots=True)
class OpenIncident:
    """An incident, and while it is open the silence that matches it now: the alerter, which goes by the same, writes
    that into the row a moment later."""

    incident: Incident
    silence: Silence | None = None

    @property
    def withheld(self) -> Withheld | None:
        """Why its receivers are not notified; None: they are."""
        if self.silence is not None:
            return self.silence.withholds()
        why = self.incident.withheld
        # a silence that has ended stays in the row until the alerter's next look
        return None if why is None or why.kind == "silence" else why

    def document(self) -> OpenIncidentDocument:
        silence = None if self.silence is None else self.silence.document()
        withheld = None if self.withheld is None else str(self.withheld)
        incident = cast("IncidentDocument", self.incident.document())
        return {**incident, "withheld": withheld, "silence": silence}

    def details(self, record: IncidentRecord, dashboard_url: str) -> IncidentRecordDocument:
        """Return all of the incident, of which this is the record."""
        return cast("IncidentRecordDocument", {**record.document(dashboard_url), **self.document()})


@dataclass(frozen=True, slots=True)
class Pending:
    """A rule that breaches in `breaches` of the newest `of` windows; `needed` of them open an incident."""

    pipeline: str
    rule: str
    kind: str
    severity: str
    breaches: int
    needed: int
    of: int
    first_window_s: int
    last_window_s: int
    text: str

    def document(self) -> PendingDocument:
        return {
            "pipeline": self.pipeline,
            "rule": self.rule,
            "kind": self.kind,
            "severity": self.severity,
            "breaches": self.breaches,
            "needed": self.needed,
            "of": self.of,
            "text": self.text,
            "windows": {"first": rfc3339(self.first_window_s), "last": rfc3339(self.last_window_s)},
        }


@dataclass(frozen=True, slots=True)
class IncidentHistory:
    """A page of the resolved incidents that were opened in a span, the newest first. `total`: on all pages. `times`: of
    all that were opened in the span, open ones too."""

    incidents: Sequence[Incident]
    page: int
    total: int
    times: Times

    def document(self) -> ResolvedIncidents:
        incidents = [cast("IncidentDocument", incident.document()) for incident in self.incidents]
        return {"incidents": incidents, "page": self.page, "total": self.total, "times": self.times}


@dataclass(frozen=True, slots=True)
class Counts:
    """How many there are behind each tab of the alerts page. `undelivered`: failed or waiting."""

    firing: int
    pending: int
    silenced: int
    history: int
    undelivered: int
    silences: int


@dataclass(frozen=True, slots=True)
class Board:
    """Incidents that are open now. `open`: worst first."""

    open: Sequence[OpenIncident]
    pending: Sequence[Pending]
    silences: Sequence[Silence]
    counts: Counts
    leader: LeaseHolder | None = None
    receivers: Sequence[ReceiverStatus] = field(default=())

    @property
    def firing(self) -> list[OpenIncident]:
        return [opened for opened in self.open if opened.withheld is None]

    @property
    def withheld(self) -> list[OpenIncident]:
        return [opened for opened in self.open if opened.withheld is not None]


def read_board(store: Store, filters: IncidentFilters, span: TimeRange) -> Board:
    """Read open incidents, and the counts of everything else in this span."""
    holding = read_silences(store)
    open_incidents = read_open(store, filters, holding)
    waiting = read_pending(store, filters)
    silent = sum(opened.withheld is not None for opened in open_incidents)
    with store.engine.connect() as connection:
        resolved = connection.execute(
            select(func.count()).select_from(incident_table).where(*_resolved(filters, span))
        ).scalar_one()
    outcomes = count_outcomes(store, filters, span)
    counts = Counts(
        firing=len(open_incidents) - silent,
        pending=len(waiting),
        silenced=silent,
        history=resolved,
        undelivered=outcomes.get("failed", 0) + outcomes.get("waiting", 0),
        silences=len(holding),
    )
    return Board(
        open_incidents,
        waiting,
        [silence.silence for silence in holding],
        counts,
        read_leader(store),
        read_receivers(store),
    )


def read_open(
    store: Store, filters: IncidentFilters, holding: Sequence[HeldSilence] | None = None
) -> list[OpenIncident]:
    """Return the open incidents, worst first. `holding`: the silences that hold now, where they are read already."""
    incidents = chosen_incidents(store, [incident_table.c.state == "open", *filters.of(incident_table.c)], WORST_FIRST)
    return _opened(store, incidents, read_silences(store) if holding is None else holding)


def read_pending(store: Store, filters: IncidentFilters) -> list[Pending]:
    """Rules that have begun to breach, critical ones first."""
    row = _pending_table.c
    statement = select(_pending_table).where(*filters.of(row)).order_by(row.severity, row.pipeline, row.rule)
    with store.engine.connect() as connection:
        return [
            Pending(
                row.pipeline, row.rule, row.kind, row.severity, row.breaches, row.needed, row.of,
                row.first_window, row.last_window, row.text,
            )
            for row in connection.execute(statement)
        ]  # fmt: skip


def read_history(
    store: Store, filters: IncidentFilters, span: TimeRange, page: int = 1, size: int = PAGE_SIZE
) -> IncidentHistory:
    """Read resolved incidents. Pages count from 1."""
    chosen = _resolved(filters, span)
    row = incident_table.c
    with store.engine.connect() as connection:
        total = connection.execute(select(func.count()).select_from(incident_table).where(*chosen)).scalar_one()
    incidents = chosen_incidents(store, chosen, (row.opened_at.desc(), row.id), size, (page - 1) * size)
    return IncidentHistory(incidents, page, total, Times.of(courses(store, span.from_s, span.to_s, *filters.of(row))))


def read_incident(store: Store, incident_id: str) -> tuple[OpenIncident, IncidentRecord]:
    """Read one incident with its silence, and its record. Its examples name messages: that is noted.

    Raises:
        UnknownIncident: no id begins so.
        AmbiguousIncident: several do.
    """
    record = read_record(store, incident_id)
    if record.incident.examples:
        store.look_at_ids("ids.incident", record.incident.pipeline, str(record.incident.id))
    [opened] = _opened(store, [record.incident], read_silences(store))
    return opened, record


def _opened(store: Store, incidents: Sequence[Incident], holding: Sequence[HeldSilence]) -> list[OpenIncident]:
    """Add the silences that match."""
    if not holding:
        return [OpenIncident(incident) for incident in incidents]
    with store.engine.connect() as connection:
        labels = pipeline_labels(connection)

    def keeping(incident: Incident) -> Silence | None:
        incident_labels = labels_of(incident, labels.get(incident.pipeline))
        return next((silence.silence for silence in holding if match_all(silence.matchers, incident_labels)), None)

    return [OpenIncident(incident, keeping(incident) if incident.is_open else None) for incident in incidents]


def _resolved(filters: IncidentFilters, span: TimeRange) -> list[ColumnElement[bool]]:
    row = incident_table.c
    return [row.state == "resolved", within(row.opened_at, span), *filters.of(row)]
