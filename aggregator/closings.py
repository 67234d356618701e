"""The closer's statements: what it must know of windows to close them, and the commit of a closing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from lagloss import tables
from lagloss.emitters import read_emitters
from lagloss.evidence import EmitterState, LaneState, TallyState
from lagloss.facts import MissingId, WindowFacts
from lagloss.result import WindowResult
from lagloss.store import WINDOWS_CHANNEL, ensure_days
from lagloss.wire import OffsetRange, signed64

KEPT_REVISIONS = 50
NAMES_A_WINDOW = 1_000
Windows = Sequence[tuple[str, int]]
"""(pipeline, window start in epoch s)."""


@dataclass(frozen=True)
class Told:
    """What the reports told of some windows, all as of one position (`basis`)."""

    basis: int
    emitters: Mapping[str, Sequence[EmitterState]]
    lanes: Mapping[str, Sequence[LaneState]]
    tallies: Mapping[tuple[str, int], Sequence[TallyState]]
    ranges: Mapping[tuple[str, int], Sequence[OffsetRange]]


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

    result: WindowResult
    facts: WindowFacts
    missing: Sequence[Missing]
    basis: int
    judged_at: int
    deadline: int | None
    settle_ms: int
    history: bool
    log_start: Sequence[tuple[int, int]]


def read_basis(connection: Connection) -> int:
    """The position in the reports as one number that only grows: the sum of next offsets."""
    return int(connection.execute(select(func.coalesce(func.sum(tables.ReportsPosition.next_offset), 0))).scalar_one())


def read_told(connection: Connection, windows: Windows) -> Told:
    """What is known of these windows; the connection must be in a REPEATABLE READ transaction."""
    pipelines = sorted({pipeline for pipeline, _ in windows})
    tallies: dict[tuple[str, int], list[TallyState]] = {window: [] for window in windows}
    ranges: dict[tuple[str, int], list[OffsetRange]] = {window: [] for window in windows}
    for row in _tally_rows(connection, windows):
        window = (row.pipeline, row.window_start)
        tallies[window].append(
            TallyState(row.emitter, row.node, row.checkpoint, row.replay or None, row.beacons, row.dropped, row.sample)
        )
        ranges[window].extend(OffsetRange(*place) for place in row.ranges)
    return Told(
        basis=read_basis(connection),
        emitters=read_emitters(connection, pipelines),
        lanes=_read_lanes(connection, pipelines),
        tallies=tallies,
        ranges=ranges,
    )


def _tally_rows(connection: Connection, windows: Windows) -> Iterable[Any]:
    table = tables.table_of(tables.Tally)
    columns = [column for column in table.c if column.name not in ("sketch", "payload_bytes", "id_sum")]
    for at in range(0, len(windows), 1000):
        wanted = list(windows[at : at + 1000])
        yield from connection.execute(
            select(*columns).where(
                tuple_(table.c.pipeline, table.c.window_start).in_(wanted),
                table.c.window_start.between(min(start for _, start in wanted), max(start for _, start in wanted)),
            )
        )


def _read_lanes(connection: Connection, pipelines: Sequence[str]) -> dict[str, list[LaneState]]:
    lane = tables.Lane
    rows = connection.execute(
        select(lane.pipeline, lane.checkpoint, lane.until, lane.holder).where(lane.pipeline.in_(pipelines))
    )
    found: dict[str, list[LaneState]] = {pipeline: [] for pipeline in pipelines}
    for row in rows:
        found[row.pipeline].append(LaneState(row.checkpoint, row.until, row.holder or None))
    return found


def newest_with_beacons(connection: Connection, pipeline: str, after_s: int, newest_due_s: int) -> dict[str, int]:
    """For each checkpoint, the newest due window later than `after_s` that has a beacon of it."""
    tally = tables.Tally
    rows = connection.execute(
        select(tally.checkpoint, func.max(tally.window_start).label("newest"))
        .where(
            tally.pipeline == pipeline,
            tally.beacons > 0,
            tally.window_start > after_s,
            tally.window_start <= newest_due_s,
        )
        .group_by(tally.checkpoint)
    )
    return {row.checkpoint: row.newest for row in rows}


def read_changes(connection: Connection, after_basis: int) -> list[Any]:
    """Windows with a tally that changed after this basis: (pipeline, window_start, basis, changed_at)."""
    tally = tables.Tally
    return list(
        connection.execute(
            select(
                tally.pipeline,
                tally.window_start,
                func.max(tally.changed_basis).label("basis"),
                func.max(tally.changed_at).label("changed_at"),
            )
            .where(tally.changed_basis > after_basis)
            .group_by(tally.pipeline, tally.window_start)
        )
    )


def read_closed(connection: Connection, windows: Windows | None = None) -> list[Any]:
    """Rows of closed windows (all, or these) without their result."""
    table = tables.table_of(tables.Window)
    query = select(
        table.c.pipeline,
        table.c.window_start,
        table.c.state,
        table.c.basis,
        table.c.settle_ms,
        table.c.deadline,
        table.c.log_start,
    )
    if windows is not None:
        query = query.where(tuple_(table.c.pipeline, table.c.window_start).in_(list(windows)))
    return list(connection.execute(query))


def read_facts(connection: Connection, pipeline: str, window_start_s: int) -> tuple[WindowFacts, Any] | None:
    """The stored facts of a window with its missing ids, and its row."""
    table, names = tables.table_of(tables.Window), tables.MissingMessage
    row = connection.execute(
        select(table).where(table.c.pipeline == pipeline, table.c.window_start == window_start_s)
    ).one_or_none()
    if row is None:
        return None
    missing = connection.execute(
        select(names.id_hash, names.pattern, names.last_seen_ms, names.message_id).where(
            names.pipeline == pipeline, names.window_start == window_start_s
        )
    )
    facts = WindowFacts.unpack(row.facts)
    found = tuple(
        MissingId(id_hash % (1 << 64), int(pattern, 16), seen_ms, name) for id_hash, pattern, seen_ms, name in missing
    )
    return WindowFacts(**{**{name: getattr(facts, name) for name in facts.__slots__}, "missing": found}), row


def commit(connection: Connection, closing: Closing) -> tuple[int, bool]:
    """Upsert one closing, only over an older basis; the revision that now stands, and whether this made it.

    A result that changed keeps the old row in the history; one that did not keeps its revision.
    """
    table = tables.table_of(tables.Window)
    result, document = closing.result, closing.result.document()
    here = (table.c.pipeline == result.pipeline) & (table.c.window_start == result.window_start_s)
    ensure_days(connection, [result.window_start_s])
    old = connection.execute(select(table).where(here).with_for_update()).one_or_none()
    if old is not None and (old.state == "sealed" or (old.basis, old.judged_at) > (closing.basis, closing.judged_at)):
        return int(old.revision), False
    changed = old is None or old.document != document
    revision = 1 if old is None else old.revision + changed
    row = {
        "pipeline": result.pipeline,
        "window_start": result.window_start_s,
        "state": "closed",
        "revision": revision,
        "verdict": result.verdict,
        "messages": result.messages,
        "delivered": result.delivered,
        "pending": result.pending,
        "lost_min": result.lost.min if result.lost else 0,
        "lost_max": result.lost.max if result.lost else 0,
        "e2e_p95_ms": result.e2e_lag_ms.p95,
        "history": closing.history,
        "closed_at": closing.judged_at if old is None or changed else old.closed_at,
        "judged_at": closing.judged_at,
        "basis": closing.basis,
        "deadline": closing.deadline,
        "settle_ms": closing.settle_ms,
        "log_start": [list(start) for start in closing.log_start],
        "document": document,
        "facts": closing.facts.pack(),
    }
    connection.execute(
        insert(table).values(row).on_conflict_do_update(index_elements=["pipeline", "window_start"], set_=row)
    )
    if old is not None and changed:
        _keep_revision(connection, old)
    _replace_missing(connection, closing)
    if changed:
        connection.execute(
            text("SELECT pg_notify(:channel, :payload)"),
            {"channel": WINDOWS_CHANNEL, "payload": f"{result.pipeline}/{result.window_start_s}"},
        )
    return int(revision), changed


def _keep_revision(connection: Connection, old: Any) -> None:
    history = tables.WindowRevision
    connection.execute(
        insert(history).values(
            pipeline=old.pipeline,
            window_start=old.window_start,
            revision=old.revision,
            closed_at=old.closed_at,
            document=old.document,
        )
    )
    connection.execute(
        delete(history).where(
            history.pipeline == old.pipeline,
            history.window_start == old.window_start,
            history.revision <= old.revision - KEPT_REVISIONS,
        )
    )


def _replace_missing(connection: Connection, closing: Closing) -> None:
    table = tables.MissingMessage
    result = closing.result
    connection.execute(
        delete(table).where(table.pipeline == result.pipeline, table.window_start == result.window_start_s)
    )
    rows = [
        {
            "pipeline": result.pipeline,
            "window_start": result.window_start_s,
            "id_hash": signed64(missing.id.id_hash),
            "message_id": missing.id.name,
            "pattern": f"{missing.id.mask:x}",
            "kind": missing.kind,
            "places": list(missing.places),
            "last_checkpoint": missing.last_checkpoint,
            "last_seen_ms": missing.id.last_seen_ms,
        }
        for missing in closing.missing[:NAMES_A_WINDOW]
    ]
    if rows:
        connection.execute(insert(table).values(rows))


def seal(connection: Connection, windows: Windows) -> None:
    """Mark windows whose blocks the log no longer holds: they are never read or rewritten."""
    table = tables.table_of(tables.Window)
    if windows:
        connection.execute(
            table.update()
            .where(tuple_(table.c.pipeline, table.c.window_start).in_(list(windows)))
            .values(state="sealed", deadline=None)
        )


def read_audited(connection: Connection) -> dict[int, int]:
    table = tables.Audited
    rows = connection.execute(select(table.topic_partition, table.next_offset))
    return {row.topic_partition: row.next_offset for row in rows}


def write_audited(connection: Connection, audited: Mapping[int, int], topic_id: str) -> None:
    if not audited:
        return
    upsert = insert(tables.Audited).values(
        [
            {"topic_partition": partition, "next_offset": offset, "topic_id": topic_id}
            for partition, offset in audited.items()
        ]
    )
    connection.execute(
        upsert.on_conflict_do_update(
            index_elements=["topic_partition"],
            set_={"next_offset": upsert.excluded.next_offset, "topic_id": upsert.excluded.topic_id},
        )
    )
