"""A pipeline over a span of time, in at most 1,440 minutes, hours or days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NotRequired, TypedDict, cast

from sqlalchemy import select

from dashboard.queries import buckets, sums
from dashboard.queries.buckets import Bucket
from dashboard.queries.sums import Rolled
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.model.graph import Graph
from lagloss_server.model.hops import HopKind
from lagloss_server.model.place import PlaceKind
from lagloss_server.model.time_range import FromTo, TimeRange
from lagloss_server.model.window import (
    DestinationCounts,
    Interval,
    Lags,
    LossRatio,
    Percentiles,
    SourceCounts,
    rfc3339,
)
from lagloss_server.queries.lru_cache import Remembered
from lagloss_server.store.results import unpack_rollup, unpack_window
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store
from lagloss_server.sums.quality import QualityRow, QualityVerdict, quality_rows
from lagloss_server.sums.rollup import PERIOD_S, Period, period_of

MAX_BUCKETS: Final = 1_440
LIVE_S: Final = 900
"""Minutes of this last time that are not closed yet are shown by their tallies. Older ones are not: that they are open
is a fault, which the page says in words."""

_buckets: Final[Remembered[Bucket]] = Remembered(20_000)
"""Some 5 KB each."""


HopDocument = TypedDict("HopDocument", {"kind": HopKind, "from": str | None, "node": str, "p95_ms": float})
"""What a hop adds to the p95 of the lag, signed."""


class BucketDocument(TypedDict):
    """A minute, an hour or a day of a pipeline: see `Bucket`."""

    start: str
    seconds: int
    verdicts: dict[str, int]
    history: bool | None
    messages: int | None
    delivered: int | None
    filtered: int | None
    dead: int | None
    pending: int | None
    seen: dict[str, int]
    lost: Interval | None
    loss_ratio: LossRatio | None
    lost_at: dict[str, Interval]
    on_time_share: float | None
    e2e_lag_ms: Lags
    reasons_by_node: dict[str, dict[str, dict[str, int]]]
    lag_in_p95_ms: dict[str, float]
    lag_out_p95_ms: dict[str, float]
    durations_ms: dict[str, Percentiles]
    destinations: list[DestinationCounts]
    sources: NotRequired[list[SourceCounts]]
    hops: list[HopDocument]


class QualityCellDocument(TypedDict):
    """One quality of a stage: see `QualityCell`."""

    value: float | None
    most: NotRequired[float | None]
    of: NotRequired[int]
    target: float | None
    verdict: QualityVerdict
    worst_window: str | None


class QualityDocument(TypedDict):
    """The quality of a stage or destination; null: it has none of the kind."""

    kind: PlaceKind
    name: str
    loss: QualityCellDocument | None
    corruption: QualityCellDocument | None
    duplication: QualityCellDocument | None
    staleness: QualityCellDocument | None


class SeriesDocument(FromTo):
    """A pipeline over a range: see `Series`."""

    pipeline: str
    bucket_seconds: int
    buckets: list[BucketDocument]
    total: BucketDocument | None
    quality: list[QualityDocument]


@dataclass(frozen=True, slots=True)
class Series:
    """The buckets that are known, oldest first; where there is none, nothing is known. `total`: the closed minutes of
    the whole span, None where there is none; `quality`: of these, by stage and destination."""

    pipeline: str
    span: TimeRange
    bucket_s: int
    buckets: tuple[Bucket, ...]
    total: Bucket | None
    quality: tuple[QualityRow, ...] = ()

    def from_source(self, source: str) -> Series:
        """Return the series of one source's messages; see `Bucket.from_source`."""
        return replace(
            self,
            buckets=tuple(bucket.from_source(source) for bucket in self.buckets),
            total=None if self.total is None else self.total.from_source(source),
        )

    def document(self) -> SeriesDocument:
        total = None if self.total is None else cast("BucketDocument", self.total.document())
        return {
            "pipeline": self.pipeline,
            "from": rfc3339(self.span.from_s),
            "to": rfc3339(self.span.to_s),
            "bucket_seconds": self.bucket_s,
            "buckets": [cast("BucketDocument", bucket.document()) for bucket in self.buckets],
            "total": total,
            "quality": [cast("QualityDocument", row.document()) for row in self.quality],
        }


def bucket_s(span: TimeRange) -> int:
    """Return how long a bucket of this span is, in s: the shortest that gives at most 1,440 of them.

    Raises:
        ValueError: it has more than 1,440 days.
    """
    for length_s in (WINDOW_S, *PERIOD_S.values()):
        if len(_starts(span, length_s)) <= MAX_BUCKETS:
            return length_s
    raise ValueError(f"{span} has more than {MAX_BUCKETS} days")


def read_series(store: Store, stored: StoredPipeline, span: TimeRange, now_s: float) -> Series:
    """Minutes from their windows, longer buckets from roll-ups, percentiles from merged sketches."""
    graph, name = stored.definition.graph, stored.name
    rolled = sums.read_rolled(store, name, span.from_s, span.to_s)
    length_s = bucket_s(span)
    if length_s == WINDOW_S:
        series = _minutes(store, stored, graph, span, now_s)
    else:
        period: Period = "hour" if length_s == PERIOD_S["hour"] else "day"
        series = _periods(store, stored, graph, period, span, rolled, now_s)
    total = sums.read_total(store, name, span.from_s, span.to_s, now_s)
    whole = buckets.of_rollup(total, span.from_s, span.length_s, graph) if total.windows else None
    quality = quality_rows(total, stored.definition) if total.windows else ()
    return Series(name, span, length_s, tuple(series), whole, quality)


def _starts(span: TimeRange, length_s: int) -> range:
    """Start of the buckets that the span touches."""
    return range(span.from_s // length_s * length_s, span.to_s, length_s)


def _minutes(store: Store, stored: StoredPipeline, graph: Graph, span: TimeRange, now_s: float) -> list[Bucket]:
    closed = _closed_minutes(store, stored, graph, span)
    live_from_s = max(span.from_s, int(now_s) - LIVE_S)
    if live_from_s < span.to_s:
        for window in store.windows(stored.name, live_from_s, span.to_s):
            if window.state == "open":
                bucket = buckets.of_window(window, graph, history=window.history)
                closed.setdefault(bucket.start_s, bucket)
    return [closed[start] for start in sorted(closed)]


def _closed_minutes(store: Store, stored: StoredPipeline, graph: Graph, span: TimeRange) -> dict[int, Bucket]:
    window, database = tables.WindowRow, sums.database(store)
    within = (
        window.pipeline == stored.name,
        window.window_start >= span.from_s,
        window.window_start < span.to_s,
    )
    with store.engine.connect() as connection:
        results = connection.execute(select(window.window_start, window.revision, window.closed_at).where(*within))
        keys = {row.window_start: (database, stored.name, stored.version, "minute", *row) for row in results}
        cached = {start: known for start, key in keys.items() if (known := _buckets.get(key)) is not None}
        missing = [start for start in keys if start not in cached]
        if missing:
            statement = select(window.window_start, window.history, window.document).where(
                *within, window.window_start.in_(missing)
            )
            for start, history, document in connection.execute(statement):
                result = unpack_window(stored.name, start, document)
                if result is not None:
                    cached[start] = _buckets.put(keys[start], buckets.of_window(result, graph, history=history))
    return cached


def _periods(
    store: Store, stored: StoredPipeline, graph: Graph, period: Period, span: TimeRange, rolled: Rolled, now_s: float
) -> list[Bucket]:
    """Roll-ups as they are stored, but for the newest, which are summed anew where something of them has changed."""
    length_s = PERIOD_S[period]
    starts = _starts(span, length_s)
    edge = period_of(period, sums.edge_s(now_s))
    anew = [
        period_start
        for period_start in starts
        if period_start >= edge and not rolled.is_current((period, period_start))
    ]
    bucket_list = _stored(
        store, stored, graph, period, [period_start for period_start in starts if period_start not in anew], rolled
    )
    for start in anew:
        total = sums.read_total(store, stored.name, start, start + length_s, now_s)
        if total.windows:
            bucket_list.append(buckets.of_rollup(total, start, length_s, graph))
    return sorted(bucket_list, key=lambda bucket: bucket.start_s)


def _stored(
    store: Store, stored: StoredPipeline, graph: Graph, period: Period, starts: Sequence[int], rolled: Rolled
) -> list[Bucket]:
    database = sums.database(store)
    keys = {
        (period, start): (database, stored.name, stored.version, period, start, rolled.computed[period, start])
        for start in starts
        if (period, start) in rolled.computed
    }
    cached = {key: known for key, name in keys.items() if (known := _buckets.get(name)) is not None}
    for key, packed in sums.read_packed(store.engine, stored.name, [key for key in keys if key not in cached]):
        rollup = unpack_rollup(stored.name, period, key[1], packed)
        if rollup is not None:
            cached[key] = _buckets.put(keys[key], buckets.of_rollup(rollup, key[1], PERIOD_S[period], graph))
    return list(cached.values())
