"""Incidents for display: the breach, its start and place, and the owner."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, Literal
from urllib.parse import quote
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, Row, String, cast, func, select

from lagloss_server.base import format as fmt
from lagloss_server.base.errors import AmbiguousIncident, UnknownIncident
from lagloss_server.base.times import moment
from lagloss_server.model.canary import CANARY
from lagloss_server.model.hops import late_words
from lagloss_server.model.matchers import labels_of
from lagloss_server.model.window import Interval, rfc3339
from lagloss_server.net.sanitize import one_line
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import Store

_ID: Final = re.compile(r"[0-9a-f][0-9a-f-]{0,35}")

_MAX_REASON: Final = 100

Document = dict[str, Any]

incident_table = table_of(alert_tables.IncidentRow)
WORST_FIRST: Final[tuple[Column[Any], ...]] = tuple(
    incident_table.c[name] for name in ("state", "severity", "opened_at", "id")
)
"""Open before resolved, critical before warning, then the longest open: as their words sort."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """Why an incident's receivers are not notified. `ref`: the silence's id, or the name of the maintenance, of the
    open rule, of the blind pipeline upstream. `by`: author of the silence; `reason`: of a silence or maintenance."""

    kind: Literal["silence", "maintenance", "rule", "upstream"]
    ref: str
    by: str | None = None
    reason: str | None = None

    @classmethod
    def of_row(cls, row: Row[Any]) -> Withheld | None:
        """Read the columns of `incident`; None if nothing withholds it."""
        if row.withheld_kind is None:
            return None
        return cls(row.withheld_kind, row.withheld_ref, row.withheld_by, row.withheld_reason)

    def __str__(self) -> str:
        """Return the sentence for people, the same in documents and on pages."""
        match self.kind:
            case "silence":
                return f"silence {self.ref} by {self.by}: {self.reason}"
            case "maintenance":
                return f"maintenance {self.ref}: {self.reason}"
            case "rule":
                return f"inhibited: {self.ref} is open and covers it"
            case "upstream":
                return f"inhibited: the upstream pipeline {self.ref} is blind"


@dataclass(frozen=True, slots=True)
class Incident:
    """A row of `incident`: what alerting writes, the command line, the dashboard, and reports read.

    Windows: starts in epoch s. `value` (of the last window), `worst`, and `target` are in the rule's `unit`. `detail`:
    `what`, `unit`, and `text` (value against target) of the rule; `where` (worst first), `blame` (what the bad messages
    have in common), `examples`, `messages`, and `lost` of the newest breached windows; `breaches` as ranges of windows,
    `windows` (their number), `worst_window`, `notes`, `resolved_because`. `runbooks`: address of the pipeline's own,
    from its newest definition.
    """

    id: UUID
    pipeline: str
    rule: str
    kind: str
    severity: str
    state: str
    opened_at: datetime
    resolved_at: datetime | None
    acknowledged_at: datetime | None
    acknowledged_by: str | None
    first_window_s: int
    last_window_s: int
    value: float
    worst: float
    target: float
    detail: Mapping[str, Any]
    withheld: Withheld | None = None
    runbooks: str | None = None

    @classmethod
    def of_row(cls, row: Row[Any], runbooks: str | None = None) -> Incident:
        """Read a row of `incident`."""
        same = {name: getattr(row, name) for name in _SAME}
        windows = {"first_window_s": row.first_window, "last_window_s": row.last_window}
        return cls(**same, **windows, withheld=Withheld.of_row(row), runbooks=runbooks)

    def row(self) -> Document:
        """Return the columns of `incident`, without those of `withheld`."""
        same = {name: getattr(self, name) for name in _SAME}
        return {**same, "first_window": self.first_window_s, "last_window": self.last_window_s}

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    @property
    def resolved_because(self) -> str | None:
        because: str | None = self.detail["resolved_because"]
        return because

    @property
    def text(self) -> str:
        return str(self.detail["text"])

    @property
    def unit(self) -> str:
        """`ratio`, `ms`, `s` or `times`."""
        return str(self.detail["unit"])

    @property
    def windows(self) -> int:
        """Number of windows that breach."""
        return int(self.detail["windows"])

    @property
    def worst_window_s(self) -> int | None:
        start_s: int | None = self.detail["worst_window"]
        return start_s

    @property
    def where(self) -> list[Document]:
        return list(self.detail["where"])

    @property
    def destinations(self) -> list[Document]:
        """What became of the messages due at each destination in its newest windows, the worst first."""
        return list(self.detail["destinations"])

    @property
    def examples(self) -> list[Document]:
        return list(self.detail["examples"])

    @property
    def blame(self) -> Document | None:
        """What the bad messages have in common, as `lagloss blame --json` has it."""
        blame: Document | None = self.detail["blame"]
        return blame

    @property
    def cause(self) -> str | None:
        """What was concluded of the bad messages, perhaps that nothing stands out; None: it was not looked for."""
        return None if self.blame is None else self.blame["conclusion"]

    @property
    def named_cause(self) -> str | None:
        """The cause that stands out; None if none does, or none was looked for."""
        return self.cause if self.blame and self.blame["findings"] else None

    @property
    def notes(self) -> list[str]:
        return list(self.detail["notes"])

    @property
    def runbook(self) -> str | None:
        """The page of its kind among the pipeline's own runbooks, if it has some."""
        return f"{self.runbooks.rstrip('/')}/{self.kind}" if self.runbooks else None

    def links(self, dashboard_url: str) -> dict[str, str | None]:
        """Return the dashboard at its last window and at the incident, and its runbook; null where no address is
        known."""
        return {
            "dashboard": dashboard_link(dashboard_url, self.pipeline, self.last_window_s),
            "incident": incident_link(dashboard_url, self.id),
            "runbook": self.runbook or runbook_link(dashboard_url, self.kind),
        }

    def document(self) -> Document:
        """Return what `lagloss alerts list --json` prints; `details` and notifications add to it."""
        return {
            "id": str(self.id),
            **labels_of(self),
            "state": self.state,
            "opened_at": moment(self.opened_at),
            "resolved_at": moment(self.resolved_at),
            "resolved_because": self.resolved_because,
            "acknowledged_at": moment(self.acknowledged_at),
            "acknowledged_by": self.acknowledged_by,
            "withheld": None if self.withheld is None else str(self.withheld),
            "breach": {"value": self.value, "worst": self.worst, "target": self.target, "text": self.text},
            "since": rfc3339(self.first_window_s),
            "windows": {
                "first": rfc3339(self.first_window_s),
                "last": rfc3339(self.last_window_s),
                "count": self.windows,
            },
            "where": self.where,
        }

    def details(self, dashboard_url: str) -> Document:
        """Return the document with destinations, blame, examples, notes, and links."""
        more = {"destinations": self.destinations, "blame": self.blame, "examples": self.examples, "notes": self.notes}
        return {**self.document(), **more, "links": self.links(dashboard_url)}


_SAME: Final = tuple(field.name for field in fields(Incident) if field.name in incident_table.c)
"""Fields that are columns of the same name."""


def incidents(
    store: Store, *, pipeline: str | None = None, only_open: bool = True, since: datetime | None = None
) -> list[Incident]:
    """Return the open incidents, or also the resolved ones that were open after `since`: open ones first, critical
    first, then the longest open."""
    column = incident_table.c
    chosen = [column.pipeline != CANARY if pipeline is None else column.pipeline == pipeline]
    if only_open:
        chosen.append(column.state == "open")
    elif since is not None:
        chosen.append((column.state == "open") | (column.resolved_at >= since))
    return chosen_incidents(store, chosen, WORST_FIRST)


def open_by_severity(store: Store, pipelines: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many incidents of each of these pipelines are open, by severity."""
    row = incident_table.c
    statement = (
        select(row.pipeline, row.severity, func.count().label("number"))
        .where(row.state == "open", tables.is_any(row.pipeline, pipelines))
        .group_by(row.pipeline, row.severity)
    )
    counts: dict[str, dict[str, int]] = {}
    with store.engine.connect() as connection:
        for counted in connection.execute(statement):
            counts.setdefault(counted.pipeline, {})[counted.severity] = counted.number
    return counts


def chosen_incidents(
    store: Store,
    chosen: Sequence[ColumnElement[bool]],
    order: Sequence[ColumnElement[Any]],
    limit: int | None = None,
    offset: int = 0,
) -> list[Incident]:
    """Return the incidents whose rows of `incident_table` are so, in this order."""
    statement = select(incident_table).where(*chosen).order_by(*order).limit(limit).offset(offset)
    with store.engine.connect() as connection:
        rows = connection.execute(statement).all()
        runbooks = _own_runbooks(connection, {row.pipeline for row in rows})
        return [Incident.of_row(row, runbooks.get(row.pipeline)) for row in rows]


def incident(store: Store, prefix: str) -> Incident:
    """Return the one incident whose id begins so.

    Raises:
        UnknownIncident: none does.
        AmbiguousIncident: several do.
    """
    with store.engine.connect() as connection:
        return find(connection, prefix)


def find(connection: Connection, prefix: str, *, lock: bool = False) -> Incident:
    """Read an incident within a transaction, by the first characters of its id. `lock`: lock its row until the end of
    the transaction.

    Raises:
        UnknownIncident: there is none of this id, or it is not the beginning of an id.
        AmbiguousIncident: there are several.
    """
    table, prefix_ = incident_table, prefix.strip().lower()
    if not _ID.fullmatch(prefix_):
        raise UnknownIncident(id=prefix)
    statement = select(table).where(cast(table.c.id, String).startswith(prefix_)).order_by(table.c.opened_at.desc())
    rows = connection.execute(statement.with_for_update() if lock else statement).all()
    if not rows:
        raise UnknownIncident(id=prefix)
    if len(rows) > 1:
        raise AmbiguousIncident(id=prefix, count=len(rows), example=rows[0].id)
    return Incident.of_row(rows[0], _own_runbooks(connection, {rows[0].pipeline}).get(rows[0].pipeline))


def dashboard_link(dashboard_url: str, pipeline: str, window_start_s: int) -> str | None:
    """Return the dashboard at a window of a pipeline; None if its address is unknown."""
    path = quote(f"/pipelines/{pipeline}/windows/{rfc3339(window_start_s)}", safe="/:")
    return f"{dashboard_url.rstrip('/')}{path}" if dashboard_url else None


def incident_link(dashboard_url: str, incident: UUID) -> str | None:
    """Return the dashboard at an incident; None if its address is unknown."""
    return f"{dashboard_url.rstrip('/')}/incidents/{incident}" if dashboard_url else None


def runbook_link(dashboard_url: str, kind: str) -> str | None:
    """Return the URL of lagloss's own runbook of a kind of rule on the dashboard; None if its address is unknown."""
    return f"{dashboard_url.rstrip('/')}/runbooks/{kind}" if dashboard_url else None


def place_words(place: Mapping[str, Any]) -> str:
    """`link src->mid: 94 lost, 98 % of the loss`, as far as it is known."""
    name = f"{place.get('kind', '')} {place.get('name', '')}"
    return f"{name}: {place['text']}" if place.get("text") else name


def destination_words(destination: Mapping[str, Any]) -> str:
    """`conn-ga: 21 of 1,951 messages lost, 98.9 % on time`, with the dead where there are some."""
    lost, due = fmt.count_interval(Interval(**destination["lost"])), fmt.counted(destination["due"], "message")
    dead = f", {fmt.count(destination['dead'])} dead-lettered" if destination["dead"] else ""
    share = (
        f", {fmt.percent(destination['on_time'] / destination['on_time_of'])} on time"
        if destination["on_time_of"]
        else ""
    )
    return f"{destination['name']}: {lost} of {due} lost{dead}{share}"


def example_words(example: Mapping[str, Any]) -> str:
    """`lost at link src->mid, last seen at src.out`, or `late: 12.3 s, 11 s of it at link src->mid`, as far as it is
    known; the caller names the message."""
    if example.get("kind") == "late" and example.get("lag_ms") is not None:
        return f"late: {late_words(example['lag_ms'], example.get('hop'), example.get('hop_ms'))}"
    places, last = ", ".join(map(str, example.get("places") or ())), example.get("last_checkpoint")
    reason = f" ({one_line(example['reason'], _MAX_REASON)})" if example.get("reason") else ""
    last_seen = f", last seen at {last}" if last else ""
    return f"{example.get('kind', '')}{f' at {places}' if places else ''}{reason}{last_seen}"


def _own_runbooks(connection: Connection, pipelines: Set[str]) -> dict[str, str]:
    """Return where these pipelines have runbooks of their own, by the newest definition: addresses that a kind is put
    behind."""
    pipeline = table_of(tables.PipelineRow)
    base = pipeline.c.definition["spec"]["alerts"]["runbook"].astext
    runbooks: dict[str, str | None] = {}
    statement = (
        select(pipeline.c.name, base).where(tables.is_any(pipeline.c.name, pipelines)).order_by(pipeline.c.version)
    )
    for name, address in connection.execute(statement):
        runbooks[name] = address
    return {name: address for name, address in runbooks.items() if address}
