"""Health of intake and storage: reports, bad records, undeclared names, tables, and the alerter."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict

from sqlalchemy import Connection, Row, Select, func, select, text, true

from dashboard.queries.reports_topic import Ends
from lagloss_server.base.times import moment
from lagloss_server.model.definition import Definition
from lagloss_server.model.time_range import FromTo, TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.store.ownership import ALERTING, read_holder
from lagloss_server.store.partitions import DAY_S
from lagloss_server.store.schema import alerting as alert_tables
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import names_not_deleted
from lagloss_server.store.unreadable import UnreadableRow
from lagloss_server.sums.rollup import period_of

STUCK_AFTER_S: Final = 60.0
"""Reports wait for a second before they are followed; emitters that live send one each 10 s at least."""
WELL_WITHIN_S: Final = 15.0
"""An alerter that leads says so every 2 s, and another takes over within this."""
_Found = Row[*tuple[Any, ...]]


class ReportsDocument(TypedDict):
    """How far the reports were followed: see `ReportsStatus`."""

    newest_report: str | None
    behind: int | None
    why_not_known: str | None


class StrangeDocument(TypedDict):
    """A pipeline or checkpoint that no definition has: see `StrangeName`. Times in epoch s and as RFC 3339."""

    kind: str
    pipeline: str
    checkpoint: str
    since_s: float
    since: str


class SizeDocument(TypedDict):
    """A table: see `Size`."""

    table: str
    bytes: int
    partitions: int
    before_s: str | None


class NamedReceiver(TypedDict):
    """A receiver of the leading alerter."""

    name: str
    kind: str
    fallback: bool


class AlerterDocument(TypedDict):
    """The leading alerter: see `AlerterHealth`."""

    host: str | None
    led_at: str | None
    well_at: str | None
    receivers: list[NamedReceiver] | None


class RecomputeDocument(FromTo):
    """Windows to be closed again by request: see `Recompute`."""

    pipeline: str
    requested_at: str | None
    done: int | None
    of: int | None


@dataclass(frozen=True, slots=True)
class ReportsStatus:
    """How far the reports were followed. `appended_s`: when the newest of them was appended (epoch s). `behind`: how
    many were appended and not followed yet; None where Kafka did not say, and then `why`."""

    appended_s: float | None
    behind: int | None
    why: str

    def is_stuck(self, now_s: float) -> bool:
        """Return whether reports wait and none was followed for a while."""
        return bool(self.behind) and (self.appended_s is None or now_s - self.appended_s > STUCK_AFTER_S)

    def document(self) -> ReportsDocument:
        appended_at = None if self.appended_s is None else rfc3339(self.appended_s)
        return {"newest_report": appended_at, "behind": self.behind, "why_not_known": self.why or None}


@dataclass(frozen=True, slots=True)
class SetAsideItem:
    """Work that failed for a reason that waiting does not mend: a window, a roll-up, a consumer group; or a stored row
    that is unreadable. `failed_at_s`: of the last try (epoch s)."""

    kind: str
    pipeline: str
    item: str
    error: str
    failed_at_s: float
    tries: int

    @property
    def place(self) -> str:
        return f"{self.kind} {self.item}{f' of {self.pipeline}' if self.pipeline else ''}"


@dataclass(frozen=True, slots=True)
class BadRecords:
    """Records of a topic that were set aside for a reason in the last 24 hours, and how the newest that was kept of
    them begins."""

    topic: str
    reason: str
    count: int
    first_bytes: str | None
    found_at: str | None


@dataclass(frozen=True, slots=True)
class StrangeName:
    """A pipeline, or a checkpoint of one, that reports name and no definition has."""

    kind: str
    pipeline: str
    checkpoint: str
    since_s: float

    def document(self) -> StrangeDocument:
        return {
            "kind": self.kind,
            "pipeline": self.pipeline,
            "checkpoint": self.checkpoint,
            "since_s": self.since_s,
            "since": rfc3339(self.since_s),
        }


@dataclass(frozen=True, slots=True)
class Size:
    """A table with all its partitions and indexes. `before_s`: windows before this were dropped (epoch s)."""

    table: str
    bytes: int
    partitions: int
    before_s: int | None

    def document(self) -> SizeDocument:
        return {
            "table": self.table,
            "bytes": self.bytes,
            "partitions": self.partitions,
            "before_s": None if self.before_s is None else rfc3339(self.before_s),
        }


@dataclass(frozen=True, slots=True)
class AlerterHealth:
    """The leading alerter, its last heartbeat, and its receivers. None: none ever led; of the receivers: whoever asks
    may not see them."""

    host: str | None
    led_at: datetime | None
    well_at: datetime | None
    receivers: tuple[NamedReceiver, ...] | None

    def is_well(self, now_s: float) -> bool:
        return self.well_at is not None and now_s - self.well_at.timestamp() <= WELL_WITHIN_S

    def document(self) -> AlerterDocument:
        return {
            "host": self.host,
            "led_at": moment(self.led_at),
            "well_at": moment(self.well_at),
            "receivers": None if self.receivers is None else list(self.receivers),
        }


@dataclass(frozen=True, slots=True)
class Recompute(TimeRange):
    """Windows to be closed again by request; `done` of `of`, None before the first round."""

    pipeline: str
    requested_at: datetime
    done: int | None
    of: int | None

    def document(self) -> RecomputeDocument:
        return {
            "pipeline": self.pipeline,
            "from": rfc3339(self.from_s),
            "to": rfc3339(self.to_s),
            "requested_at": moment(self.requested_at),
            "done": self.done,
            "of": self.of,
        }


def read_reports(connection: Connection, ends: Ends) -> ReportsStatus:
    row = tables.ReportsPositionRow
    positions: dict[int, int] = dict(_all(connection, select(row.topic_partition, row.next_offset)))
    newest_ms: int | None = connection.execute(select(func.max(tables.EmitterRow.appended_at))).scalar()
    behind = None
    if ends.offsets is not None:
        behind = sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.offsets.items())
    return ReportsStatus(None if newest_ms is None else newest_ms / 1_000, behind, ends.why)


def read_bad_records(connection: Connection, now_s: float) -> list[BadRecords]:
    """Count bad records by topic and reason, most first."""
    counted, sample_row = tables.QuarantineCountRow, tables.QuarantinedRow
    sample = (
        select(sample_row.first_bytes, sample_row.found_at)
        .where(sample_row.topic == counted.topic, sample_row.reason == counted.reason)
        .order_by(sample_row.found_at.desc())
        .limit(1)
    )
    first_bytes = sample.with_only_columns(sample_row.first_bytes).scalar_subquery()
    found_at = sample.with_only_columns(sample_row.found_at).scalar_subquery()
    total = func.sum(counted.count)
    statement = (
        select(counted.topic, counted.reason, total, first_bytes, found_at)
        .where(counted.hour >= period_of("hour", int(now_s) - DAY_S))
        .group_by(counted.topic, counted.reason)
        .order_by(total.desc(), counted.topic, counted.reason)
    )
    return [
        BadRecords(topic, reason, int(number), None if first is None else first.hex(" "), moment(at_ms))
        for topic, reason, number, first, at_ms in _all(connection, statement)
    ]


def read_set_aside(
    connection: Connection, pipelines: Collection[str], unreadable: Sequence[UnreadableRow], now_s: float
) -> list[SetAsideItem]:
    """Read the work of these pipelines that failed and was set aside alone, newest failure first, after the rows that
    were found `unreadable` now."""
    row = tables.SetAsideRow
    statement = select(row.kind, row.pipeline, row.item, row.error, row.failed_at, row.tries)
    rows = _all(connection, statement.where(tables.is_any(row.pipeline, pipelines)).order_by(row.failed_at.desc()))
    own = [SetAsideItem(row.kind, row.pipeline, row.name, row.why, now_s, 1) for row in unreadable]
    stored = [
        SetAsideItem(kind, name, item, error, at_ms / 1_000, tries) for kind, name, item, error, at_ms, tries in rows
    ]
    same = {(item.kind, item.pipeline, item.item) for item in own}
    return [*own, *(item for item in stored if (item.kind, item.pipeline, item.item) not in same)]


def read_strangers(
    connection: Connection, definitions: Mapping[str, Definition], pipeline: str | None
) -> list[StrangeName]:
    """Pipelines that were never applied, and checkpoints that their pipeline's newest definition does not have: the
    newest first. Replays and lanes stand in no definition."""
    row = tables.StrangerRow
    is_unknown = (row.kind == "pipeline") & row.pipeline.not_in(names_not_deleted())
    is_checkpoint = (row.kind == "checkpoint") & tables.is_any(row.pipeline, definitions)
    statement = (
        select(row.kind, row.pipeline, row.checkpoint, row.since)
        .where(is_unknown | is_checkpoint, true() if pipeline is None else row.pipeline == pipeline)
        .order_by(row.since.desc(), row.pipeline, row.checkpoint)
    )
    names = [
        StrangeName(kind, name, name_at, since_ms / 1_000)
        for kind, name, name_at, since_ms in _all(connection, statement)
    ]
    declared = {name: _known(definitions[name]) for name in {name.pipeline for name in names} & definitions.keys()}
    return [name for name in names if name.checkpoint not in declared.get(name.pipeline, ())]


def _known(definition: Definition) -> frozenset[str]:
    """Return a node with several next nodes still reports its work in hand as N.out."""
    graph = definition.graph
    return frozenset(graph.checkpoints) | {f"{node}.out" for node in graph.nodes}


def read_sizes(connection: Connection) -> list[Size]:
    """Return the tables of lagloss, the largest first."""
    query = text(
        "SELECT c.relname, coalesce(tree.bytes, pg_total_relation_size(c.oid)) AS bytes, tree.partitions "
        "FROM pg_class c CROSS JOIN LATERAL ("
        "SELECT sum(pg_total_relation_size(relid))::bigint AS bytes, count(*) FILTER (WHERE isleaf) AS partitions "
        "FROM pg_partition_tree(c.oid)) tree "
        "WHERE c.relname = ANY(:names) AND c.relkind IN ('r', 'p') "
        "AND c.relnamespace = current_schema()::regnamespace ORDER BY bytes DESC, c.relname"
    )
    pruned: dict[str, int] = dict(_all(connection, select(tables.PrunedRow.table_name, tables.PrunedRow.before_s)))
    names = [table.name for table in tables.Base.metadata.sorted_tables]
    return [
        Size(row.relname, row.bytes, row.partitions, pruned.get(row.relname))
        for row in connection.execute(query, {"names": names})
    ]


def read_alerting(connection: Connection, *, with_receivers: bool = True) -> AlerterHealth:
    row = alert_tables.ReceiverRow
    receivers = None
    if with_receivers:
        statement = select(row.name, row.kind, row.is_fallback).order_by(row.name)
        receivers = tuple(
            NamedReceiver(name=name, kind=kind, fallback=is_fallback)
            for name, kind, is_fallback in _all(connection, statement)
        )
    leader = read_holder(connection, ALERTING)
    if leader is None:
        return AlerterHealth(None, None, None, receivers)
    return AlerterHealth(leader.host, leader.since, leader.well_at, receivers)


def read_recomputes(connection: Connection, pipelines: Sequence[str]) -> list[Recompute]:
    """Return unanswered recompute requests, oldest first."""
    row = tables.RecomputeRequestRow
    statement = (
        select(row.pipeline, row.from_s, row.to_s, row.requested_at, row.progress)
        .where(row.answer.is_(None), tables.is_any(row.pipeline, pipelines))
        .order_by(row.id)
    )
    return [
        Recompute(from_s, to_s, name, requested_at, *((progress or {}).get(key) for key in ("done", "of")))
        for name, from_s, to_s, requested_at, progress in _all(connection, statement)
    ]


def _all(connection: Connection, query: Select[*tuple[Any, ...]]) -> Sequence[_Found]:
    return connection.execute(query).all()
