"""How far the consumer groups and queues of a pipeline were behind over a span, by node or by partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, NotRequired, TypedDict

from sqlalchemy import BigInteger, ColumnElement, Select, Subquery, and_, case, cast, func, null, select
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by
from sqlalchemy.orm import InstrumentedAttribute

from dashboard.queries.series import bucket_s
from lagloss_server.groups.velocity import NOT_COMMITTED
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.time_range import FromTo, TimeRange
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

By = Literal["node", "partition"]
NOW_S: Final = 120
"""Older answers are not current."""


class LagValues(TypedDict):
    """A figure at the end of a bucket, and the highest in it; null: unknown."""

    last: int | None
    max: int | None


class LagBucketDocument(TypedDict):
    """Consumer lag in a bucket: see `LagBucket`."""

    start: str
    offsets: LagValues
    behind_ms: LagValues
    in_flight: LagValues


class OfDocument(TypedDict):
    """Whose consumer lag it is: a node's, or that of one of its inputs."""

    node: str
    group: str
    topic: NotRequired[str | None]
    partition: NotRequired[int | None]


class LagSeriesDocument(OfDocument):
    """Consumer lag over a range, oldest first."""

    buckets: list[LagBucketDocument]


class ConsumerLagDocument(FromTo):
    """Consumer lag of a pipeline over a range: see `ConsumerLag`."""

    pipeline: str
    bucket_seconds: int
    watched: dict[str, str]
    series: list[LagSeriesDocument]


class Of(NamedTuple):
    """Whose lag it is: a node's, or, where topic and partition are set, that of one of its inputs."""

    node: str
    group: str
    topic: str | None = None
    partition: int | None = None

    def document(self) -> OfDocument:
        if self.topic is None:
            return {"node": self.node, "group": self.group}
        return {"node": self.node, "group": self.group, "topic": self.topic, "partition": self.partition}


@dataclass(frozen=True, slots=True)
class LagBucket:
    """[start_s, start_s + length_s) of wall-clock time. `offsets` and `behind_ms`: at its end; `_max`: the highest in
    it. None: not known. A node's offsets are the sum over its partitions, without those that its group has not
    committed (`offsets_max`: of the highest of each in a minute, so at most so many waited at once), its `behind_ms` is
    that of the partition which is furthest behind. `in_flight`: of a queue, the messages received and not deleted; None
    for Kafka."""

    start_s: int
    length_s: int
    offsets: int | None
    offsets_max: int | None
    behind_ms: int | None
    behind_max_ms: int | None
    in_flight: int | None = None
    in_flight_max: int | None = None

    def document(self) -> LagBucketDocument:
        return {
            "start": rfc3339(self.start_s),
            "offsets": {"last": self.offsets, "max": self.offsets_max},
            "behind_ms": {"last": self.behind_ms, "max": self.behind_max_ms},
            "in_flight": {"last": self.in_flight, "max": self.in_flight_max},
        }


@dataclass(frozen=True, slots=True)
class LagNow:
    """Of a node, as its buckets have it; None: not known."""

    offsets: int | None
    behind_ms: int | None
    in_flight: int | None = None


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """Series of consumer lag, oldest first, in the order of the flow. `watched`: the group or queue of each node that
    names one now."""

    pipeline: str
    span: TimeRange
    bucket_s: int
    watched: Mapping[str, str]
    series: Mapping[Of, tuple[LagBucket, ...]]

    def document(self) -> ConsumerLagDocument:
        return {
            "pipeline": self.pipeline,
            "from": rfc3339(self.span.from_s),
            "to": rfc3339(self.span.to_s),
            "bucket_seconds": self.bucket_s,
            "watched": dict(self.watched),
            "series": [
                {**group.document(), "buckets": [bucket.document() for bucket in buckets]}
                for group, buckets in self.series.items()
            ],
        }


def read_consumer_lag(store: Store, stored: StoredPipeline, span: TimeRange, by: By) -> ConsumerLag:
    """Read consumer lag in the same buckets as the pipeline's other series."""
    length_s, nodes = bucket_s(span), stored.definition.graph.nodes
    with store.engine.connect() as connection:
        rows = connection.execute(_buckets(_minutes(stored.name, span, by), length_s)).all()
    rank = {node: index for index, node in enumerate(nodes)}
    ordered = sorted(rows, key=lambda row: (rank.get(row.node, len(rank)), Of(*row[:4]), row.start_s))
    series = {
        group: tuple(LagBucket(row.start_s, length_s, *row[5:]) for row in rows)
        for group, rows in groupby(ordered, key=lambda row: Of(*row[:4]))
    }
    return ConsumerLag(stored.name, span, length_s, stored.definition.groups, series)


def read_lag_now(store: Store, pipelines: Sequence[str], now_s: float) -> dict[tuple[str, str], LagNow]:
    """Read the newest consumer lag, two minutes old at most, by pipeline and node."""
    row = tables.ConsumerLagRow
    statement = (
        select(
            row.pipeline,
            row.node,
            _of_all(func.sum, row.offsets),
            _of_all(func.max, row.behind_ms),
            _of_all(func.sum, row.in_flight),
        )
        .where(tables.is_any(row.pipeline, pipelines), row.window_start >= int(now_s) - NOW_S)
        .group_by(row.pipeline, row.node, row.window_start)
        .order_by(row.window_start)
    )
    with store.engine.connect() as connection:
        return {(name, node): LagNow(*values) for name, node, *values in connection.execute(statement)}


def _of_all(total: Callable[..., ColumnElement[Any]], column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    """Over all partitions but those that the group has not committed; what is not known of one is not known of all."""
    row = tables.ConsumerLagRow
    is_left_out = and_(row.status == NOT_COMMITTED, row.offsets.is_(None))
    unknown = func.count().filter(column.is_(None), is_left_out.is_not(True))
    return case((unknown == 0, cast(total(column), BigInteger))).label(column.key)


def _minutes(pipeline: str, span: TimeRange, by: By) -> Subquery:
    """Minute by minute."""
    row = tables.ConsumerLagRow
    columns: list[Any] = [row.node, row.consumer_group]
    inputs: list[Any] = [row.topic, row.topic_partition]
    return (
        select(
            *columns,
            *(inputs if by == "partition" else [null().label(column.key) for column in inputs]),
            row.window_start,
            *(_of_all(func.sum, column) for column in (row.offsets, row.offsets_max)),
            *(_of_all(func.max, column) for column in (row.behind_ms, row.behind_max_ms)),
            *(_of_all(func.sum, column) for column in (row.in_flight, row.in_flight_max)),
        )
        .where(row.pipeline == pipeline, row.window_start >= span.from_s, row.window_start < span.to_s)
        .group_by(*columns, *(inputs if by == "partition" else ()), row.window_start)
        .subquery()
    )


def _buckets(minutes: Subquery, length_s: int) -> Select[*tuple[Any, ...]]:
    """Node, group, topic, partition, start, and the values in the order in which a bucket has them."""
    start_s = minutes.c.window_start

    def last(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.array_agg(aggregate_order_by(column, start_s.desc()), type_=ARRAY(BigInteger))[1]

    columns = [minutes.c[name] for name in ("node", "consumer_group", "topic", "topic_partition")]
    start = (start_s // length_s * length_s).label("start_s")
    return select(
        *columns,
        start,
        last(minutes.c.offsets),
        func.max(minutes.c.offsets_max),
        last(minutes.c.behind_ms),
        func.max(minutes.c.behind_max_ms),
        last(minutes.c.in_flight),
        func.max(minutes.c.in_flight_max),
    ).group_by(*columns, start)
