"""The closer's statements: a window's stored facts, and the commit of closings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import BigInteger, Connection, Text, delete, func, literal, select, text
from sqlalchemy.dialects.postgresql import insert

from aggregator.closing.report_state import WindowKey, Windows, of_windows
from lagloss.wire.format import signed64
from lagloss.wire.traces import TraceContext
from lagloss_server.judging.facts import MissingId, WindowFacts
from lagloss_server.model.window import Window, on_time_counts
from lagloss_server.store.bulk import as_json, copy, stage
from lagloss_server.store.engine import WINDOWS_CHANNEL
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.sums.rollup import Period, period_of

KEPT_REVISIONS = 50
NAMES_PER_WINDOW = 1_000


@dataclass(frozen=True, slots=True)
class Missing:
    """A missing message with what was judged of it."""

    id: MissingId
    kind: str
    places: tuple[str, ...]
    last_checkpoint: str


@dataclass(frozen=True)
class Closing:
    """One window's closing, ready to be committed. Times in epoch ms."""

    result: Window
    facts: WindowFacts
    missing: Sequence[Missing]
    basis: int
    judged_at: int
    deadline: int | None
    history: bool
    log_start: Sequence[tuple[int, int]]
    is_read: bool = True
    """False where it was judged from its stored facts, which do not hold the picked messages."""

    @property
    def window(self) -> WindowKey:
        return self.result.pipeline, self.result.start_s


def read_facts(connection: Connection, windows: Windows) -> dict[WindowKey, tuple[WindowFacts, int]]:
    """Read the stored facts of these windows, with their missing ids, and the basis up to which they hold."""
    table, names = tables.table_of(tables.WindowRow), tables.table_of(tables.MissingMessageRow)
    missing: dict[WindowKey, list[MissingId]] = {}
    found_facts: dict[WindowKey, tuple[WindowFacts, int]] = {}
    for row in connection.execute(select(names).where(*of_windows(names, windows))):
        id_hash, mask = row.id_hash % (1 << 64), int(row.pattern, 16)  # `signed64` back: a bigint has a sign
        trace = None if row.trace_id is None else TraceContext(row.trace_id, row.span_id)
        times_ms = row.last_seen_ms, row.seen_from_ms, row.seen_by_ms
        missing_id = MissingId(id_hash, mask, *times_ms, row.message_id, trace, row.emitter)
        missing.setdefault((row.pipeline, row.window_start), []).append(missing_id)
    packed = select(table.c.pipeline, table.c.window_start, table.c.facts, table.c.basis)
    for row in connection.execute(packed.where(*of_windows(table, windows))):
        window = (row.pipeline, row.window_start)
        facts = replace(WindowFacts.unpack(row.facts), missing=tuple(missing.get(window, ())))
        found_facts[window] = facts, row.basis
    return found_facts


def commit(connection: Connection, closings: Sequence[Closing]) -> list[tuple[Closing, int]]:
    """Upsert closings, each only over an older basis; those that made a revision, with its number.

    A result that changed keeps the old row in the history; one that did not keeps its revision.
    """
    if not closings:
        return []
    ensure_days(connection, {closing.result.start_s for closing in closings})  # before rows are locked: it may wait
    before = _lock(connection, [closing.window for closing in closings])
    rows, changed_rows, replaced, named = [], [], [], []
    for closing in closings:
        old = before.get(closing.window)
        if old is not None and (
            old.state == "sealed" or (old.basis, old.judged_at) > (closing.basis, closing.judged_at)
        ):
            continue
        # packed, so that an unreadable row is also replaced
        changed = old is None or old.document != closing.result.pack()
        revision = 1 if old is None else old.revision + changed  # a bool: one more if it changed
        rows.append(_row(closing, revision, closing.judged_at if old is None or changed else old.closed_at))
        if changed:
            changed_rows.append((closing, revision))
        if old is None or changed or old.history != closing.history:
            named.append(closing.window)
        if old is not None and changed:
            replaced.append(old)
    _upsert(connection, rows)
    _keep_revisions(connection, replaced)
    written = {(row["pipeline"], row["window_start"]) for row in rows}
    written_closings = [closing for closing in closings if closing.window in written]
    read = [closing for closing in written_closings if closing.is_read]  # only their facts are new
    _replace(connection, tables.MissingMessageRow, _known(written_closings, before), _missing_rows(written_closings))
    _replace(connection, tables.PickedMessagesRow, _known(read, before), _picked_rows(read))
    if changed_rows:
        mark_hours(
            connection,
            [closing.window for closing, _ in changed_rows],
            min(closing.judged_at for closing, _ in changed_rows),
        )
    if named:
        connection.execute(
            text("SELECT count(pg_notify(:channel, payload)) FROM unnest(CAST(:payloads AS text[])) payload"),
            {"channel": WINDOWS_CHANNEL, "payloads": [f"{pipeline}/{start}" for pipeline, start in named]},
        )
    return changed_rows


def mark_hours(connection: Connection, windows: Windows, now_ms: int) -> None:
    """Mark the hours of these windows as to be rolled up anew, in the transaction that changes the windows."""
    mark_rollups(connection, "hour", {(pipeline, period_of("hour", start)) for pipeline, start in windows}, now_ms)


def mark_rollups(connection: Connection, period: Period, starts: Iterable[tuple[str, int]], now_ms: int) -> None:
    """Mark these roll-ups (pipeline, start) as to be computed, in the transaction that changes what they sum up."""
    keys = sorted(starts)  # all who mark, and delete marks, lock rows in this order: else two could wait for each other
    if keys:
        marks = tables.table_of(tables.RollupDirtyRow)
        marked = tables.rows_of(keys, pipeline=Text(), start=BigInteger())
        values = select(marked.c.pipeline, literal(period), marked.c.start, literal(now_ms))
        # an update, though it changes nothing: it holds the row until this transaction ends
        connection.execute(
            insert(marks)
            .from_select(["pipeline", "period", "start", "dirty_since"], values)
            .on_conflict_do_update(
                index_elements=["pipeline", "period", "start"], set_={"dirty_since": marks.c.dirty_since}
            )
        )


def _lock(connection: Connection, windows: Windows) -> dict[WindowKey, Any]:
    """Read and lock the rows of these windows, always in the same order."""
    table = tables.table_of(tables.WindowRow)
    columns = (
        "pipeline",
        "window_start",
        "state",
        "revision",
        "history",
        "basis",
        "judged_at",
        "closed_at",
        "document",
    )
    rows = connection.execute(
        select(*(table.c[name] for name in columns))
        .where(*of_windows(table, windows))
        .order_by(table.c.pipeline, table.c.window_start)
        .with_for_update(of=table)
    )
    return {(row.pipeline, row.window_start): row for row in rows}


def _upsert(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of windows, each over an older basis."""
    if not rows:
        return
    table = tables.table_of(tables.WindowRow)
    upsert = stage(connection, table, list(rows[0]), (list(row.values()) for row in rows))
    # `commit` has left out older ones, under the same locks: this holds even for a closer that lost its lease
    newer = func.row(upsert.excluded.basis, upsert.excluded.judged_at) >= func.row(table.c.basis, table.c.judged_at)
    connection.execute(
        upsert.on_conflict_do_update(
            index_elements=["pipeline", "window_start"],
            set_={name: upsert.excluded[name] for name in rows[0]},
            where=newer & (table.c.state != "sealed"),
        )
    )


def _row(closing: Closing, revision: int, closed_at: int) -> dict[str, Any]:
    result = closing.result
    on_time, on_time_of = on_time_counts(result)
    return {
        "pipeline": result.pipeline,
        "window_start": result.start_s,
        "state": "closed",
        "revision": revision,
        "verdict": result.verdict,
        "messages": result.messages,
        "delivered": result.delivered,
        "pending": result.pending,
        "lost_min": result.lost.min if result.lost else 0,  # readers that tell unknown from 0 look at `verdict`
        "lost_max": result.lost.max if result.lost else 0,
        "on_time": on_time,
        "on_time_of": on_time_of,
        "e2e_p95_ms": result.e2e_lag_ms.p95,
        "history": closing.history,
        "closed_at": closed_at,
        "judged_at": closing.judged_at,
        "basis": closing.basis,
        "deadline": closing.deadline,
        "log_start": as_json([list(start) for start in closing.log_start]),
        "document": result.pack(),
        "stale_ms": max(result.staleness_ms.values(), default=None),
        "facts": closing.facts.pack(),
    }


def _keep_revisions(connection: Connection, replaced: Sequence[Any]) -> None:
    history = tables.table_of(tables.WindowRevisionRow)
    if not replaced:
        return
    columns = ("pipeline", "window_start", "revision", "closed_at", "document")
    rows = ((old.pipeline, old.window_start, old.revision, old.closed_at, old.document) for old in replaced)
    copy(connection, history, columns, rows)
    for old in replaced:
        if old.revision > KEPT_REVISIONS:
            connection.execute(
                delete(history).where(
                    history.c.pipeline == old.pipeline,
                    history.c.window_start == old.window_start,
                    history.c.revision <= old.revision - KEPT_REVISIONS,
                )
            )


def _known(closings: Sequence[Closing], before: Collection[WindowKey]) -> list[WindowKey]:
    return [closing.window for closing in closings if closing.window in before]


def _replace(
    connection: Connection, row_class: type[tables.Base], windows: Windows, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write rows of a table in place of those of these windows."""
    table = tables.table_of(row_class)
    if windows:
        connection.execute(delete(table).where(*of_windows(table, windows)))
    if rows:
        copy(connection, table, list(rows[0]), (list(row.values()) for row in rows))


def _missing_rows(closings: Sequence[Closing]) -> list[dict[str, Any]]:
    return [
        {
            "pipeline": closing.result.pipeline,
            "window_start": closing.result.start_s,
            "id_hash": signed64(missing.id.id_hash),
            "message_id": missing.id.name,
            "pattern": f"{missing.id.mask:x}",
            "kind": missing.kind,
            "places": as_json(missing.places),
            "last_checkpoint": missing.last_checkpoint,
            "last_seen_ms": missing.id.last_seen_ms,
            "seen_from_ms": missing.id.seen_from_ms,
            "seen_by_ms": missing.id.seen_by_ms,
            "trace_id": missing.id.trace and missing.id.trace.trace_id,
            "span_id": missing.id.trace and missing.id.trace.span_id,
            "emitter": missing.id.emitter,
        }
        for closing in closings
        for missing in closing.missing[:NAMES_PER_WINDOW]
    ]


def _picked_rows(closings: Sequence[Closing]) -> list[dict[str, Any]]:
    return [
        {
            "pipeline": closing.result.pipeline,
            "window_start": closing.result.start_s,
            "packed": closing.facts.picked.pack(),
        }
        for closing in closings
        if len(closing.facts.picked)
    ]
