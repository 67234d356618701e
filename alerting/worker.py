"""The alerter: leads or waits to, evaluates pipelines as their windows close, and sends what is queued.

One alerter leads: it holds an advisory lock on a connection that also listens for closings. When that connection
breaks, PostgreSQL gives the lock to the next one.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

import psycopg
import structlog
from sqlalchemy.exc import SQLAlchemyError

from alerting.incidents import Incidents
from alerting.outbox import Outbox
from lagloss.store import WINDOWS_CHANNEL

LEADER_LOCK: Final = "lagloss-alerting-leader"
POLL_S: Final = 10.0
"""Every pipeline is evaluated this often even if nobody notifies."""
TAKEOVER_S: Final = 2.0
LONGEST_WAIT_S: Final = 10.0
_SLICE_S: Final = 0.5
_IDLE_S: Final = 2.0

_log = structlog.get_logger("lagloss.alerting")


class Alerter:
    """`run` returns when `stop` is set. `outbox` None: nobody is told."""

    def __init__(self, database_url: str, incidents: Incidents, outbox: Outbox | None) -> None:
        self._database_url = database_url
        self._incidents = incidents
        self._outbox = outbox
        self._stop = threading.Event()
        self._queued = threading.Event()
        self._leading = threading.Event()

    def stop(self) -> None:
        self._stop.set()
        self._queued.set()

    def run(self) -> None:
        sender = threading.Thread(target=self._send, name="sender")
        sender.start()
        failures = 0
        while not self._stop.is_set():
            try:
                self._lead()
                failures = 0
            except (psycopg.Error, SQLAlchemyError) as error:
                failures += 1
                self._stop.wait(self._told_wait_s("database_away", error, failures))
            finally:
                self._leading.clear()
        self._queued.set()
        sender.join()

    def _lead(self) -> None:
        """Waits for the lock and then leads, until told to stop. Raises when the database goes away."""
        with psycopg.connect(
            self._database_url, autocommit=True, connect_timeout=5, keepalives_idle=5, keepalives_interval=2
        ) as connection:
            if not self._await_lead(connection):
                return
            _log.info("leading")
            connection.execute(f"LISTEN {WINDOWS_CHANNEL}")
            self._leading.set()
            self._queued.set()
            self._evaluate(None)
            evaluated_s = time.monotonic()
            while not self._stop.is_set():
                closed = {notice.payload.rpartition("/")[0] for notice in connection.notifies(timeout=_SLICE_S)}
                if time.monotonic() - evaluated_s > POLL_S:
                    closed, evaluated_s = set(), time.monotonic()
                    connection.execute("SELECT 1")  # a lead that is lost without a word is noticed here
                    self._evaluate(None)
                elif closed:
                    self._evaluate(closed)

    def _await_lead(self, connection: psycopg.Connection[Any]) -> bool:
        waited = False
        while not self._stop.is_set():
            row = connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [LEADER_LOCK]).fetchone()
            if row is not None and row[0]:
                return True
            if not waited:
                _log.info("standing_by", why="another alerter leads")
                waited = True
            self._stop.wait(TAKEOVER_S)
        return False

    def _evaluate(self, names: set[str] | None) -> None:
        """These pipelines, or all. One that cannot be evaluated does not keep the others from it."""
        for pipeline in self._incidents.store.pipelines():
            if names is not None and pipeline.name not in names:
                continue
            try:
                changes = self._incidents.evaluate(pipeline)
            except (psycopg.Error, SQLAlchemyError):
                raise
            except Exception:
                _log.exception("evaluation_failed", pipeline=pipeline.name)
                continue
            if changes:
                self._queued.set()

    def _send(self) -> None:
        failures = 0
        while self._outbox is not None and not self._stop.is_set():
            self._queued.clear()
            try:
                while self._leading.is_set() and not self._stop.is_set() and self._outbox.send_one():
                    pass
                due_s = self._outbox.next_due_s() if self._leading.is_set() else None
                wait_s = _IDLE_S if due_s is None else min(max(due_s, 0.05), _IDLE_S)
                failures = 0
            except (psycopg.Error, SQLAlchemyError) as error:
                failures += 1
                wait_s = self._told_wait_s("outbox_away", error, failures)
            self._queued.wait(wait_s)

    def _told_wait_s(self, event: str, error: Exception, failures: int) -> float:
        wait_s = min(0.5 * 2.0 ** min(failures - 1, 10), LONGEST_WAIT_S)
        _log.warning(event, error=type(error).__name__, again_in_s=wait_s)
        return wait_s
