"""Leader election: one alerter at a time evaluates and sends, and another takes over within seconds when it fails.

The lead is an advisory lock on a connection that also listens for closings. When that breaks, PostgreSQL gives the lock
to the next. An alerter that holds it but has stopped (its host hangs, it was suspended) stops its heartbeat:
the next one ends its connection. It claims nothing after that, since the leader's row names another, and what it still
writes of incidents it writes in turn with its successor, from what the database says then.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import structlog
from psycopg.conninfo import make_conninfo
from sqlalchemy.exc import InterfaceError, OperationalError

from lagloss_server.database_url import connection_options
from lagloss_server.store.engine import ALERTS_CHANNEL, WINDOWS_CHANNEL

LOCK: Final = "lagloss-alerting-leader"
TRY_S: Final = 1.0
HEARTBEAT_S: Final = 2.0
UNWELL_AFTER_S: Final = 8.0
"""With the time to notice and to read all windows, a takeover ends within 15 s."""

AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, OperationalError, InterfaceError)
"""Errors raised when the database is down, or has ended our connection; the alerter tries again."""
_LONGEST_PAUSE_S: Final = 10.0

_IMPATIENCE: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
_STATEMENT_TIMEOUT: Final = "30s"
"""For a heartbeat, or a try to lead: longer only where a table is locked."""
_log = structlog.get_logger("lagloss.alerting")


def pause_s(failures: int) -> float:
    """Return the pause after this many failures in a row with a database that is AWAY."""
    return min(0.5 * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_S)


@dataclass(slots=True)
class Leadership:
    """Leadership of this alerter within the block of `leading`. `backend`: pid of its PostgreSQL backend."""

    connection: psycopg.Connection[Any]
    backend: int
    _heartbeat_s: float = float("-inf")

    def heartbeat(self) -> None:
        """Write the heartbeat if it is due. Call it every few seconds. Raise psycopg.Error when leadership is lost."""
        if time.monotonic() - self._heartbeat_s < HEARTBEAT_S:
            return
        well = self.connection.execute(
            "UPDATE alerting_leader SET well_at = clock_timestamp() WHERE backend = %s", [self.backend]
        )
        if not well.rowcount:
            raise psycopg.OperationalError("another alerter leads")
        self._heartbeat_s = time.monotonic()

    def confirm(self) -> None:
        """Raise psycopg.Error if this alerter does not lead any more."""
        self._heartbeat_s = float("-inf")
        self.heartbeat()

    def heard(self, timeout_s: float) -> dict[str, set[int]]:
        """Wait for PostgreSQL's notifications, at most this long; return the starts of windows with a new result, by
        pipeline, and "" for an action of a person."""
        notices = self.connection.notifies(timeout=timeout_s, stop_after=1)
        first = [*notices]
        rest = [*self.connection.notifies(timeout=0)] if first else []
        found: dict[str, set[int]] = {}
        for notice in [*first, *rest]:
            name, _, start = notice.payload.rpartition("/") if notice.channel == WINDOWS_CHANNEL else ("", "", "")
            found.setdefault(name, set()).update([int(start)] if start.isdecimal() else [])
        return found


@contextmanager
def leading(database_url: str, stop: threading.Event, stand_by: Callable[[], None]) -> Iterator[Leadership | None]:
    """Wait for leadership and hold it; yield None if `stop` was set before. Raise psycopg.Error when the database goes
    away. `stand_by` is called about each second until then, and at least once; it should not take longer."""
    options = connection_options(database_url) | _IMPATIENCE
    with psycopg.connect(make_conninfo(**options), autocommit=True) as connection:
        connection.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT}'".encode())
        if not _await(connection, stop, stand_by):
            yield None
            return
        for channel in (WINDOWS_CHANNEL, ALERTS_CHANNEL):
            connection.execute(f"LISTEN {channel}")
        backend = connection.info.backend_pid
        connection.execute(
            "INSERT INTO alerting_leader VALUES (true, %(backend)s, %(host)s, clock_timestamp(), clock_timestamp()) "
            'ON CONFLICT ("only") DO UPDATE SET backend = %(backend)s, host = %(host)s, led_at = clock_timestamp(), '
            "well_at = clock_timestamp()",
            {"backend": backend, "host": socket.gethostname()},
        )
        _log.info("leading")
        yield Leadership(connection, backend)


def _await(connection: psycopg.Connection[Any], stop: threading.Event, stand_by: Callable[[], None]) -> bool:
    has_said = False
    while not stop.is_set():
        stand_by()
        row = connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [LOCK]).fetchone()
        if row is not None and row[0]:
            return True
        if not has_said:
            _log.info("standing_by", why="another alerter leads")
            has_said = True
        ended = connection.execute(
            "SELECT backend FROM alerting_leader, pg_terminate_backend(backend) "
            "WHERE well_at < clock_timestamp() - make_interval(secs => %s) AND backend IN "
            "(SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND (classid::bigint << 32 | objid::bigint) = hashtextextended(%s, 0))",
            [UNWELL_AFTER_S, LOCK],
        ).fetchone()
        if ended is not None:
            _log.warning("leader_ended", why=f"no heartbeat for {UNWELL_AFTER_S:.0f} s")
        stop.wait(TRY_S)
    return False
