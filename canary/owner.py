"""The owner of the canary: what it sends is noted, and what lagloss makes of it is judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import OperationalError

from canary import record, witness
from canary.metrics import CanaryMetrics
from canary.plan import MINUTE_S, MinutePlan, plan_of
from canary.sender import PAUSED_S, CanarySender, Disturbed, Unconfirmed, boot_s
from lagloss_server.model.canary import DUE_S, NEEDED, RIGHT, START_S, WRONG
from lagloss_server.queries.canary import problem_of, read_judged, read_not_taken, read_quiet_s
from lagloss_server.store.ownership import Lease

SURE_S: Final = 65 * MINUTE_S
"""Results are compared again for so long, in case a later revision spoils them. A minute that is judged first after
that was not right in time, whatever kept lagloss from it."""
JUDGED_WITHIN_S: Final = 86_400
"""A minute that is older was not judged for too long: its names and incidents may be deleted."""
JUMP_SPOILS_S: Final = 10 * MINUTE_S
"""Minutes this far back can be judged by a clock that was set."""
REPEATED_S: Final = 15 * MINUTE_S
"""A clock that was set back to minutes that were sent before is no problem for so long: nothing of them is due."""

_log = structlog.get_logger("lagloss.canary")


class CanaryOwner:
    """What a process knows from when it became the owner of the canary. Its sender and its witness share it.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database does not answer.
    """

    def __init__(self, engine: Engine, secret: bytes, metrics: CanaryMetrics, lease: Lease) -> None:
        self._engine = engine
        self._secret = secret
        self._metrics = metrics
        self._lease = lease
        self._since_s = self._looked_s = boot_s()
        """When it became the owner, or went on after a pause; when its last round began."""
        self._began_s: dict[int, float] = {}
        """When minutes were begun since then, by `boot_s`, which a clock that is set does not change."""
        self._right_s: float | None = None
        """When a minute was found right last."""
        self._repeated_s: float | None = None
        """Since when minutes come again that were sent before; None once all is right."""
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
        self, sender: CanarySender, start_s: int, tick: Callable[[float], None], waiting: list[Unconfirmed]
    ) -> None:
        """Send a minute, unless it was sent before, and note what became of it. Raises OperationalError if another
        process owns the canary."""
        plan = self.plan(start_s)
        with self._engine.begin() as connection:
            self._demand_lease(connection)
            is_new = record.begin(connection, start_s, len(plan.lost))
        if not is_new:
            self._repeated_s = self._repeated_s or boot_s()
            self._waiting = "the clock was set back, and this minute was sent before"
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
        """Judge what has changed; return why the canary is not right, empty if it is, None while nothing can be said.

        Raises:
            OperationalError: another process owns the canary: it was paused for longer than its session lasts.
        """
        now_s = boot_s()
        if now_s - self._looked_s > PAUSED_S:  # as after a restart, which others may have had, too
            self._since_s, self._began_s = now_s, {}
        self._looked_s = now_s
        with self._engine.begin() as connection:
            self._demand_lease(connection)
            rows = record.read_due(connection, int(time.time()) - JUDGED_WITHIN_S, SURE_S)
            first_s = rows[0].minute if rows else int(time.time())
            revisions = witness.read_revisions(connection, first_s)
            changed = [row for row in rows if self._is_open(row, revisions.get(row.minute))]
            results = witness.read_results(connection, [row.minute for row in changed])
            breaches = witness.read_breaches(connection, first_s)
            notices = record.read_notices(connection, first_s)
            for row in changed:
                result = results.get(row.minute)
                # of a minute from before a restart the alerter may have notified while the canary was away, or have
                # ended the incident when it was back itself
                is_notified = row.minute in self._began_s or witness.NOT_NOTIFIED in row.problems
                judgement = witness.judge(self.plan(row.minute), result, breaches, notices, is_notified=is_notified)
                if judgement.is_right or row.verdict is not None or self._is_over(row, now_s):
                    self._note(connection, row, judgement, None if result is None else result.revision, now_s)
            judged = [(row.verdict, row.problems) for row in read_judged(connection)]
            not_taken = read_not_taken(connection)
        quiet_s = None if self._right_s is None else now_s - self._right_s
        problem = problem_of(judged, quiet_s, self._waiting, not_taken)
        if not problem:
            self._repeated_s = None
        return None if problem and self._is_early(judged, now_s) else problem

    def prune(self, before_s: int) -> None:
        with self._engine.begin() as connection:
            record.prune(connection, before_s)

    def _demand_lease(self, connection: Connection) -> None:
        if not self._lease.is_held(connection):
            raise lost()

    def _is_open(self, row: Any, revision: int | None) -> bool:
        """Return whether a minute can have to be judged otherwise than before."""
        return bool(row.verdict in (None, WRONG) or row.revision != revision)

    def _is_over(self, row: Any, now_s: float) -> bool:
        """Return whether a minute had its time; of one from before a restart it counts from that, and is as long as
        others need that were restarted, too."""
        began_s = self._began_s.get(row.minute)
        return now_s - self._since_s > START_S if began_s is None else now_s - began_s > DUE_S

    def _is_early(self, judged: Sequence[tuple[str, Sequence[str]]], now_s: float) -> bool:
        """Return whether a problem may be that of a start, or of a clock that was set back."""
        if self._repeated_s is not None and now_s - self._repeated_s < REPEATED_S:
            return True
        return now_s - self._since_s < START_S and not any(verdict == WRONG for verdict, _ in judged[:NEEDED])

    def _note(
        self, connection: Connection, row: Any, judgement: witness.Judgement, revision: int | None, now_s: float
    ) -> None:
        on_time = not self._is_over(row, now_s) and row.minute >= time.time() - SURE_S
        verdict = record.note_judgement(connection, row.minute, row.verdict, judgement, revision, on_time=on_time)
        if row.verdict is None:
            self._metrics.judged(verdict, judgement)
            if verdict == RIGHT:
                self._right_s = now_s
        if verdict == WRONG and row.verdict != WRONG:
            _log.error("canary_minute_wrong", minute=row.minute, problems=judgement.problems)


def lost() -> OperationalError:
    """Return the error of an owner that is none any more."""
    return OperationalError("the lease of the canary", None, Exception("the session that owned it has ended"))
