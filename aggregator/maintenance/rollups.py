"""Rolling up: hours from their stored windows, days from their hours, each computed anew where a closing changed one.

A closing marks its hour in its own transaction, and the mark goes in the transaction that computes the hour: whenever
the process is killed, a roll-up is right or marked. Nothing is ever added to an old roll-up, so doing it twice is the
same as once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Table,
    TableValuedAlias,
    Text,
    case,
    delete,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import insert

from aggregator.closing.window_store import mark_rollups
from aggregator.set_aside import Item, SetAside, isolate
from lagloss_server.store.results import unpack_minute, unpack_rollup
from lagloss_server.store.schema import core as tables
from lagloss_server.sums.rollup import PERIOD_S, Period, Rollup, period_of

SETTLE_MS = 15_000
"""A roll-up is computed this long after its first change, so that many changes at a time cost it once."""
ROUND_S = 0.5
"""A round begins no further roll-ups after this long: closing goes first."""
MARKS_PER_ROUND = 200
TOGETHER = 20
"""Roll-ups of one transaction."""

_marks = tables.table_of(tables.RollupDirtyRow)
_length = case(dict(PERIOD_S), value=_marks.c.period)


class Key(NamedTuple):
    """A roll-up. `start`: epoch s."""

    pipeline: str
    period: Period
    start: int

    @property
    def item(self) -> Item:
        return Item("rollup", self.pipeline, f"{self.period}/{self.start}")


def roll_up(engine: Engine, now_ms: int, failures: SetAside) -> tuple[int, int]:
    """Compute the marked roll-ups that have settled: first those whose hour or day is over, and of these the oldest
    change first. Set aside alone what cannot be computed.

    Return how many were computed, and how many of those whose hour or day is over are marked now, settled or not.
    """
    ends, done = time.monotonic() + ROUND_S, 0
    label = func.concat_ws("/", _marks.c.pipeline, _marks.c.period, _marks.c.start)
    waiting = [f"{item.pipeline}/{item.name}" for item in failures.waiting("rollup", now_ms)]
    is_over = _marks.c.start + _length <= now_ms // 1000
    with engine.connect() as connection:
        settled = connection.execute(
            select(_marks.c.pipeline, _marks.c.period, _marks.c.start)
            .where(_marks.c.dirty_since <= now_ms - SETTLE_MS, ~tables.is_any(label, waiting))
            .order_by(is_over.desc(), _marks.c.dirty_since)
            .limit(MARKS_PER_ROUND)
        )
        keys = [Key(*row) for row in settled]
    for index in range(0, len(keys), TOGETHER):
        some = keys[index : index + TOGETHER]
        isolate(
            some,
            lambda keys: _restate(engine, keys, now_ms, failures),
            lambda key, error: failures.put(key.item, error),
        )
        done += len(some)
        if time.monotonic() >= ends:
            break
    with engine.connect() as connection:
        return done, connection.execute(select(func.count()).select_from(_marks).where(is_over)).scalar_one()


def pruned_before(connection: Connection) -> int:
    """Return the start (epoch s) before which retention dropped windows: they are never closed or rolled up again."""
    pruned = tables.PrunedRow
    before_s = connection.execute(
        select(pruned.before_s).where(pruned.table_name == tables.WindowRow.__tablename__)
    ).scalar_one_or_none()
    return 0 if before_s is None else int(before_s)


def _restate(engine: Engine, keys: Sequence[Key], now_ms: int, failures: SetAside) -> int:
    """Compute roll-ups from what is stored, in one transaction, and mark the days of hours that changed.

    The marks are deleted first: a closing that is about to commit holds the rows of its own, so we wait for it and then
    see its windows; one that comes later waits for us and marks anew.
    """
    with engine.begin() as connection:
        _delete_marks(connection, keys)
        pruned_s = pruned_before(connection)
        parts = _read_windows(connection, [key for key in keys if key.period == "hour" and key.start >= pruned_s])
        parts |= _read_hours(connection, [key for key in keys if key.period == "day"])
        totals = {key: Rollup.merged(parts_of_key) for key, parts_of_key in parts.items()}
        changed = _write(connection, {key: (total, total.pack()) for key, total in totals.items()}, now_ms)
        days = {(key.pipeline, period_of("day", key.start)) for key in changed if key.period == "hour"}
        mark_rollups(connection, "day", days, now_ms)
        failures.done(connection, [key.item for key in keys])
    return len(keys)


def _delete_marks(connection: Connection, keys: Sequence[Key]) -> None:
    """Delete marks, locked in the order in which closings mark."""
    marks = _of(_marks, keys)
    locked = select(_marks.c.start).where(*marks).order_by(_marks.c.pipeline, _marks.c.start)
    connection.execute(locked.with_for_update(of=_marks))
    connection.execute(delete(_marks).where(*marks))


def _write(connection: Connection, totals: Mapping[Key, tuple[Rollup, bytes]], now_ms: int) -> list[Key]:
    """Write the roll-ups that differ from what is stored; return which these are."""
    table = tables.table_of(tables.RollupRow)
    stored = {
        Key(*key): packed
        for *key, packed in connection.execute(
            select(table.c.pipeline, table.c.period, table.c.start, table.c.packed).where(*_of(table, totals))
        )
    }
    rows = {
        key: {**key._asdict(), **total.headline(), "computed_at": now_ms, "packed": packed}
        for key, (total, packed) in totals.items()
        if stored.get(key) != packed
    }
    if rows:
        upsert = insert(table)
        replaced = {name: upsert.excluded[name] for name in next(iter(rows.values())) if name not in Key._fields}
        connection.execute(
            upsert.on_conflict_do_update(index_elements=list(Key._fields), set_=replaced), list(rows.values())
        )
    return list(rows)


def _read_windows(connection: Connection, hours: Sequence[Key]) -> dict[Key, list[Rollup]]:
    """Read the windows of hours, oldest first, as roll-ups of one window each."""
    window, query = tables.WindowRow, _asked(hours)
    rows = connection.execute(
        select(window.pipeline, window.window_start, window.document, window.facts)
        .where(
            window.pipeline == query.c.pipeline,
            window.window_start >= query.c.start,
            window.window_start < query.c.start + PERIOD_S["hour"],
        )
        .order_by(window.window_start)
    )
    rollups: dict[Key, list[Rollup]] = {}
    for row in rows:
        key = Key(row.pipeline, "hour", period_of("hour", row.window_start))
        minute = unpack_minute(row.pipeline, row.window_start, row.document, row.facts)
        if minute is not None:
            rollups.setdefault(key, []).append(minute)
    return rollups


def _read_hours(connection: Connection, days: Sequence[Key]) -> dict[Key, list[Rollup]]:
    """Read the hours of days, oldest first."""
    hour, query = tables.RollupRow, _asked(days)
    rows = connection.execute(
        select(hour.pipeline, hour.start, hour.packed)
        .where(
            hour.pipeline == query.c.pipeline,
            hour.period == "hour",
            hour.start >= query.c.start,
            hour.start < query.c.start + PERIOD_S["day"],
        )
        .order_by(hour.start)
    )
    rollups: dict[Key, list[Rollup]] = {}
    for row in rows:
        rollup = unpack_rollup(row.pipeline, "hour", row.start, row.packed)
        if rollup is not None:
            rollups.setdefault(Key(row.pipeline, "day", period_of("day", row.start)), []).append(rollup)
    return rollups


def _of(table: Table, keys: Iterable[Key]) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions for the rows of these roll-ups."""
    keys_query = _asked(keys)
    return tuple(table.c[name] == keys_query.c[name] for name in Key._fields)


def _asked(keys: Iterable[Key]) -> TableValuedAlias:
    return tables.rows_of(keys, pipeline=Text(), period=Text(), start=BigInteger())
