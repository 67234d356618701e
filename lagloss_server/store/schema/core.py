"""Tables of definitions, reports, windows and tokens.

Each has one writer, named in its comment. Tables that grow by the minute are partitioned by day.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    ColumnElement,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SQLColumnExpression,
    Table,
    TableValuedAlias,
    Text,
    Uuid,
    any_,
    column,
    func,
    literal,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine


class Base(DeclarativeBase):
    type_annotation_map = {
        int: BigInteger,
        str: Text,
        float: Double,
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
        uuid.UUID: Uuid,
        datetime: DateTime(timezone=True),
    }


BY_DAY: Final = {"postgresql_partition_by": "RANGE (window_start)"}
"""Partitioned by the day of `window_start` (epoch s); partitions are made by their writer and dropped whole."""

THREE_TO_A_PAGE: Final = {"info": {"days_with": "toast_tuple_target = 2700"}}
"""Rows of up to a third of a page lie in it whole, not only those of up to a quarter: 9 % fewer bytes."""

REPLACED_OFTEN: Final = {"postgresql_with": {"fillfactor": 45}}
"""Every row is replaced each second: a page has room for the new ones, so that no index has to be changed."""


class PipelineRow(Base):
    __tablename__ = "pipeline"
    __table_args__ = {"comment": "Versions of definitions. Writers: lagloss apply, collector."}

    name: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    applied_at: Mapped[int] = mapped_column(comment="epoch ms: in force for windows that start at or after it")
    definition: Mapped[dict[str, Any]]
    deleted_at: Mapped[int | None] = mapped_column(comment="epoch ms; set in the newest version: it is deleted")


class TokenRow(Base):
    __tablename__ = "token"
    __table_args__ = {"comment": "Tokens of the collector's clients. Writer: lagloss token."}

    id: Mapped[str] = mapped_column(primary_key=True, comment="public part of the token")
    pipeline: Mapped[str]
    scope: Mapped[str] = mapped_column(comment="intake, or admin: also the definition")
    rate: Mapped[int | None] = mapped_column(comment="beacons per second; null: no limit")
    secret_hash: Mapped[bytes] = mapped_column(comment="SHA-256 of the secret's text")
    created_at: Mapped[int] = mapped_column(comment="epoch ms")
    revoked_at: Mapped[int | None] = mapped_column(comment="epoch ms")


class ReportsPositionRow(Base):
    __tablename__ = "reports_position"
    __table_args__ = {"comment": "Next offset to consume of each partition of the reports topic. Writer: follower."}

    topic_partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    next_offset: Mapped[int]
    topic_id: Mapped[str]
    leader_epoch: Mapped[int] = mapped_column(
        Integer, server_default="-1", comment="of the last report before it; -1: unknown"
    )
    appended_at: Mapped[int] = mapped_column(server_default="0", comment="epoch ms: of the last report before it")
    whole_from: Mapped[int] = mapped_column(
        server_default="0", comment="epoch ms: the log lost reports that were appended before"
    )


class EmitterRow(Base):
    __tablename__ = "emitter"
    __table_args__ = {"comment": "The newest report of each emitter. Writer: follower.", **REPLACED_OFTEN}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    emitter: Mapped[bytes] = mapped_column(primary_key=True)
    node: Mapped[str]
    host: Mapped[str]
    seq: Mapped[int]
    started_at: Mapped[int] = mapped_column(comment="epoch ms")
    sent_at: Mapped[int] = mapped_column(comment="epoch ms on the emitter's clock")
    closed: Mapped[bool]
    final_through: Mapped[int] = mapped_column(comment="epoch s")
    appended_at: Mapped[int] = mapped_column(comment="epoch ms: append time of the last report")
    skew_ms: Mapped[int] = mapped_column(
        server_default="0", comment="smallest append time - sent_at in its last minute of reports"
    )
    skew: Mapped[dict[str, Any]] = mapped_column(
        server_default="{}", comment="Skew: {smallest, set_back: [[minute, ms], ...]}"
    )
    resumes: Mapped[bool] = mapped_column(
        server_default="false", comment="it observes again the messages that were in flight"
    )
    unfinished: Mapped[bool] = mapped_column(server_default="false", comment="it closed with messages in flight")
    inputs: Mapped[list[Any]] = mapped_column(server_default="[]", comment="lanes of its node's input that it reported")
    labels: Mapped[dict[str, Any]] = mapped_column(server_default="{}", comment="of its deployment")


class LaneRow(Base):
    __tablename__ = "progress"
    __table_args__ = {"comment": "The newest progress of each lane. Writer: follower.", **REPLACED_OFTEN}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    checkpoint: Mapped[str] = mapped_column(primary_key=True)
    lane: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[bytes] = mapped_column(
        primary_key=True, comment="emitter of messages in flight; empty for ordered inputs"
    )
    until: Mapped[int] = mapped_column(comment="epoch ms")
    reporter: Mapped[bytes] = mapped_column(server_default="", comment="emitter that reported it")
    appended_at: Mapped[int] = mapped_column(comment="position in the reports log: append time, partition, offset")
    topic_partition: Mapped[int] = mapped_column(Integer)
    topic_offset: Mapped[int]


class TallyRow(Base):
    __tablename__ = "tally"
    __table_args__ = (
        Index("tally_changed", "changed_basis"),
        {"comment": "The newest tally of each emitter, checkpoint, window and replay. Writer: follower.", **BY_DAY},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    emitter: Mapped[bytes] = mapped_column(primary_key=True)
    checkpoint: Mapped[str] = mapped_column(primary_key=True)
    replay: Mapped[str] = mapped_column(primary_key=True, comment="empty for live traffic")
    node: Mapped[str]
    seq: Mapped[int] = mapped_column(comment="of the report it came with")
    sample: Mapped[int]
    beacons: Mapped[int]
    payload_bytes: Mapped[int]
    id_sum: Mapped[int]
    dropped: Mapped[int]
    sketch: Mapped[bytes] = mapped_column(comment="bins as in a tally's lag_sketch on the wire")
    lowest_bin: Mapped[int | None] = mapped_column(Integer, comment="key of the first bin; null: there are no lags")
    ranges: Mapped[bytes] = mapped_column(comment="as in a tally's ranges on the wire")
    changed_at: Mapped[int] = mapped_column(comment="epoch ms: append time of the report that last changed it")
    changed_basis: Mapped[int] = mapped_column(comment="basis of the reports in which it last changed")


_WINDOW_COLUMNS = "Result columns: see Window."


class WindowRow(Base):
    __tablename__ = "window"
    __table_args__ = (
        Index("window_deadline", "pipeline", "deadline", postgresql_where=text("deadline IS NOT NULL")),
        Index("window_unsealed", "window_start", postgresql_where=text("state = 'closed'")),
        {
            "comment": f"The newest result of each closed window. Writer: closer. {_WINDOW_COLUMNS}",
            **BY_DAY,
            **THREE_TO_A_PAGE,
        },
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    state: Mapped[str] = mapped_column(comment="closed or sealed")
    revision: Mapped[int] = mapped_column(Integer)
    verdict: Mapped[str]
    messages: Mapped[int]
    delivered: Mapped[int]
    pending: Mapped[int]
    lost_min: Mapped[int]
    lost_max: Mapped[int]
    on_time: Mapped[int] = mapped_column(server_default="0", comment="of these, delivered within the lag target")
    on_time_of: Mapped[int] = mapped_column(server_default="0", comment="messages - filtered - dead; 0 if unknown")
    e2e_p95_ms: Mapped[float | None]
    history: Mapped[bool] = mapped_column(comment="all its emitters started after its end: a back-fill")
    closed_at: Mapped[int] = mapped_column(comment="epoch ms of this revision")
    judged_at: Mapped[int] = mapped_column(comment="epoch ms: latest time at which the result was confirmed")
    basis: Mapped[int] = mapped_column(comment="position in the reports that the result is based on")
    deadline: Mapped[int | None] = mapped_column(comment="epoch ms: when to evaluate again; null if nothing can change")
    log_start: Mapped[list[Any]] = mapped_column(comment="[[partition, lowest offset its blocks need], ...]")
    document: Mapped[bytes] = mapped_column(comment="the result as windows --json prints it, packed")
    stale_ms: Mapped[float | None] = mapped_column(comment="largest staleness of a checkpoint; null: unknown")
    facts: Mapped[bytes] = mapped_column(comment="WindowFacts, packed")


class WindowRevisionRow(Base):
    __tablename__ = "window_history"
    __table_args__ = {"comment": "Earlier results of windows, 50 a window at most. Writer: closer.", **BY_DAY}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    revision: Mapped[int] = mapped_column(Integer, primary_key=True)
    closed_at: Mapped[int] = mapped_column(comment="epoch ms")
    document: Mapped[bytes] = mapped_column(comment="as in window")


class MissingMessageRow(Base):
    __tablename__ = "missing_message"
    __table_args__ = (
        Index("missing_message_hash", "id_hash", "pipeline"),
        {"comment": "Missing messages of each window, 1,000 at most. Writer: closer.", **BY_DAY},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    id_hash: Mapped[int] = mapped_column(primary_key=True, comment="xxh3_64 read as signed")
    message_id: Mapped[str | None] = mapped_column(comment="null if the name is unknown")
    pattern: Mapped[str] = mapped_column(comment="presence pattern, hex")
    kind: Mapped[str] = mapped_column(comment="lost, perhaps, overdue or pending")
    places: Mapped[list[Any]]
    last_checkpoint: Mapped[str]
    last_seen_ms: Mapped[float] = mapped_column(comment="epoch ms, by what its beacons say")
    seen_from_ms: Mapped[float] = mapped_column(comment="epoch ms; it was last seen then at the earliest")
    seen_by_ms: Mapped[float] = mapped_column(comment="epoch ms; and then at the latest")
    trace_id: Mapped[str | None] = mapped_column(comment="of W3C's traceparent, hex; null if unknown")
    span_id: Mapped[str | None] = mapped_column(comment="of W3C's traceparent, hex")
    emitter: Mapped[bytes | None] = mapped_column(comment="of its beacon at last_checkpoint; null if unknown")


class PickedMessagesRow(Base):
    __tablename__ = "picked_messages"
    __table_args__ = (
        Index("picked_messages_newest", "window_start"),
        {
            "comment": "Individually examined messages of a window: the bad ones and some good ones. Writer: closer.",
            **BY_DAY,
        },
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    packed: Mapped[bytes] = mapped_column(comment="PickedMessages")


class ConsumerLagRow(Base):
    __tablename__ = "consumer_lag"
    __table_args__ = {
        "comment": "How far consumer groups were behind, by minute of wall-clock time. Writer: consumer lag watch.",
        **BY_DAY,
    }

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s: the minute of the query")
    node: Mapped[str] = mapped_column(primary_key=True)
    consumer_group: Mapped[str] = mapped_column(primary_key=True)
    topic: Mapped[str] = mapped_column(primary_key=True)
    topic_partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    asked_at: Mapped[int] = mapped_column(comment="epoch ms: time of the newest query")
    offsets: Mapped[int | None] = mapped_column(comment="log end - committed at that time; null: unknown")
    offsets_max: Mapped[int | None] = mapped_column(comment="highest in the minute")
    behind_ms: Mapped[int | None] = mapped_column(
        comment="asked_at - time of the record at the committed offset; 0: no lag; null: unknown"
    )
    behind_max_ms: Mapped[int | None] = mapped_column(comment="highest in the minute")
    basis: Mapped[str | None] = mapped_column(comment="what behind_ms is by: event-time or timestamp; null: neither")
    in_flight: Mapped[int | None] = mapped_column(comment="of a queue: messages received and not deleted")
    in_flight_max: Mapped[int | None] = mapped_column(comment="highest in the minute")
    committed: Mapped[int | None] = mapped_column(comment="offset at asked_at; null: none, or a queue")
    log_start: Mapped[int | None] = mapped_column(comment="first offset of the log at asked_at; null: unknown")
    log_end: Mapped[int | None] = mapped_column(comment="offset after its last at asked_at; null: unknown")
    commits_per_s: Mapped[float | None] = mapped_column(comment="offsets per second, of 5 minutes; null: unknown")
    appends_per_s: Mapped[float | None] = mapped_column(comment="offsets per second, of 5 minutes; null: unknown")
    status: Mapped[str | None] = mapped_column(comment="ok, warning, stalled or stopped; null: unknown")
    kept_by: Mapped[str | None] = mapped_column(
        comment="limit that deletes the first waiting record: time or size; none: no limit; null: unknown"
    )
    deletes_at: Mapped[int | None] = mapped_column(
        comment="epoch ms: earliest time at which the next record is deleted; null: no lag, or unknown limit"
    )
    loss_at: Mapped[int | None] = mapped_column(
        comment="epoch ms: earliest time at which a waiting record is deleted unread, at these rates; null: none"
    )
    at_risk: Mapped[int | None] = mapped_column(comment="waiting offsets from that record on; null: none")
    deleted: Mapped[int | None] = mapped_column(
        comment="offsets deleted in the minute before the group had committed past them; null: unknown"
    )


class ConsumerGroupRow(Base):
    __tablename__ = "consumer_group"
    __table_args__ = {"comment": "Consumer groups as their coordinators describe them. Writer: consumer lag watch."}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(primary_key=True)
    consumer_group: Mapped[str] = mapped_column(primary_key=True)
    asked_at: Mapped[int] = mapped_column(comment="epoch ms")
    state: Mapped[str] = mapped_column(comment="as Kafka names it: Stable, Empty, Dead, ...")
    since: Mapped[int] = mapped_column(comment="epoch ms: when this state was first observed")
    members: Mapped[int] = mapped_column(Integer, comment="consumers in it")
    assigned: Mapped[int] = mapped_column(Integer, comment="partitions assigned to its members in total")
    protocol: Mapped[str] = mapped_column(comment="classic, or consumer: KIP-848")


class ClusterGroupRow(Base):
    __tablename__ = "cluster_group"
    __table_args__ = {
        "comment": "Every consumer group of the clusters as it was read last. Writer: consumer lag watch.",
        **REPLACED_OFTEN,
    }

    cluster: Mapped[str] = mapped_column(primary_key=True, comment="empty: that of lagloss's own topics")
    consumer_group: Mapped[str] = mapped_column(primary_key=True)
    asked_at: Mapped[int] = mapped_column(comment="epoch ms")
    pipelines: Mapped[list[Any]] = mapped_column(comment="names of the pipelines whose definitions name it")
    document: Mapped[bytes] = mapped_column(comment="lagloss_server.groups.cluster_groups.ClusterGroup as JSON")


class ClusterTopicsRow(Base):
    __tablename__ = "cluster_topics"
    __table_args__ = {"comment": "The topics of each cluster as they were listed last. Writer: consumer lag watch."}

    cluster: Mapped[str] = mapped_column(primary_key=True, comment="empty: that of lagloss's own topics")
    asked_at: Mapped[int] = mapped_column(comment="epoch ms")
    document: Mapped[bytes] = mapped_column(comment="their names, a list as JSON")


_OF_WINDOWS = "of windows, with this verdict"


class RollupRow(Base):
    __tablename__ = "rollup"
    __table_args__ = (
        Index("rollup_start", "start"),
        {"comment": "Sums of the closed windows of each hour and day. Writer: closer (upkeep)."},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    period: Mapped[str] = mapped_column(primary_key=True, comment="hour or day")
    start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s, UTC")
    windows: Mapped[int] = mapped_column(Integer, comment="minutes of it that are closed")
    ok_windows: Mapped[int] = mapped_column(Integer, server_default="0", comment=_OF_WINDOWS)
    loss_windows: Mapped[int] = mapped_column(Integer, server_default="0", comment=_OF_WINDOWS)
    unknown_windows: Mapped[int] = mapped_column(Integer, server_default="0", comment=_OF_WINDOWS)
    idle_windows: Mapped[int] = mapped_column(Integer, server_default="0", comment=_OF_WINDOWS)
    messages: Mapped[int]
    delivered: Mapped[int] = mapped_column(server_default="0")
    pending: Mapped[int] = mapped_column(server_default="0")
    lost_min: Mapped[int]
    lost_max: Mapped[int]
    on_time: Mapped[int] = mapped_column(server_default="0", comment="as in window")
    on_time_of: Mapped[int] = mapped_column(server_default="0", comment="as in window")
    e2e_p95_ms: Mapped[float | None]
    computed_at: Mapped[int] = mapped_column(comment="epoch ms: when these sums were computed")
    packed: Mapped[bytes] = mapped_column(comment="Rollup: all sums and sketches")


class RollupDirtyRow(Base):
    __tablename__ = "rollup_dirty"
    __table_args__ = {"comment": "Roll-ups to recompute, marked in the commit that changed them. Writer: closer."}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    period: Mapped[str] = mapped_column(primary_key=True)
    start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s, UTC")
    dirty_since: Mapped[int] = mapped_column(comment="epoch ms: the first change that the roll-up does not include")


class PrunedRow(Base):
    __tablename__ = "pruned"
    __table_args__ = {
        "comment": "Retention limit of tables that are dropped by day; older windows are deleted. Writer: retention."
    }

    table_name: Mapped[str] = mapped_column(primary_key=True)
    before_s: Mapped[int] = mapped_column(
        comment="epoch s: rows of windows that start before it are deleted permanently"
    )


class StrangerRow(Base):
    __tablename__ = "stranger"
    __table_args__ = {"comment": "Undeclared names in reports, stored up to a limit. Writer: follower."}

    kind: Mapped[str] = mapped_column(primary_key=True, comment="pipeline, checkpoint, replay or lane")
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    checkpoint: Mapped[str] = mapped_column(primary_key=True, comment="of a checkpoint or lane, else empty")
    name: Mapped[str] = mapped_column(primary_key=True, comment="of a replay or lane, else empty")
    emitter: Mapped[bytes] = mapped_column(comment="who named it first")
    since: Mapped[int] = mapped_column(comment="epoch ms: append time of the report that named it first")


class QuarantinedRow(Base):
    __tablename__ = "quarantine"
    __table_args__ = (
        Index("quarantine_found", "topic", "reason", "found_at"),
        {"comment": "Bad records of both topics, 1,000 a topic, reason and hour at most. Writer: aggregator."},
    )

    topic: Mapped[str] = mapped_column(primary_key=True)
    topic_partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    topic_offset: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str]
    first_bytes: Mapped[bytes]
    found_at: Mapped[datetime] = mapped_column(server_default=func.now())


class QuarantineCountRow(Base):
    __tablename__ = "quarantine_count"
    __table_args__ = {"comment": "Number of bad records, whether or not stored in quarantine. Writer: aggregator."}

    topic: Mapped[str] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    hour: Mapped[int] = mapped_column(primary_key=True, comment="epoch s: the hour in which they were appended")
    bucket: Mapped[str] = mapped_column(
        primary_key=True, comment="source whose counts are replaced together; empty: counts are added up"
    )
    count: Mapped[int]


class DeferredReportsRow(Base):
    __tablename__ = "deferred_reports"
    __table_args__ = {"comment": "Deferred reports of a pipeline, up to reports_position. Writer: follower."}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    topic_partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    next_offset: Mapped[int] = mapped_column(comment="of the first report that is not consumed yet")


class SetAsideRow(Base):
    __tablename__ = "set_aside"
    __table_args__ = {"comment": "Work that failed for a reason that retrying does not fix. Writer: aggregator."}

    kind: Mapped[str] = mapped_column(primary_key=True, comment="window, rollup or group")
    pipeline: Mapped[str] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(primary_key=True, comment="the window's start, PERIOD/START, or the group")
    error: Mapped[str] = mapped_column(comment="the first line of it")
    failed_at: Mapped[int] = mapped_column(comment="epoch ms, of the last try")
    tries: Mapped[int] = mapped_column(Integer)


class AuditedRow(Base):
    __tablename__ = "audited"
    __table_args__ = {"comment": "Next offset of the beacons topic whose key is to be checked. Writer: closer."}

    topic_partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    next_offset: Mapped[int]
    topic_id: Mapped[str]


class RecomputeRequestRow(Base):
    __tablename__ = "recompute_request"
    __table_args__ = {
        "comment": "Requests to recompute windows. Writers: lagloss recompute (request), closer (progress)."
    }

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    pipeline: Mapped[str]
    from_s: Mapped[int]
    to_s: Mapped[int]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    progress: Mapped[dict[str, Any] | None] = mapped_column(comment="progress of the closer")
    answer: Mapped[dict[str, Any] | None]


def table_of(model: type[Base]) -> Table:
    """Return a model's table, for statements on columns rather than objects."""
    table = model.__table__
    if not isinstance(table, Table):
        raise TypeError(f"{model.__name__} is no table")
    return table


PARTITIONED: Final = tuple(
    table_of(model)
    for model in (TallyRow, WindowRow, WindowRevisionRow, MissingMessageRow, PickedMessagesRow, ConsumerLagRow)
)


def is_any(column: SQLColumnExpression[str], names: Iterable[str]) -> ColumnElement[bool]:
    """Return whether a text column is one of these, however many they are."""
    return column == any_(literal(sorted(names), ARRAY(Text)))


def rows_of(rows: Iterable[Sequence[object]], **types: TypeEngine[Any]) -> TableValuedAlias:
    """Return these rows as a table, for joins that look each up by itself in an index: one statement, however many
    rows."""
    values = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [literal(list(column), ARRAY(kind)) for column, kind in zip(values, types.values(), strict=True)]
    columns = [column(name, kind) for name, kind in types.items()]
    return func.unnest(*arrays).table_valued(*columns, name="asked").render_derived()


def at_places(
    pipeline: SQLColumnExpression[str], start: SQLColumnExpression[int], places: Iterable[tuple[str, int]]
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for rows with these pipelines and starts (epoch s), each looked up by itself, however many
    they are. The two columns are given."""
    listed = list(places)
    listed_rows, starts = rows_of(listed, pipeline=Text(), start=BigInteger()), [start for _, start in listed] or [0]
    return (
        pipeline == listed_rows.c.pipeline,
        start == listed_rows.c.start,
        start.between(min(starts), max(starts)),  # for the planner, which then leaves other days out
    )
