"""Leader election: one alerter at a time evaluates and sends, and another takes over within seconds when it fails.

The lead is a lease, owned by a session that also listens for closings. It is lost with that session, which the server
ends when the alerter hangs (its host hangs, it was suspended). It claims nothing after that, and writes nothing of
incidents.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
import structlog

from lagloss_server.store.engine import ALERTS_CHANNEL, WINDOWS_CHANNEL
from lagloss_server.store.engine import AWAY as ENGINE_AWAY
from lagloss_server.store.ownership import ALERTING, Lease, OwnerSession

TRY_S: Final = 1.0
LOST_AFTER_S: Final = 8.0
"""With the time to notice and to read all windows, a takeover ends within 15 s."""

AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, *ENGINE_AWAY)
"""Errors raised when the database is down, or has ended our connection; the alerter tries again."""
_LONGEST_PAUSE_S: Final = 10.0

_log = structlog.get_logger("lagloss.alerting")


def pause_s(failures: int) -> float:
    """Return the pause after this many failures in a row with a database that is AWAY."""
    return min(0.5 * 2.0 ** min(failures - 1, 10), _LONGEST_PAUSE_S)


@dataclass(frozen=True, slots=True)
class Leadership:
    """Leadership of this alerter within the block of `leading`, by a session of PostgreSQL that owns the lease."""

    lease: Lease

    @property
    def session(self) -> OwnerSession:
        return self.lease.session

    def confirm(self) -> None:
        """Raise OperationalError if this alerter does not lead any more."""
        self.session.check()

    def heard(self, timeout_s: float) -> dict[str, set[int]]:
        """Wait for PostgreSQL's notifications, at most this long; return the starts of windows with a new result, by
        pipeline, and "" for an action of a person. Raise psycopg.Error when leadership is lost."""
        notices = self.session.connection.notifies(timeout=timeout_s, stop_after=1)
        first = [*notices]
        rest = [*self.session.connection.notifies(timeout=0)] if first else []
        starts_by_pipeline: dict[str, set[int]] = {}
        for notice in [*first, *rest]:
            name, _, start = notice.payload.rpartition("/") if notice.channel == WINDOWS_CHANNEL else ("", "", "")
            starts_by_pipeline.setdefault(name, set()).update([int(start)] if start.isdecimal() else [])
        return starts_by_pipeline


@contextmanager
def leading(
    database_url: str, stop: threading.Event, stand_by: Callable[[], None], is_well: Callable[[], bool]
) -> Iterator[Leadership | None]:
    """Wait for leadership and hold it while `is_well`; yield None if `stop` was set before. Raise one of AWAY when the
    database goes away. `stand_by` is called about each second until then, and at least once; it should not take
    longer."""
    with closing(OwnerSession(database_url, LOST_AFTER_S, is_well)) as session:
        lease = Lease(ALERTING, session)
        if not _await(lease, stop, stand_by):
            yield None
            return
        for channel in (WINDOWS_CHANNEL, ALERTS_CHANNEL):
            session.execute(f"LISTEN {channel}")
        _log.info("became_leader")
        yield Leadership(lease)


def _await(lead: Lease, stop: threading.Event, stand_by: Callable[[], None]) -> bool:
    has_said = False
    while not stop.is_set():
        stand_by()
        if lead.acquire():
            return True
        if not has_said:
            _log.info("waiting_for_leadership", why="another alerter is the leader")
            has_said = True
        stop.wait(TRY_S)
    return False
