"""Ownership in PostgreSQL: which process does what only one at a time may do.

Work that lasts (closing windows, leading the alerters, carrying out a tap) is **owned**. A row's column `owner` names a
session of PostgreSQL, which holds an advisory lock of that name for as long as it lasts. A row is free if no session
holds the lock of its owner's name. What an owner writes is on condition of the row, in the same transaction: a process
that was replaced writes nothing.

A piece of work whose effect leaves PostgreSQL (a page, a mail) is **claimed** for a time. No condition in a transaction
takes back a mail that is being sent, so the next attempt waits until the last one must have ended.

Why there are two: decisions/0048-work-is-owned-or-claimed.md.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import (
    ColumnElement,
    ColumnExpressionArgument,
    Connection,
    Double,
    Engine,
    Row,
    and_,
    cast,
    event,
    func,
    select,
    text,
    true,
    update,
)
from sqlalchemy.exc import OperationalError

from lagloss_server.base.database_url import connection_options
from lagloss_server.store.schema.core import Base, table_of
from lagloss_server.store.schema.ownership import LeaseRow

AGGREGATOR: Final = "aggregator"
ALERTING: Final = "alerting"
CANARY_WORK: Final = "canary"
"""Kinds of work that have a lease."""
BEATS: Final = 5
"""Signs of life within the time after which a session without one is ended: a slow process keeps its work."""
IS_FREE: Final = "CASE WHEN owner = '' THEN true ELSE pg_try_advisory_xact_lock_shared(hashtextextended(owner, 0)) END"
"""Condition that no session owns a row with a column `owner`. It tries the lock of the owner's session, shared, until
the transaction ends. This disturbs no other: if it succeeds that session has ended, and none after it has its name."""
_ACQUIRE: Final = f"""
    UPDATE lease SET owner = %(owner)s, since = clock_timestamp(), well_at = clock_timestamp()
    FROM (SELECT owner AS former FROM lease WHERE work = %(work)s) before
    WHERE work = %(work)s AND (owner = %(owner)s OR {IS_FREE}) RETURNING former
"""
_FIRST: Final = """
    INSERT INTO lease (work, owner, since, well_at) VALUES (%(work)s, %(owner)s, clock_timestamp(), clock_timestamp())
    ON CONFLICT DO NOTHING RETURNING true
"""
_SIGN_OF_LIFE: Final = "UPDATE lease SET well_at = clock_timestamp() WHERE owner = %(owner)s"
_ATTEND: Final = "SELECT pg_advisory_lock_shared(hashtextextended(%(owner)s, 1))"
_END_ATTENDANTS: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE datname = current_database() AND usename = current_user AND locktype = 'advisory' AND database = datid
    AND (CAST(classid AS bigint) << 32 | CAST(objid AS bigint)) = hashtextextended(%(owner)s, 1)
"""
_IMPATIENCE: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_STATEMENT_TIMEOUT: Final = "30s"
"""A sign of life, or a try to own, takes longer only if a table is locked."""


class OwnerSession:
    """A session that owns work under a name that no other one has had, from when it is made until it ends.

    It ends with `close`, with the process, with its connection, and with the server. The server also ends it after
    `lost_after_s` without a sign of life: the process is paused, or cut off. A thread gives them while `is_well()`,
    whatever the other threads do.

    Raises:
        OperationalError: the database does not answer.
    """

    def __init__(self, database_url: str, lost_after_s: float, is_well: Callable[[], bool] = lambda: True) -> None:
        self.name: Final = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:16]}"
        self._lost_after_s = lost_after_s
        self._is_well = is_well
        self._guard = threading.Lock()
        """Threads share the connection, and learn of its end one after the other."""
        self._failure: OperationalError | None = None
        self.has_leases = False
        """Whether a sign of life is noted in rows of the table `lease`, for people."""
        self._over = threading.Event()
        options = connection_options(database_url) | _IMPATIENCE
        try:
            self.connection: psycopg.Connection[Any] = psycopg.connect(make_conninfo(**options), autocommit=True)
        except psycopg.Error as error:
            raise _away(error) from error
        try:
            self.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT}'")
            self.execute(f"SET idle_session_timeout = {round(lost_after_s * 1_000)}")
            self.execute("SELECT pg_advisory_lock(hashtextextended(%(owner)s, 0))", {"owner": self.name})
        except BaseException:
            self.connection.close()
            raise
        threading.Thread(target=self._stay, name="owner", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        """Whether the session is known to have ended."""
        return self._failure is not None or self.connection.closed

    def execute(self, statement: str, params: dict[str, Any] | None = None) -> psycopg.Cursor[Any]:
        """Execute a statement by itself. Raise OperationalError if the session has ended, with all that it owns."""
        with self._guard:
            if self._failure is not None:
                raise self._failure
            try:
                return self.connection.execute(statement.encode(), params)
            except psycopg.Error as error:
                self._failure = _away(error)
                raise self._failure from error

    def attend(self, engine: Engine) -> None:
        """Let the connections that an engine opens from now on be ended by who takes over a lease from this session.

        They may hold locks until then. In the middle of COPY FROM STDIN, PostgreSQL waits for its client without any
        time-out of its own: for ever if that is paused, for hours if it is cut off.
        """

        @event.listens_for(engine, "connect")
        def mark(connection: Any, _record: object) -> None:
            connection.execute(_ATTEND, {"owner": self.name})
            connection.commit()

    def check(self) -> None:
        """Give a sign of life. Raise OperationalError if the session has ended, with all that it owns."""
        self.execute("SELECT 1")

    def _stay(self) -> None:
        while not self._over.wait(self._lost_after_s / BEATS):
            try:
                if self._is_well():
                    self.execute(_SIGN_OF_LIFE if self.has_leases else "SELECT 1", {"owner": self.name})
            except OperationalError:  # which the next check of a working thread raises, too
                return

    def close(self) -> None:
        """End the session: what it owns is free at once."""
        self._over.set()
        self.connection.close()


def _away(error: psycopg.Error) -> OperationalError:
    return OperationalError("session of an owner", None, error)


class Lease:
    """Work that one session at a time owns as a whole: a row of the table `lease`."""

    def __init__(self, work: str, session: OwnerSession) -> None:
        self.session = session
        self._work = work

    def acquire(self) -> bool:
        """Own the work unless another session does; return whether this one does. What attends the session that owned
        it before is ended. Raise as `OwnerSession.execute`."""
        params = {"work": self._work, "owner": self.session.name}
        is_first = self.session.execute(_FIRST, params).fetchone() is not None
        taken = None if is_first else self.session.execute(_ACQUIRE, params).fetchone()
        if taken is not None and taken[0] != self.session.name:
            self.session.execute(_END_ATTENDANTS, {"owner": taken[0]})
        self.session.has_leases |= is_first or taken is not None
        return is_first or taken is not None

    def is_held(self, connection: Connection) -> bool:
        """Return whether this session owns the work, and goes on to until the transaction of the connection ends:
        another one waits for that. So nothing is committed in it after a successor has begun to read.

        The row alone may name a session that has ended: a failover that lost commits, or an older backup, brings it
        back.
        """
        table = table_of(LeaseRow)
        is_mine = table.c.work == self._work, table.c.owner == self.session.name, text(f"NOT ({IS_FREE})")
        return connection.execute(select(true()).where(*is_mine).with_for_update(read=True)).first() is not None


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that has a lease, or had it last, and when it last gave a sign of life."""

    host: str
    since: datetime
    well_at: datetime


def read_holder(connection: Connection, work: str) -> LeaseHolder | None:
    """Return who has the lease of a work, or had it last; None if no process ever had."""
    table = table_of(LeaseRow)
    row = connection.execute(select(table).where(table.c.work == work)).one_or_none()
    return None if row is None else LeaseHolder(row.owner.partition("/")[0], row.since, row.well_at)


class Claims:
    """Claims on the rows of a table with `ClaimColumns` and `outcome`, each row a piece of work.

    A claim moves `next_attempt_at` past the longest time that an attempt takes. A process that dies leaves a row that
    is due again then. Of two that try the same row, only the one that claimed it last records anything.
    """

    def __init__(self, rows: type[Base]) -> None:
        self.table: Final = table_of(rows)
        columns = self.table.c
        self.is_due: Final = and_(columns.done_at.is_(None), columns.next_attempt_at <= func.clock_timestamp())
        """Condition that a row waits for an attempt, and that none is under way."""
        self.age_s: Final = cast(func.extract("epoch", func.clock_timestamp() - columns.created_at), Double)
        """Column: seconds since a row was made."""

    def claim(
        self, connection: Connection, claim_s: float, *which: ColumnExpressionArgument[bool]
    ) -> tuple[UUID, list[Row[Any]]]:
        """Claim the due rows of a condition for a time; return the claim, and the rows, which have an `age_s`, too."""
        claim, table = uuid4(), self.table
        values = {"attempts": table.c.attempts + 1, "claim": claim, "next_attempt_at": _in(claim_s)}
        statement = update(table).where(self.is_due, *which).values(values)
        return claim, [*connection.execute(statement.returning(table, self.age_s.label("age_s")))]

    def renew(self, connection: Connection, claim: UUID, claim_s: float, **values: Any) -> bool:
        """Hold a claim for another time, or give it back with 0; return whether it still held."""
        return bool(self._change(connection, claim, (), {"next_attempt_at": _in(claim_s), **values}))

    def finish(
        self,
        connection: Connection,
        claim: UUID,
        outcome: str,
        error: str | None,
        *which: ColumnExpressionArgument[bool],
        **values: Any,
    ) -> list[Row[Any]]:
        """Record that the rows of a claim, or some of them, are done; return those for which it still held."""
        end = {"claim": None, "done_at": func.clock_timestamp(), "outcome": outcome, "last_error": error}
        return self._change(connection, claim, which, {**end, **values})

    def defer(
        self,
        connection: Connection,
        claim: UUID,
        after_s: float,
        error: str,
        *which: ColumnExpressionArgument[bool],
        **values: Any,
    ) -> None:
        """Record that the attempt failed, and that the next one is due after a time."""
        failure = {"claim": None, "next_attempt_at": _in(after_s), "last_error": error}
        self._change(connection, claim, which, {**failure, **values})

    def _change(
        self,
        connection: Connection,
        claim: UUID,
        which: Sequence[ColumnExpressionArgument[bool]],
        values: dict[str, Any],
    ) -> list[Row[Any]]:
        columns = self.table.c
        is_held = and_(columns.claim == claim, columns.done_at.is_(None), *which)
        return [*connection.execute(update(self.table).where(is_held).values(values).returning(*columns))]


def _in(seconds: float) -> ColumnElement[datetime]:
    return func.clock_timestamp() + timedelta(seconds=seconds)
