"""The service: of all its processes, one sends the canary's minutes and judges what lagloss makes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from canary import record, witness
from canary.heartbeat import Heartbeat
from canary.metrics import CanaryMetrics
from canary.plan import MINUTE_S, MinutePlan, plan_of
from canary.sender import STEP_S, CanarySender, Disturbed, SteadyClock, Unconfirmed, boot_s
from canary.table import CanaryTable
from canary.witness import Notice
from lagloss.errors import LaglossError
from lagloss_server.base.errors import CanaryNotPrepared
from lagloss_server.base.turns import Turns, WatchedLoop
from lagloss_server.model.canary import CANARY, DUE_S, NEEDED, RIGHT, WRONG
from lagloss_server.queries.canary import problem_of, read_judged, read_quiet_s
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
SURE_S: Final = 65 * MINUTE_S
"""Results are compared again for so long, in case a later revision spoils them."""
START_S: Final = 480.0
"""Of a canary that begins: without a minute that is due by then, something is wrong."""
PRUNE_S: Final = 3_600.0
STATEMENT_TIMEOUT: Final = "20s"
MAX_PAUSE_S: Final = 10.0
JUMP_SPOILS_S: Final = 10 * MINUTE_S
"""Minutes this far back can be judged by a clock that was set."""

_log = structlog.get_logger("lagloss.canary")


class CanaryService:
    """The canary of one process. `run` returns when `stop` is set.

    Args:
        bootstrap, database_url, collector: where to find Kafka, PostgreSQL and the collector.
        keep_days: retention of its minutes.
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
        self._keep_s = keep_days * 86_400
        self._is_on = is_on
        self._settle_s = settle_s
        self._engine = engine_for(database_url, statement_timeout=STATEMENT_TIMEOUT)
        self._loop = WatchedLoop("the sender", 2 * MINUTE_S)
        self._round = WatchedLoop("the witness", 2 * MINUTE_S)

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

    def _note(self, error: Exception) -> None:
        if isinstance(error, LaglossError):
            self.trouble = str(error)
        elif isinstance(error, AWAY):
            self.trouble = f"waiting for PostgreSQL: {error.orig if isinstance(error, OperationalError) else error}"
        else:
            self.trouble = f"failed: {type(error).__name__}: {error}"
            _log.exception("canary_failed")
            return
        _log.warning("canary_waits", trouble=self.trouble)

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
            record.excuse_unfinished(connection)
        if secrets is None:
            raise CanaryNotPrepared
        secret, token = secrets
        self.stands_by = False
        turn, table = _Ownership(self._engine, secret, self.metrics), CanaryTable.of_environment()
        with closing(CanarySender(self._bootstrap, self._collector, token, table)) as sender, self._judging(turn):
            self.trouble = None
            self._send_minutes(lease, sender, turn, stop)

    def _send_minutes(self, lease: Lease, sender: CanarySender, turn: _Ownership, stop: threading.Event) -> None:
        clock, waiting = SteadyClock(), list[Unconfirmed]()

        def tick(wait_s: float) -> None:
            """Look after the minutes before, and wait. Raises Disturbed if this minute cannot be as planned."""
            self._loop.finished()
            if lease.session.has_ended:
                raise _lost()
            turn.confirm(sender, waiting)
            if jump_s := clock.jump_s():
                turn.clock_was_set(jump_s)
                raise Disturbed(f"the clock was set by {jump_s:+.0f} s")
            if stop.wait(wait_s):
                raise Disturbed("the sender ended")

        first_s = time.time() + self._settle_s
        while not stop.is_set():
            start_s = -int(-max(first_s, time.time() - LATE_START_S) // MINUTE_S) * MINUTE_S
            try:
                while (wait_s := start_s - time.time()) > 0:
                    sender.idle()
                    tick(min(wait_s, STEP_S))
            except Disturbed:
                continue
            turn.send(lease, sender, start_s, tick, waiting)
            first_s = start_s + MINUTE_S

    @contextmanager
    def _judging(self, turn: _Ownership) -> Iterator[None]:
        """Judge from a thread of its own while the block lasts."""
        ended = threading.Event()

        def judge() -> None:
            pruned_s = 0.0
            while not ended.wait(ROUND_S):
                try:
                    problem = turn.judge()
                    self._round.finished()
                    self.metrics.ok.set(problem == "")
                    self._heartbeat.say(problem)
                    if boot_s() - pruned_s > PRUNE_S:
                        pruned_s = boot_s()
                        turn.prune(int(time.time()) - self._keep_s)
                except Exception as error:  # the next round tries again; until then the heartbeat is silent
                    self.metrics.ok.set(0)
                    _log.warning("witness_round_failed", error=type(error).__name__, detail=str(error))

        thread = threading.Thread(target=judge, name="witness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(ROUND_S)


class _Ownership:
    """What the owner of the canary knows from when it became that. Its sender and its witness share it."""

    def __init__(self, engine: Engine, secret: bytes, metrics: CanaryMetrics) -> None:
        self._engine = engine
        self._secret = secret
        self._metrics = metrics
        self._since_s = boot_s()
        self._began_s: dict[int, float] = {}
        """When minutes were begun, by `boot_s`, which a clock that is set does not change."""
        self._right_s: float | None = None
        """When a minute was found right last."""
        self._waiting = ""
        """Why the newest minute was not sent as planned; empty if it was."""
        with engine.connect() as connection:
            quiet_s = read_quiet_s(connection)
        if quiet_s is not None:
            self._right_s = boot_s() - max(0.0, quiet_s)

    def plan(self, start_s: int) -> MinutePlan:
        return plan_of(self._secret, start_s)

    # -- the sender's --------------------------------------------------------------------------------------------------

    def send(
        self,
        lease: Lease,
        sender: CanarySender,
        start_s: int,
        tick: Callable[[float], None],
        waiting: list[Unconfirmed],
    ) -> None:
        """Send a minute, unless it was sent before, and note what became of it."""
        plan = self.plan(start_s)
        with self._engine.begin() as connection:
            if not lease.is_held(connection):
                raise _lost()
            is_new = record.begin(connection, start_s, len(plan.lost))
        if not is_new:
            return
        self._began_s = {minute: at_s for minute, at_s in self._began_s.items() if minute > start_s - 2 * SURE_S}
        self._began_s[start_s] = boot_s()
        try:
            waiting.append(sender.send(plan, tick))
        except Disturbed as why:
            self._excuse([start_s], str(why))

    def confirm(self, sender: CanarySender, waiting: list[Unconfirmed]) -> None:
        """Note which of the minutes that wait for acknowledgements are sent, and which are not due."""
        for minute in list(waiting):
            try:
                if not sender.is_confirmed(minute):
                    continue
                with self._engine.begin() as connection:
                    record.confirm(connection, minute.start_s)
                self._waiting = ""
            except Disturbed as why:
                self._excuse([minute.start_s], str(why))
            waiting.remove(minute)

    def clock_was_set(self, jump_s: float) -> None:
        """Note that no minute is due that a clock as it was set now may spoil."""
        recent = [minute for minute, at_s in self._began_s.items() if boot_s() - at_s < JUMP_SPOILS_S]
        self._excuse(recent, f"the clock was set by {jump_s:+.0f} s")

    def _excuse(self, minutes: Collection[int], why: str) -> None:
        _log.info("canary_minute_not_due", minutes=sorted(minutes), why=why)
        self._waiting = why
        self._metrics.excused(len(minutes))
        with self._engine.begin() as connection:
            record.excuse(connection, minutes, why)

    # -- the witness's -------------------------------------------------------------------------------------------------

    def judge(self) -> str | None:
        """Judge what has changed; return why the canary is not right, empty if it is, None while it is too early."""
        with self._engine.begin() as connection:
            first_s = int(time.time()) - SURE_S
            rows = record.read_due(connection, first_s)
            revisions = witness.read_revisions(connection, first_s)
            changed = [row for row in rows if self._is_open(row, revisions.get(row.minute))]
            results = witness.read_results(connection, [row.minute for row in changed])
            breaches = witness.read_breaches(connection, first_s)
            notices = {row.minute: Notice.of_document(row.notice) for row in rows if row.notice is not None}
            for row in changed:
                result = results.get(row.minute)
                judgement = witness.judge(self.plan(row.minute), result, breaches, notices)
                if judgement.is_right or row.verdict is not None or self._age_s(row) > DUE_S:
                    self._note(connection, row, judgement, None if result is None else result.revision)
            judged = [(row.verdict, row.problems) for row in read_judged(connection)]
        quiet_s = None if self._right_s is None else boot_s() - self._right_s
        problem = problem_of(judged, quiet_s, self._waiting)
        is_early = boot_s() - self._since_s < START_S and not any(verdict == WRONG for verdict, _ in judged[:NEEDED])
        return None if problem and is_early else problem

    def prune(self, before_s: int) -> None:
        with self._engine.begin() as connection:
            record.prune(connection, before_s)

    def _is_open(self, row: Any, revision: int | None) -> bool:
        """Return whether a minute can have to be judged otherwise than before."""
        return bool(row.verdict in (None, WRONG) or row.revision != revision)

    def _age_s(self, row: Any) -> float:
        """Return the time since a minute was begun; of one from before a restart, since that: the others may just have
        been started, too."""
        return boot_s() - self._began_s.get(row.minute, self._since_s)

    def _note(self, connection: Connection, row: Any, judgement: witness.Judgement, revision: int | None) -> None:
        on_time = self._age_s(row) <= DUE_S
        verdict = record.note_judgement(connection, row.minute, row.verdict, judgement, revision, on_time=on_time)
        if row.verdict is None:
            self._metrics.judged(verdict, judgement)
            if verdict == RIGHT:
                self._right_s = boot_s()
        if verdict == WRONG and row.verdict != WRONG:
            _log.error("canary_minute_wrong", minute=row.minute, problems=judgement.problems)


def _lost() -> OperationalError:
    return OperationalError("the lease of the canary", None, Exception("the session that owned it has ended"))
