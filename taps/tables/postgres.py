"""Tables of PostgreSQL, read so that no row is missed: by the cursor, and by the transactions that are still open.

A read is one transaction with one snapshot. In this order, on which the horizon rests: the snapshot, the bound of the
cursor, the rows, the open transactions, the next transaction id.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import xxhash
from psycopg import sql

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.postgres_tables import TIMEOUT, CursorKind, TableFacts, connect, naming, read_facts
from lagloss_server.net.table_urls import unreadable
from taps.kernel import UNSET_MS
from taps.tables.horizon import LookMark, TransactionLook, past_after
from taps.tables.reading import MAX_CHARS, MissingRows, SeenRow, TableRead, TableRow, TableVersion, closed_on_error

INTERVAL_S: Final = 1.0
LIMIT: Final = 20_000
"""Rows of a read, but for the rest of those with the last one's cursor; also rows above the newest final one that are
known to be read. More wait until the transactions are over that hold these."""
MAX_TIES: Final = 500_000
"""Of the rest of a read: all rows of a transaction have one id, and go into one plan."""
REACH: Final = 500_000
"""Newest rows among which a read begins that has no position."""
BEFORE_MS: Final = 120_000
"""How long before its first window it begins in a column of times."""
GRACE_US: Final = 10_000_000
"""By how much the clocks that set a column of times can be behind the database's. Later rows are evidence that they
are behind further."""

LATE_MS: Final = 3_600_000
"""How much older than the look before a row can be that was missed: a sink can be behind."""

_LOWEST: Final = -(1 << 62)

_SETTINGS: Final = f"SET LOCAL statement_timeout = '{TIMEOUT}'; SET LOCAL timezone = 'UTC'"

_COLUMN: Final[Mapping[CursorKind, str]] = {
    "xid8": "{cursor}::text::bigint",
    "sequence": "{cursor}::bigint",
    "clock": "CASE WHEN isfinite({cursor}) THEN (extract(epoch FROM {cursor}) * 1000000)::bigint"
    " ELSE 1::bigint << 62 END",
}
"""A cursor as an integer; of times, µs since the epoch."""
_BOUND: Final[Mapping[CursorKind, str]] = {
    "xid8": "%(after)s::text::xid8",
    "sequence": "%(after)s::bigint",
    "clock": "timestamptz 'epoch' + %(after)s * interval '1 microsecond'",
}
_WRITTEN: Final = """CASE WHEN pg_is_in_recovery() THEN 0
    ELSE pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint END"""
"""End of a primary's log, which has a record of each id and number that was given before."""
_FLUSHED: Final = """CASE WHEN pg_is_in_recovery() THEN 0
    ELSE pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0')::bigint END"""
"""How far a primary's log is on disk, which no crash takes back."""
_SNAPSHOT: Final = f"""
    SELECT pg_snapshot_xmin(s)::text::bigint AS oldest_id, pg_snapshot_xmax(s)::text::bigint AS end_id,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock_us,
        (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000)::bigint AS replayed_ms,
        current_database() AS database, {_WRITTEN} AS written, {_FLUSHED} AS flushed,
        (pg_control_system()).system_identifier || '/' || CASE WHEN pg_is_in_recovery()
            THEN lpad(to_hex((pg_control_checkpoint()).timeline_id), 8, '0')
            ELSE lower(left(pg_walfile_name(pg_current_wal_lsn()), 8)) END AS history
    FROM pg_current_snapshot() s"""
_DRAWN: Final = f"SELECT last_value - CASE WHEN is_called THEN 0 ELSE 1 END AS bound, {_WRITTEN} AS written FROM "
_HOLDERS: Final = """
    SELECT DISTINCT virtualtransaction AS name FROM pg_locks
    WHERE locktype = 'relation' AND relation = %s::regclass AND mode = 'RowExclusiveLock'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""
"""Transactions that have drawn a number of a sequence: they keep a lock of it until they end, subtransactions too."""
_OPEN: Final = """
    SELECT DISTINCT l.virtualtransaction AS name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
        AND a.datid = (SELECT oid FROM pg_database WHERE datname = current_database())"""
_LOG_POSITION: Final = """pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery()
    THEN coalesce(pg_last_wal_replay_lsn(), '0/0') ELSE pg_current_wal_insert_lsn() END, '0/0')::bigint"""
"""What was visible before is of a lower one; what is visible afterwards is of a higher one."""
_NEXT: Final = f"""
    SELECT %s + age(%s::text::xid) AS next_id, {_LOG_POSITION} AS log_position, {_FLUSHED} AS flushed"""
"""age() counts from the next transaction id; a snapshot shows only those below its end."""
_PLACES: Final[Mapping[CursorKind, str]] = {
    "xid8": "%(places)s::text[]::xid8[]",
    "sequence": "%(places)s::bigint[]",
    "clock": "%(places)s::text[]::timestamptz[]",
}
_SHORT: Final = frozenset({"smallint", "integer", "bigint", "real", "double precision", "uuid", "date"})
_FINITE_US: Final = 1 << 57
"""Later times have no text that Python and PostgreSQL agree on."""


class TablePosition(msgspec.Struct, frozen=True):
    """Where a table is read up to.

    Attributes:
        history: of the server: another one after a failover.
        oid, file: of the table.
        kind: of the cursor.
        passed: every row at or below is read, and none will come there; None: begin.
        seen: of rows above it, less the grace of its kind, what says that they are read.
        waiting: looks that are not past.
        version: the newest that was read.
        flushed: how far the primary's log was on disk; 0 on a stand-by.
    """

    history: str = ""
    oid: int = 0
    file: int | None = None
    kind: str = ""
    passed: int | None = None
    seen: str = ""
    waiting: tuple[LookMark, ...] = ()
    version: TableVersion | None = None
    flushed: int = 0
    blocked: str = ""
    """Why nothing can be read from here any more."""


class PostgresTable:
    """Reads one table over one connection."""

    interval_s = INTERVAL_S

    def __init__(self, spec: TableSpec, limit: int = LIMIT) -> None:
        self._spec = spec
        self._limit = limit
        self._connection: psycopg.Connection[Any] | None = None

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        """Return the rows that are new since a position. Raises TableUnreadable."""
        before = msgspec.convert(dict(position), TablePosition)
        with self._connected() as connection:
            at_ms = time.time_ns() // 1_000_000
            with connection.transaction():
                return self._read(connection, before, since_ms, at_ms)

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        """Return which of these rows the table does not have: by the cursor, then by id. Raises TableUnreadable."""
        with self._connected() as connection:
            with connection.transaction():  # of its own: what the next snapshot shows is not of before
                log_position = _one(connection, f"SELECT {_LOG_POSITION} AS log_position").log_position
            with connection.transaction():
                return self._missing(connection, rows, log_position)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Give the connection, which is made anew after an error. Raises TableUnreadable for one of the database."""
        with closed_on_error(self), naming(self._spec):
            if self._connection is None:
                self._connection = connect(self._spec.database)
            yield self._connection

    def _read(self, connection: psycopg.Connection[Any], before: TablePosition, since_ms: int, at_ms: int) -> TableRead:
        connection.execute(_SETTINGS)
        snapshot = _one(connection, _SNAPSHOT)
        facts = read_facts(connection, self._spec)
        bound, written = self._bound(connection, facts, snapshot)
        start, break_ = self._start(connection, before, facts, snapshot, bound, since_ms)
        if start.blocked:
            if start.blocked == before.blocked:
                raise unreadable(self._spec, start.blocked)
            position = msgspec.to_builtins(start)
            return TableRead((), position, at_ms, at_ms, is_complete=False, break_=break_, late_ms=LATE_MS)
        assert start.passed is not None
        seen, grace = _unpacked(start.seen), GRACE_US if facts.kind == "clock" else 0
        limit = self._limit + (len(seen) if grace else 0)
        rows = self._rows(connection, facts, start.passed - grace, since_ms, limit)
        if facts.kind == "xid8" and len(rows) >= limit and rows[-1].cursor >= snapshot.end_id:
            remedy = f"UPDATE them to SET {self._spec.cursor} = DEFAULT"
            raise unreadable(self._spec, f"rows have transaction ids of another server; {remedy}")
        if len(rows) > limit + MAX_TIES:
            name = self._spec.cursor
            remedy = f"insert fewer rows per transaction, and UPDATE these in parts to SET {name} = DEFAULT"
            raise unreadable(self._spec, f"more than {MAX_TIES:,} rows have the same {name}; {remedy}")
        marked = [(_mark(row.cursor, row.id), row) for row in rows]
        look, log_position = self._look(connection, facts, snapshot, at_ms, bound, written)
        new = [row for mark, row in marked if mark not in seen]
        if grace and before.passed is not None and any(row.cursor <= before.passed for row in new):
            break_ = break_ or "rows come with older times than the database's clock allows"
        is_complete = len(rows) < limit
        past, waiting = past_after(start.waiting, look)
        passed = start.passed
        if past is not None:
            passed = max(passed, past.bound if is_complete else min(past.bound, rows[-1].cursor))
        kept = {mark for mark, row in marked if row.cursor > passed - grace}
        version, newest = _version(facts, snapshot, log_position), start.version
        is_behind = False
        if newest is not None and newest.store == version.store:
            is_behind = version.at < newest.at  # another host of the same database
            version = msgspec.structs.replace(version, at=max(version.at, newest.at))
        seen = kept if is_complete and not is_behind else kept | seen
        position = msgspec.structs.replace(
            start,
            passed=passed,
            seen=_packed(seen),
            waiting=waiting,
            version=version,
            flushed=int(snapshot.flushed) or start.flushed,
        )
        return TableRead(
            [TableRow(row.cursor, row.document) for row in new],
            msgspec.to_builtins(position),
            at_ms,
            time.time_ns() // 1_000_000,
            past.at_ms if past is not None and is_complete else 0,
            is_complete,
            break_,
            LATE_MS if break_ else 0,
            version,
        )

    def _missing(self, connection: psycopg.Connection[Any], rows: Sequence[SeenRow], log_position: int) -> MissingRows:
        connection.execute(_SETTINGS)
        snapshot = _one(connection, _SNAPSHOT)
        facts = read_facts(connection, self._spec)
        missing = {row.id for row in rows}
        places = _places(facts.kind, {row.place for row in rows})
        missing -= self._present(connection, facts, missing, "{cursor} = ANY(" + _PLACES[facts.kind] + ")", places)
        if missing:  # elsewhere: the row was updated, or written again
            missing -= self._present(connection, facts, missing, "true", [])
        return MissingRows(frozenset(missing), _version(facts, snapshot, log_position))

    def _present(
        self,
        connection: psycopg.Connection[Any],
        facts: TableFacts,
        ids: Collection[str],
        condition: str,
        places: Sequence[object],
    ) -> set[str]:
        """Return those of these ids that rows with a condition have, by the equality of the id's type."""
        query = sql.SQL(
            f"SELECT DISTINCT wanted AS id FROM {{table}} JOIN unnest(%(ids)s::text[]) wanted"
            f" ON {{id}} = wanted::{facts.id} WHERE {condition}"
        ).format(**self._names())
        return {row.id for row in connection.execute(query, {"ids": list(ids), "places": places})}

    def _start(
        self,
        connection: psycopg.Connection[Any],
        before: TablePosition,
        facts: TableFacts,
        snapshot: Any,
        bound: int,
        since_ms: int,
    ) -> tuple[TablePosition, str]:
        """Return where this read starts, and why rows can be missing before that; empty: none is."""
        now = TablePosition(snapshot.history, facts.oid, facts.file, facts.kind)
        is_restored = not facts.is_standby and (
            snapshot.flushed < before.flushed
            or (facts.kind == "xid8" and before.passed is not None and snapshot.end_id <= before.passed)
        )
        start, break_ = self._resumed(connection, before, now, bound, is_restored=is_restored)
        if start.passed is not None:
            return start, break_
        begun, doubt = self._begun(connection, facts, start, since_ms)
        return begun, break_ or doubt

    def _bound(self, connection: psycopg.Connection[Any], facts: TableFacts, snapshot: Any) -> tuple[int, int]:
        """Return the cursor that rows of later transactions are above, and up to where the log has to be on disk so
        that this holds after a crash."""
        if facts.kind == "sequence":
            drawn = _one(connection, f"{_DRAWN}{facts.sequence}")
            return int(drawn.bound), int(drawn.written)
        if facts.kind == "clock":
            return int(snapshot.clock_us), 0
        return int(snapshot.oldest_id - 1), int(snapshot.written)

    def _look(
        self,
        connection: psycopg.Connection[Any],
        facts: TableFacts,
        snapshot: Any,
        at_ms: int,
        bound: int,
        written: int,
    ) -> tuple[TransactionLook, int]:
        """Return the transactions at this moment, and the position in the server's log."""
        open_: list[str] = []
        if facts.kind != "xid8":
            query, values = (_OPEN, ()) if facts.kind == "clock" else (_HOLDERS, (facts.sequence,))
            open_ = [row.name for row in connection.execute(query, values)]
        following = _one(connection, _NEXT, snapshot.end_id, snapshot.end_id % (1 << 32))
        if facts.is_standby:
            # what has happened before, on the primary, is here; its clock can be ahead of ours
            at_ms = snapshot.replayed_ms if snapshot.replayed_ms and snapshot.replayed_ms <= at_ms else 0
        look = TransactionLook(
            at_ms, snapshot.oldest_id, bound, open_, int(following.next_id), int(following.flushed), written
        )
        return look, int(following.log_position)

    def _rows(
        self, connection: psycopg.Connection[Any], facts: TableFacts, after: int, since_ms: int, limit: int
    ) -> Sequence[Any]:
        """Return rows above a cursor in its order: their cursors, ids as text, and documents."""
        names = self._names()
        is_time = facts.event_time.startswith("timestamp ")
        # of char(n), which JSON has filled up with spaces, it is the text
        id_ = _in_json("{id}::text" if facts.id == "bpchar" else "{id}", facts.id)
        query = sql.SQL(
            "SELECT * FROM (SELECT " + _COLUMN[facts.kind] + f" AS cursor, left({{id}}::text, {MAX_CHARS}) AS id,"
            f" json_build_object('id', {id_}, 'eventTime', {_in_json('{event_time}', facts.event_time)})::text"
            " AS document FROM {table} WHERE {cursor} > "
            + _BOUND[facts.kind]
            # rows of earlier windows are of no use, and a look back can be long
            + (
                " AND ({event_time} IS NULL OR {event_time} >= %(since)s OR {event_time} < %(unset)s)"
                if is_time
                else ""
            )
            # a name alone could be that of a result, such as `id`; one row past the limit tells that it is passed
            + " ORDER BY {table}.{cursor} FETCH FIRST %(limit)s ROWS WITH TIES) ordered LIMIT %(most)s"
        ).format(**names)
        since, unset = (np.datetime64(at_ms, "ms").item() for at_ms in (since_ms, UNSET_MS))
        values = {"after": after, "since": since, "unset": unset, "limit": limit, "most": limit + MAX_TIES + 1}
        return connection.execute(query, values).fetchall()

    def _names(self) -> dict[str, sql.Composable]:
        spec = self._spec
        columns = {"id": spec.id, "event_time": spec.event_time, "cursor": spec.cursor or ""}
        return {"table": sql.Identifier(*spec.parts), **{name: sql.Identifier(at) for name, at in columns.items()}}

    def _resumed(
        self,
        connection: psycopg.Connection[Any],
        before: TablePosition,
        now: TablePosition,
        bound: int,
        *,
        is_restored: bool,
    ) -> tuple[TablePosition, str]:
        """Return where to go on, and why rows can be missing since the position before; empty: none is."""
        if before.passed is None:
            return now, ""
        if before.oid != now.oid:
            return now, "it was created again"
        if before.blocked:
            return before, ""
        if before.kind != now.kind:
            return msgspec.structs.replace(now, passed=bound), "its cursor is of another type"
        if before.history != now.history or is_restored:
            after = msgspec.structs.replace(now, passed=min(before.passed, bound), seen=before.seen)
            what = "has failed over" if before.history != now.history else "was restored to an earlier state"
            return after, f"its server {what}"
        break_ = "" if before.file == now.file else "it was truncated or rewritten"
        after = msgspec.structs.replace(before, file=now.file)
        highest = max(before.passed, *(mark.bound for mark in before.waiting), 0)
        if now.kind == "xid8" or bound >= highest:
            return after, break_
        after = msgspec.structs.replace(after, waiting=())
        if now.kind == "clock" and bound >= highest - GRACE_US:
            return after, break_
        back = f"its cursor went back from {highest} to {bound}"
        if now.kind == "clock":
            return msgspec.structs.replace(after, passed=min(before.passed, bound)), back
        if break_:  # truncated, and its sequence restarted
            return now, back
        query = sql.SQL(
            f"SELECT {{cursor}}::bigint AS cursor, left({{id}}::text, {MAX_CHARS}) AS id FROM {{table}}"
            " WHERE {cursor} > %s LIMIT %s"
        )
        above = connection.execute(query.format(**self._names()), (bound, self._limit)).fetchall()
        if len(above) == self._limit:
            return msgspec.structs.replace(after, blocked=f"{back}, below rows that are there"), back
        seen = _packed({_mark(row.cursor, row.id) for row in above})
        return msgspec.structs.replace(after, passed=bound, seen=seen), back

    def _begun(
        self, connection: psycopg.Connection[Any], facts: TableFacts, start: TablePosition, since_ms: int
    ) -> tuple[TablePosition, str]:
        """Return where to begin, and why rows can be before that; empty: none is."""
        if facts.kind == "clock":
            return msgspec.structs.replace(start, passed=(since_ms - BEFORE_MS) * 1_000), ""
        query = sql.SQL(
            "SELECT min(cursor) AS first, count(*) AS rows FROM (SELECT " + _COLUMN[facts.kind] + " AS cursor"
            " FROM {table} ORDER BY {cursor} DESC LIMIT %s) newest"
        )
        newest = connection.execute(query.format(**self._names()), (REACH,)).fetchone()
        if newest is not None and newest.rows == REACH:
            return msgspec.structs.replace(start, passed=newest.first - 1), f"it begins with its newest {REACH} rows"
        return msgspec.structs.replace(start, passed=0 if facts.kind == "xid8" else _LOWEST), ""


def _one(connection: psycopg.Connection[Any], query: str, *values: object) -> Any:
    return connection.execute(query, values).fetchone()


def _in_json(column: str, kind: str) -> str:
    """Return the SQL of a column as a value of JSON; where its text is longer than `MAX_CHARS`, of that, cut."""
    if kind in _SHORT or kind.startswith("timestamp "):
        return column
    text = f"{column}::text"
    cut = f"to_json(left({text}, {MAX_CHARS}))"
    return f"CASE WHEN length({text}) > {MAX_CHARS} THEN {cut} ELSE to_json({column}) END"


def _version(facts: TableFacts, snapshot: Any, log_position: int) -> TableVersion:
    """Return the version of a table at a position in its server's log. After a failover the timeline counts first."""
    system, _, timeline = snapshot.history.partition("/")
    file = "" if facts.file is None else str(facts.file)
    at = int(timeline, 16), log_position
    return TableVersion(f"{system}/{snapshot.database}", facts.id, at, str(facts.oid), file)


def _places(kind: CursorKind, places: Collection[int]) -> list[object]:
    """Return the cursors of rows as the database reads them, without those that no text is of."""
    if kind == "clock":
        return [f"{np.datetime64(place, 'us')}Z" for place in places if 0 <= place < _FINITE_US]
    return [str(place) for place in places] if kind == "xid8" else list(places)


def _mark(cursor: int, message_id: str | None) -> int:
    """Return what says that a row is read, also once other columns of it have changed."""
    return xxhash.xxh3_64_intdigest(f"{cursor}/{message_id}".encode())


def _packed(marks: set[int]) -> str:
    return base64.b85encode(np.array(sorted(marks), np.uint64).tobytes()).decode()


def _unpacked(packed: str) -> set[int]:
    return set(np.frombuffer(base64.b85decode(packed), np.uint64).tolist())
