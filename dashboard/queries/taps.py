"""Taps of pipelines: how far each has read its topic, why it waits, and what it could not read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypedDict

from sqlalchemy import BigInteger, Boolean, cast, literal_column, select

from lagloss_server.base.fields import write_duration
from lagloss_server.model.definition import Definition
from lagloss_server.model.tables import AnyTap, TableTap
from lagloss_server.model.window import rfc3339
from lagloss_server.store.ownership import IS_FREE
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.taps import TapRow, TapUnreadableRow
from lagloss_server.store.store import Store
from lagloss_server.store.tap_rows import read_taps_of

BEHIND_AFTER_S: Final = 60.0
"""A tap that has nothing to read says so each 10 s; windows are due a minute after their end, by default."""


class TapState(StrEnum):
    """What a tap does; all but the first keep its pipeline's minutes from being judged."""

    READING = "reading"
    BEHIND = "behind"
    WAITING = "waiting"
    NOT_RUN = "not run"
    NOT_BEGUN = "not begun"


class UnreadableExample(TypedDict):
    """A record that a tap could not read, and its timestamp."""

    partition: int
    offset: int
    timestamp: str


class UnreadableDocument(TypedDict):
    """Records that a tap could not read for one reason, and the newest example of them."""

    reason: str
    count: int
    example: UnreadableExample


class TapSourceDocument(TypedDict):
    """What a tap's beacons are made of: a topic, what a reader has committed of it, or a table."""

    topic: str | None
    group: str | None
    connector: str | None
    cluster: str | None
    table: str | None
    database: str | None


class TapDocument(TapSourceDocument):
    """One tap of a definition now: see `TapStatus`."""

    node: str
    checkpoints: list[str]
    commits: str | None
    delivered_by_commit: bool
    state: TapState
    trouble: str | None
    recheck: str | None
    recheck_trouble: str | None
    since: str | None
    read_through: str | None
    behind_ms: int | None
    records: int
    left_out: int
    early: int
    gone: int
    unreadable: list[UnreadableDocument]


@dataclass(frozen=True, slots=True)
class UnreadableCount:
    """Records that a tap could not read for one reason, and the newest example of them. `at_s`: its timestamp."""

    reason: str
    count: int
    partition: int
    offset: int
    at_s: float

    @property
    def place(self) -> str:
        """The example as Kafka's tools name it: PARTITION@OFFSET."""
        return f"{self.partition}@{self.offset}"

    def document(self) -> UnreadableDocument:
        example: UnreadableExample = {
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": rfc3339(self.at_s),
        }
        return {"reason": self.reason, "count": self.count, "example": example}


@dataclass(frozen=True, slots=True)
class TapStatus:
    """One tap of a definition as of a moment; counts are of all records since it began.

    Attributes:
        commits: how commits of its group are learned, `log` or `polled`; None: it has no group, or has not begun.
        trouble: why it waits; empty: it does not.
        recheck_trouble: why rows of its table are not compared again; empty: nothing is wrong.
        since_s: start of its first window (epoch s); None: it has not begun.
        through_s: everything observed before is read (epoch s); None: that is not known of any moment yet.
        behind_s: seconds since then.
        records, left_out, early, gone: read; of them left out by its filter, and of windows before its first; offsets
            that were deleted before they were read.
    """

    tap: AnyTap
    state: TapState
    commits: str | None = None
    trouble: str = ""
    since_s: int | None = None
    through_s: float | None = None
    behind_s: float | None = None
    records: int = 0
    left_out: int = 0
    early: int = 0
    gone: int = 0
    unreadable: tuple[UnreadableCount, ...] = ()
    recheck_trouble: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state is not TapState.READING

    @property
    def recheck(self) -> str | None:
        """For how long rows are compared again; None: they are not."""
        recheck_ms = self.tap.recheck_ms if isinstance(self.tap, TableTap) else 0
        return write_duration(recheck_ms) if recheck_ms else None

    @property
    def unreadable_records(self) -> int:
        return sum(records.count for records in self.unreadable)

    @property
    def checkpoints(self) -> list[str]:
        return [f"{self.tap.node}.{place}" for place in self.tap.places]

    def document(self) -> TapDocument:
        return {
            "node": self.tap.node,
            "checkpoints": self.checkpoints,
            **_source(self.tap),
            "commits": self.commits,
            "delivered_by_commit": self.tap.group is not None and "out" in self.tap.places,
            "state": self.state,
            "trouble": self.trouble or None,
            "recheck": self.recheck,
            "recheck_trouble": self.recheck_trouble or None,
            "since": None if self.since_s is None else rfc3339(self.since_s),
            "read_through": None if self.through_s is None else rfc3339(self.through_s),
            "behind_ms": None if self.behind_s is None else round(1_000 * self.behind_s),
            "records": self.records,
            "left_out": self.left_out,
            "early": self.early,
            "gone": self.gone,
            "unreadable": [records.document() for records in self.unreadable],
        }


def _source(tap: AnyTap) -> TapSourceDocument:
    if isinstance(tap, TableTap):
        table, database = tap.table.table, tap.table.database
        return TapSourceDocument(topic=None, group=None, connector=None, cluster=None, table=table, database=database)
    group, connector = (None, tap.group) if tap.offsets else (tap.group, None)
    cluster = tap.cluster or None
    return TapSourceDocument(
        topic=tap.topic, group=group, connector=connector, cluster=cluster, table=None, database=None
    )


def read_taps(store: Store, definitions: Iterable[Definition], now_s: float) -> list[TapStatus]:
    """Return the taps of these pipelines, in the order of the definitions, and of the flow in each."""
    taps = [tap for definition in definitions for tap in _in_order(definition)]
    if not taps:
        return []
    names = sorted({tap.pipeline for tap in taps})
    row, unreadable = TapRow, TapUnreadableRow
    statement = (
        select(
            *(row.emitter, row.pipeline, row.node, row.tap, row.since, row.seen),
            *(row.left_out, row.early, row.gone, row.commits, row.trouble, row.recheck_trouble),
            cast(row.plan["through_ms"].astext, BigInteger).label("through_ms"),
            literal_column(f"NOT ({IS_FREE})", Boolean).label("is_owned"),
        )
        .where(tables.is_any(row.pipeline, names))
        .order_by(row.since)  # of a tap that was dropped and is wanted again, the newest counts
    )
    bad = (
        select(
            *(unreadable.emitter, unreadable.reason, unreadable.count.label("records")),
            *(unreadable.partition, unreadable.offset, unreadable.at),
        )
        .join(row, row.emitter == unreadable.emitter)
        .where(tables.is_any(row.pipeline, names))
        .order_by(unreadable.count.desc(), unreadable.reason)
    )
    with store.engine.connect() as connection:
        stored = dict(read_taps_of(connection.execute(statement)))
        reasons: dict[bytes, list[UnreadableCount]] = {}
        for bad_row in connection.execute(bad):
            records = UnreadableCount(
                bad_row.reason, bad_row.records, bad_row.partition, bad_row.offset, bad_row.at / 1_000
            )
            reasons.setdefault(bad_row.emitter, []).append(records)
    return [_status(tap, stored.get(tap), reasons, now_s) for tap in taps]


def _in_order(definition: Definition) -> list[AnyTap]:
    """Return the taps of a definition, of each node what it takes in before what it sends out."""
    rank = {node: index for index, node in enumerate(definition.graph.nodes)}
    return sorted(definition.all_taps, key=lambda tap: (rank[tap.node], tap.group is None))


def _status(tap: AnyTap, row: Any, reasons: Mapping[bytes, Sequence[UnreadableCount]], now_s: float) -> TapStatus:
    if row is None:
        return TapStatus(tap, TapState.NOT_BEGUN)
    through_s = row.through_ms / 1_000 if row.through_ms else None
    behind_s = None if through_s is None else max(0.0, now_s - through_s)
    late_s = now_s - row.since / 1_000 if behind_s is None else behind_s
    return TapStatus(
        tap,
        _state(row, late_s),
        commits=row.commits or None,
        trouble=row.trouble,
        since_s=row.since // 1_000,
        through_s=through_s,
        behind_s=behind_s,
        records=row.seen,
        left_out=row.left_out,
        early=row.early,
        gone=row.gone,
        unreadable=tuple(reasons.get(row.emitter, ())),
        recheck_trouble=row.recheck_trouble,
    )


def _state(row: Any, late_s: float) -> TapState:
    if not row.is_owned:
        return TapState.NOT_RUN
    if row.trouble:
        return TapState.WAITING
    return TapState.BEHIND if late_s > BEHIND_AFTER_S else TapState.READING
