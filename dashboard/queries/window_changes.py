"""Which windows change, as PostgreSQL notifies: what was read of a pipeline's closed windows holds until then."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Final

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from lagloss_server.base.turns import WatchedLoop
from lagloss_server.store.engine import ALERTS_CHANNEL, WINDOWS_CHANNEL
from lagloss_server.store.store import Store

_WAIT_S: Final = 1.0
"""Time until a call to stop is noticed, and between attempts to listen."""
TURN_LIMIT_S: Final = 60.0
"""Longest normal time to connect, or to wait for a notification."""
_log = structlog.get_logger("lagloss.dashboard")


class WindowChanges:
    """Counts the changes of each pipeline's windows, and of incidents by people, from `start` to `stop`."""

    def __init__(self) -> None:
        self.loop = WatchedLoop("listening for changes", TURN_LIMIT_S)
        self._changes: Counter[str] = Counter()
        self._session: object | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_listening(self) -> bool:
        """Return whether stamps hold: PostgreSQL is listened to."""
        return self._session is not None

    def stamp(self, pipeline: str) -> Hashable:
        """Return what is the same until a window of the pipeline changes; something new each time while PostgreSQL is
        not listened to."""
        session = self._session
        return object() if session is None else (session, self._changes[pipeline], self._changes[""])

    def start(self, store: Store) -> None:
        self._thread = threading.Thread(target=self._run, args=(store.unscoped,), name="window changes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, store: Store) -> None:
        while not self._stopped.is_set():
            self.loop.finished()
            try:
                self._listen(store)
            except Exception as error:  # whatever it is: nothing counts as known to hold, and it listens again
                is_away = isinstance(error, SQLAlchemyError | psycopg.Error)
                _log.warning("listen_failed", error=type(error).__name__, exc_info=None if is_away else error)
            finally:
                self._session = None
            self._stopped.wait(_WAIT_S)

    def _listen(self, store: Store) -> None:
        with store.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for channel in (WINDOWS_CHANNEL, ALERTS_CHANNEL):
                connection.exec_driver_sql(f"LISTEN {channel}")
            driver = connection.connection.driver_connection
            assert isinstance(driver, psycopg.Connection)
            self._session = object()
            try:
                while not self._stopped.is_set():
                    self.loop.finished()
                    for notice in driver.notifies(timeout=_WAIT_S, stop_after=1_000):
                        name = notice.payload.rpartition("/")[0] if notice.channel == WINDOWS_CHANNEL else ""
                        self._changes[name] += 1
            finally:
                connection.invalidate()  # it goes on listening
