"""Retention: what no window that can still change needs is dropped, whole days where a table is partitioned.

A day's tallies go once all windows of that day are sealed; windows are sealed by age when their whole day is older than
the topics' retention. The rest goes by age. Every step is a transaction of its own and gives up, until the next round,
where it would have to wait for a lock. Locks are taken in the follower's order: its position first, then its tables.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import structlog
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import ColumnElement, Connection, Engine, Table, and_, delete, exists, func, or_, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import aliased

from aggregator.closing.closer import Closer
from aggregator.closing.definitions import DefinitionRegistry
from aggregator.metrics import AggregatorMetrics
from aggregator.reports.consumer import hold_follower
from lagloss.wire.format import RETENTION_MS
from lagloss_server.base.settings import Settings
from lagloss_server.judging.freshness import EXPECTED_FOR_MS
from lagloss_server.store.partitions import DAY_S, day_label
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.repair import RepairMessageRow, RepairRow
from lagloss_server.store.schema.runs import DagRunRow, TaskTryRow
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow
from lagloss_server.store.store import names_not_deleted

log = structlog.get_logger()
T = TypeVar("T")
Other = TypeVar("Other")

CHANGEABLE_DAYS = RETENTION_MS // 86_400_000
"""No window changes once its whole day is older than what the topics keep."""
LOCK_TIMEOUT_MS = 1_000
"""Whoever comes after us waits as long as we do for a lock, so it is not long."""
CHUNK = 5_000
"""Rows a statement deletes."""
CHUNKS_PER_ROUND = 4

TALLY, WINDOW, HISTORY, NAMES, PICKED, CONSUMER_LAG = tables.PARTITIONED


class Retention:
    """Prunes every table that grows; `round` does what there is to do now, and is the same done twice."""

    def __init__(
        self, engine: Engine, closer: Closer, watch: DefinitionRegistry, metrics: AggregatorMetrics, settings: Settings
    ) -> None:
        self._engine = engine
        self._closer = closer
        self._watch = watch
        self._metrics = metrics
        self._settings = settings

    def round(self, now_ms: int) -> None:
        """Apply retention to all tables once, as of `now_ms`."""
        changeable_s = oldest_day(now_ms, CHANGEABLE_DAYS)
        self._closer.sealing.seal_before(changeable_s, CHUNK * CHUNKS_PER_ROUND)
        minutes_s = oldest_day(now_ms, self._settings.keep_minutes_days)
        self._drop_days(TALLY, now_ms // 1000, partial(self._drop_tallies, changeable_s))
        for table in (NAMES, PICKED):
            self._drop_days(table, oldest_day(now_ms, self._settings.keep_names_days), partial(self._drop, table))
        self._drop_days(WINDOW, minutes_s, self._drop_windows)
        self._drop_days(HISTORY, minutes_s, partial(self._drop, HISTORY))
        self._drop_days(CONSUMER_LAG, minutes_s, partial(self._drop, CONSUMER_LAG))
        for table, old in self._old_rows(now_ms).items():
            self._delete_rows(table, partial(_delete_some, table, old))
        self._delete_rows(tables.table_of(tables.EmitterRow), partial(_forget_emitters, changeable_s))
        self._delete_rows(tables.table_of(tables.LaneRow), partial(self._forget_unknown_lanes, changeable_s))
        with self._engine.connect() as connection:
            for table in tables.PARTITIONED:
                self._metrics.days_kept.labels(table.name).set(len(days_of(connection, table)))

    def _old_rows(self, now_ms: int) -> Mapping[Table, ColumnElement[bool]]:
        """Return the tables whose rows go by age alone, with the condition for the old rows."""
        rollup, bad, requests = tables.RollupRow, tables.QuarantinedRow, tables.RecomputeRequestRow
        trail, repair, lost, lost_name = AuditTrailRow, RepairRow, LostAfterwardsRow, LostAfterwardsMessageRow
        named_from_ms = now_ms - self._settings.keep_names_days * DAY_S * 1_000
        rolled_up_s = oldest_day(now_ms, self._settings.keep_rollups_days)
        return {
            tables.table_of(rollup): rollup.start < rolled_up_s,
            **{tables.table_of(row): row.due_at < rolled_up_s * 1_000 for row in (DagRunRow, TaskTryRow)},
            # not while a repair can go on, nor while its windows name what another one would send once more
            tables.table_of(RepairMessageRow): RepairMessageRow.repair.not_in(
                select(repair.id).where(
                    or_(
                        repair.state != "finished",
                        repair.created_at >= _ago(now_ms, self._settings.keep_names_days),
                        repair.to_window > oldest_day(now_ms, self._settings.keep_names_days),
                    )
                )
            ),
            tables.table_of(repair): repair.created_at < _ago(now_ms, self._settings.keep_rollups_days),
            tables.table_of(lost_name): lost_name.missed_at < named_from_ms,
            tables.table_of(lost): lost.window_start < rolled_up_s,
            tables.table_of(bad): bad.found_at < _ago(now_ms, self._settings.keep_quarantine_days),
            tables.table_of(trail): trail.at < _ago(now_ms, self._settings.keep_audit_days),
            tables.table_of(requests): and_(
                requests.answer.is_not(None), requests.requested_at < _ago(now_ms, CHANGEABLE_DAYS)
            ),
        }

    def _drop_days(self, table: Table, before_s: int, drop: Callable[[int], str | None]) -> None:
        """Drop the days of a table that were over by then, oldest first, up to one that something holds back."""
        with self._engine.connect() as connection:
            days = [day for day in days_of(connection, table) if (day + 1) * DAY_S <= before_s]
        for day in days:
            held_by = _unless_locked(partial(drop, day), "a lock")
            if held_by is not None:
                log.debug("day drop deferred", table=table.name, day=day_label(day), held_by=held_by)
                return
            log.info("day dropped", table=table.name, day=day_label(day))
            self._metrics.days_dropped.labels(table.name).inc()

    def _delete_rows(self, table: Table, delete_chunk: Callable[[Connection], int]) -> None:
        """Delete chunk after chunk while there are more, some a round."""
        deleted = 0
        for _ in range(CHUNKS_PER_ROUND):
            rows = _unless_locked(partial(self._transact, delete_chunk), 0)
            deleted += rows
            if rows < CHUNK:
                break
        if deleted:
            log.info("rows pruned", table=table.name, rows=deleted)
            self._metrics.rows_pruned.labels(table.name).inc(deleted)

    def _transact(self, step: Callable[[Connection], T]) -> T:
        """Run a step in a transaction of its own that waits for locks only briefly."""
        with self._engine.begin() as connection:
            connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
            return step(connection)

    def _drop(self, table: Table, day: int) -> None:
        self._transact(partial(_drop_partition, table, day))

    def _drop_tallies(self, changeable_s: int, day: int) -> str | None:
        """Drop a day's tallies unless a window needs them, or a report was consumed between the check and the drop: the
        newest basis in the partition shows that."""
        with self._engine.connect() as connection:
            newest = _newest_basis(connection, day)
            held_by = _unsealed(connection, day) or _never_closed(connection, day, changeable_s)
        if held_by is not None:
            return held_by

        def drop(connection: Connection) -> str | None:
            hold_follower(connection)
            connection.execute(text(f"LOCK TABLE {TALLY.name} IN ACCESS EXCLUSIVE MODE"))
            if _newest_basis(connection, day) != newest:
                return "a report that was just consumed"
            _drop_partition(TALLY, day, connection)
            return None

        return self._transact(drop)

    def _drop_windows(self, day: int) -> str | None:
        """Drop a day's windows once their roll-ups are made, which then stand for good."""
        with self._engine.connect() as connection:
            held_by = _unsealed(connection, day)
        return held_by or self._transact(partial(_drop_rolled_up, day))

    def _forget_unknown_lanes(self, changeable_s: int, connection: Connection) -> int:
        """Delete ordered lanes that stood still before any window that can change, and that no definition has a place
        for. Others stay, however old: messages in a partition without a consumer are late, not lost (rule 4)."""
        lane = tables.table_of(tables.LaneRow)
        keys = [lane.c.pipeline, lane.c.checkpoint, lane.c.lane, lane.c.holder]
        old = connection.execute(select(*keys).where(lane.c.holder == b"", lane.c.appended_at < changeable_s * 1000))
        checkpoints, waiting = self._watch.checkpoints, self._watch.waiting
        unknown = (row for row in old if row.checkpoint not in checkpoints.get(row.pipeline, ()))
        gone = [tuple(row) for row in unknown if row.pipeline not in waiting][:CHUNK]
        if gone:
            hold_follower(connection)
            connection.execute(delete(lane).where(tuple_(*keys).in_(gone)))
        return len(gone)


def oldest_day(now_ms: int, keep_days: int) -> int:
    """Start (epoch s) of the oldest day that is kept: all before it is older than `keep_days`."""
    return (now_ms // 1000 - keep_days * DAY_S) // DAY_S * DAY_S


def days_of(connection: Connection, table: Table) -> list[int]:
    """Return the days (since the epoch) that a table has partitions for, oldest first."""
    child = "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = "
    names = connection.execute(text(f"{child} CAST(:parent AS regclass)"), {"parent": f'"{table.name}"'}).scalars()
    return sorted(
        calendar.timegm(time.strptime(name.removeprefix(f"{table.name}_"), "%Y%m%d")) // DAY_S for name in names
    )


def _in_day(column: Any, day: int) -> ColumnElement[bool]:
    return and_(column >= day * DAY_S, column < (day + 1) * DAY_S)


def _ago(now_ms: int, days: int) -> datetime:
    return datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(days=days)


def _unless_locked(step: Callable[[], T], otherwise: Other) -> T | Other:
    """Return the result of a step, or `otherwise` if another session holds a lock that it needs."""
    try:
        return step()
    except OperationalError as error:
        if isinstance(error.orig, LockNotAvailable | DeadlockDetected):
            return otherwise
        raise


def _drop_partition(table: Table, day: int, connection: Connection) -> None:
    connection.execute(text(f'DROP TABLE "{table.name}_{day_label(day)}"'))


def _drop_rolled_up(day: int, connection: Connection) -> str | None:
    """Drop a day of windows unless a roll-up of it is marked. None can be marked while the table is locked."""
    connection.execute(text(f'LOCK TABLE "{WINDOW.name}" IN ACCESS EXCLUSIVE MODE'))
    if connection.execute(select(exists().where(_in_day(tables.RollupDirtyRow.start, day)))).scalar_one():
        return "a pending roll-up"
    pruned = insert(tables.PrunedRow).values(table_name=WINDOW.name, before_s=(day + 1) * DAY_S)
    newer = func.greatest(pruned.excluded.before_s, tables.PrunedRow.before_s)
    connection.execute(pruned.on_conflict_do_update(index_elements=["table_name"], set_={"before_s": newer}))
    _drop_partition(WINDOW, day, connection)
    return None


def _newest_basis(connection: Connection, day: int) -> int:
    newest = func.coalesce(func.max(TALLY.c.changed_basis), 0)
    return int(connection.execute(select(newest).where(_in_day(TALLY.c.window_start, day))).scalar_one())


def _unsealed(connection: Connection, day: int) -> str | None:
    is_unsealed = exists().where(WINDOW.c.state == "closed", _in_day(WINDOW.c.window_start, day))
    return "a window that can still change" if connection.execute(select(is_unsealed)).scalar_one() else None


def _never_closed(connection: Connection, day: int, changeable_s: int) -> str | None:
    """Return whether a tally's window has no result yet; once its blocks are gone, only where there is a definition for
    it."""
    closed = exists().where(WINDOW.c.pipeline == TALLY.c.pipeline, WINDOW.c.window_start == TALLY.c.window_start)
    defined = TALLY.c.pipeline.in_(names_not_deleted())
    waits = or_(TALLY.c.window_start >= changeable_s, defined)
    is_never_closed = exists().where(_in_day(TALLY.c.window_start, day), ~closed, waits)
    return "a window that is not closed yet" if connection.execute(select(is_never_closed)).scalar_one() else None


def _delete_some(table: Table, condition: ColumnElement[bool], connection: Connection) -> int:
    keys = list(table.primary_key.columns)
    some = select(*keys).where(condition).limit(CHUNK)
    return int(connection.execute(delete(table).where(tuple_(*keys).in_(some))).rowcount)


def _forget_emitters(changeable_s: int, connection: Connection) -> int:
    """Delete emitters that no window that can change expects or has tallies of, with their work in hand.

    The newest of each node's that closed stays: it says that the node was ended, not that it never was (rule 10).
    """
    emitter, later, tally, lane = tables.EmitterRow, aliased(tables.EmitterRow), tables.TallyRow, tables.LaneRow
    expected_to = emitter.appended_at + EXPECTED_FOR_MS
    oldest = select(func.min(tally.window_start)).where(tally.pipeline == emitter.pipeline).scalar_subquery()
    closed_later = exists().where(
        later.pipeline == emitter.pipeline,
        later.node == emitter.node,
        later.closed,
        tuple_(later.appended_at, later.emitter) > tuple_(emitter.appended_at, emitter.emitter),
    )
    unneeded = (
        select(emitter.pipeline, emitter.emitter)
        .where(
            expected_to < func.least(changeable_s, func.coalesce(oldest, changeable_s)) * 1000,
            or_(~emitter.closed, closed_later),
        )
        .limit(CHUNK)
    )
    hold_follower(connection)
    gone = connection.execute(
        delete(emitter)
        .where(tuple_(emitter.pipeline, emitter.emitter).in_(unneeded))
        .returning(emitter.pipeline, emitter.emitter)
    ).all()
    if gone:
        accounts = [tuple(account) for account in gone]
        connection.execute(delete(lane).where(tuple_(lane.pipeline, lane.holder).in_(accounts)))
    return len(gone)
