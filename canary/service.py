"""The service: of all its processes, one sends the canary's minutes and judges what lagloss makes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from math import nan
from typing import Any, Final

import structlog
from sqlalchemy.exc import OperationalError

from canary import record, witness
from canary.heartbeat import Heartbeat
from canary.metrics import CanaryMetrics
from canary.owner import JUDGED_WITHIN_S, CanaryOwner, lost
from canary.plan import MINUTE_S
from canary.sender import STEP_S, CanarySender, Disturbed, SteadyClock, Unconfirmed, boot_s
from canary.table import CanaryTable
from canary.witness import Notice
from lagloss.errors import LaglossError
from lagloss_server.base.errors import CanaryNotPrepared
from lagloss_server.base.turns import Turns, WatchedLoop
from lagloss_server.model.canary import CANARY
from lagloss_server.store.engine import AWAY, engine_for
from lagloss_server.store.ownership import CANARY_WORK, Lease, OwnerSession

LOST_AFTER_S: Final = 15.0
"""A process that is paused for longer does not own the canary any more."""
TRY_S: Final = 1.0
SETTLE_S: Final = 75.0
"""A process that was killed before leaves the evidence of its nodes incomplete for a minute: sending begins after
that."""
LATE_START_S: Final = 2.0
"""A minute that cannot be begun by then is left out."""
ROUND_S: Final = 10.0
"""Between two looks of the witness."""
KEPT_DAYS: Final = 400
"""Its minutes are kept for at least so long: pages have 30 days of them, and reports a year."""
PRUNE_S: Final = 3_600.0
STATEMENT_TIMEOUT: Final = "20s"
MAX_PAUSE_S: Final = 10.0

_log = structlog.get_logger("lagloss.canary")


class CanaryService:
    """The canary of one process. `run` returns when `stop` is set.

    Args:
        bootstrap, database_url, collector: where to find Kafka, PostgreSQL and the collector.
        keep_days: retention of its minutes, if longer than KEPT_DAYS.
        is_on: False does nothing, for a process that is started although there is to be no canary.
        settle_s: how long after its start it begins to send.
    """

    def __init__(
        self,
        bootstrap: str,
        database_url: str,
        collector: str,
        heartbeat: Heartbeat,
        metrics: CanaryMetrics,
        keep_days: int,
        *,
        is_on: bool = True,
        settle_s: float = SETTLE_S,
    ) -> None:
        self.metrics = metrics
        self.turns = Turns()
        self.trouble: str | None = "starting"
        self.stands_by = False
        self._bootstrap = bootstrap
        self._database_url = database_url
        self._collector = collector
        self._heartbeat = heartbeat
        self._keep_s = max(keep_days, KEPT_DAYS) * 86_400
        self._is_on = is_on
        self._settle_s = settle_s
        self._engine = engine_for(database_url, statement_timeout=STATEMENT_TIMEOUT)
        self._loop = WatchedLoop("the sender", 2 * MINUTE_S)
        self._round = WatchedLoop("the witness", 2 * MINUTE_S)
        metrics.ok.set_function(self._ok)

    def health_problem(self) -> str | None:
        """Return the reason for a failed /healthz; None if it is healthy."""
        return self.trouble or self.turns.problem()

    def take_notice(self, body: Mapping[str, Any]) -> None:
        """Note a notification of the alerter; others than of the canary's open incidents are ignored.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is no notification.
            sqlalchemy.exc.SQLAlchemyError: the database does not take it.
        """
        incident = body["incident"]
        if incident["pipeline"] != CANARY or incident["state"] != "open":
            return
        with self._engine.begin() as connection:
            record.note_notice(connection, witness.window_start_of(body), Notice.of_body(body))

    def run(self, stop: threading.Event) -> None:
        """Own the canary, or stand by, until `stop`; wait with growing pauses while a server is away."""
        if not self._is_on:
            self.trouble = None
            stop.wait()
            return
        pause_s = TRY_S
        self._heartbeat.start()
        try:
            with self.turns.running(self._loop, self._round):
                while not stop.is_set():
                    try:
                        self._campaign(stop)
                        pause_s = TRY_S
                    except Exception as error:
                        self._note(error)
                        stop.wait(pause_s)
                        pause_s = min(2 * pause_s, MAX_PAUSE_S)
                        self._mark_turns()
        finally:
            self._heartbeat.stop()
            self._engine.dispose()

    def _ok(self) -> float:
        """Return the gauge as of a scrape. A canary that is off is neither right nor wrong, so that no alert fires."""
        return float(self._heartbeat.is_ok()) if self._is_on else nan

    def _note(self, error: Exception) -> None:
        self.trouble = _trouble_of(error)
        self._heartbeat.note_trouble(self.trouble)
        if isinstance(error, (LaglossError, *AWAY)):
            _log.warning("canary_waits", trouble=self.trouble)
        else:
            _log.exception("canary_failed")

    def _mark_turns(self) -> None:
        self._loop.finished()
        self._round.finished()

    def _campaign(self, stop: threading.Event) -> None:
        with closing(OwnerSession(self._database_url, LOST_AFTER_S)) as session:
            lease = Lease(CANARY_WORK, session)
            while not stop.is_set():
                if lease.acquire():
                    self._own(lease, stop)
                    return
                self.trouble, self.stands_by = "another process sends the canary", True
                self._heartbeat.say(None)
                self._mark_turns()
                stop.wait(TRY_S)

    def _own(self, lease: Lease, stop: threading.Event) -> None:
        """Send and judge until `stop`, or until the lease is lost, with an OperationalError."""
        with self._engine.begin() as connection:
            secrets = record.read_secrets(connection)
            record.excuse_unfinished(connection, int(time.time()) - JUDGED_WITHIN_S)
        if secrets is None:
            raise CanaryNotPrepared
        secret, token = secrets
        self.stands_by = False
        owner, table = CanaryOwner(self._engine, secret, self.metrics, lease), CanaryTable.of_environment()
        with closing(CanarySender(self._bootstrap, self._collector, token, table)) as sender, self._judging(owner):
            self.trouble = None
            self._send_minutes(lease, sender, owner, stop)

    def _send_minutes(self, lease: Lease, sender: CanarySender, owner: CanaryOwner, stop: threading.Event) -> None:
        clock, waiting = SteadyClock(), list[Unconfirmed]()
        settled_s = boot_s() + self._settle_s
        first_s = time.time() + self._settle_s

        def tick(wait_s: float) -> None:
            """Look after the minutes before, and wait. Raises Disturbed if this minute cannot be as planned."""
            nonlocal first_s
            self._loop.finished()
            if lease.session.has_ended:
                raise lost()
            owner.confirm(sender, waiting)
            if jump_s := clock.jump_s():
                first_s = time.time() + max(LATE_START_S, settled_s - boot_s())  # it was of another clock
                owner.clock_was_set(jump_s)
                raise Disturbed(f"the clock was set by {jump_s:+.0f} s")
            if stop.wait(wait_s):
                raise Disturbed("the sender ended")

        while not stop.is_set():
            start_s = -int(-max(first_s, time.time() - LATE_START_S) // MINUTE_S) * MINUTE_S
            try:
                while (wait_s := start_s - time.time()) > 0:
                    sender.idle()
                    tick(min(wait_s, STEP_S))
            except Disturbed:
                continue
            first_s = start_s + MINUTE_S
            owner.send(sender, start_s, tick, waiting)

    @contextmanager
    def _judging(self, owner: CanaryOwner) -> Iterator[None]:
        """Judge from a thread of its own while the block lasts."""
        ended = threading.Event()

        def judge() -> None:
            pruned_s = 0.0
            while not ended.wait(ROUND_S):
                try:
                    problem = owner.judge()
                    self._round.finished()
                    self._heartbeat.say(problem)
                    if boot_s() - pruned_s > PRUNE_S:
                        pruned_s = boot_s()
                        owner.prune(int(time.time()) - self._keep_s)
                except Exception as error:  # the next round tries again
                    self._heartbeat.note_trouble(_trouble_of(error))
                    _log.warning("witness_round_failed", error=type(error).__name__, detail=str(error))

        thread = threading.Thread(target=judge, name="witness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(ROUND_S)


def _trouble_of(error: Exception) -> str:
    """Return why nothing can be sent or judged, in a line."""
    if isinstance(error, LaglossError):
        return str(error)
    if isinstance(error, AWAY):
        text = f"waiting for PostgreSQL: {error.orig if isinstance(error, OperationalError) else error}"
    else:
        text = f"failed: {type(error).__name__}: {error}"
    return text.partition("\n")[0]
