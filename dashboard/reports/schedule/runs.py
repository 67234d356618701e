"""Runs of scheduled reports in PostgreSQL: the process that claims one makes and sends it, and records the outcome.

Its holder renews a claim while it works. A dashboard that dies leaves a run that is due again when the claim has
expired, to this or another one. Addresses that have the mail, and receivers that it is queued for, are
recorded, so that a run that is tried again goes to the others only.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Engine, and_, select, text

from lagloss_server.base import format as fmt
from lagloss_server.net.outcome import GIVE_UP_AFTER_S, Outcome, Refused, Sent, TryLater
from lagloss_server.store.ownership import Claims
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import ReportRunRow

CLAIM_S: Final = 600.0
"""Longer than one report of one pipeline, and the sending of all, can take."""
FIRST_RETRY_S: Final = 60.0
LONGEST_RETRY_S: Final = 3_600.0

_BEGIN: Final = text(
    """
    INSERT INTO report_run (report, schedule, due_at, outcome, done_at, last_error)
    SELECT :report, :schedule, :due_at, outcome, CASE WHEN outcome IS NOT NULL THEN clock_timestamp() END,
        CASE WHEN outcome IS NOT NULL THEN 'it was due before the schedule was added' END
    FROM (SELECT CASE WHEN EXISTS (SELECT FROM report_run WHERE report = :report AND schedule = :schedule)
                 THEN NULL ELSE 'skipped' END AS outcome) AS known
    WHERE NOT EXISTS (SELECT FROM report_run WHERE report = :report AND schedule = :schedule AND due_at > :due_at)
    ON CONFLICT DO NOTHING
    """
)
_OVERTAKE: Final = text(
    """
    UPDATE report_run SET outcome = 'failed', done_at = clock_timestamp(), claim = NULL,
        last_error = 'not sent before the next one was due' || coalesce('; the last: ' || last_error, '')
    WHERE report = :report AND schedule = :schedule AND due_at < :due_at AND done_at IS NULL
      AND next_attempt_at <= clock_timestamp()
    """
)
_CLAIMS: Final = Claims(ReportRunRow)
_FORGET: Final = text(
    """
    DELETE FROM report_run AS old WHERE due_at < clock_timestamp() - make_interval(days => :keep_days)
      AND EXISTS (SELECT FROM report_run AS newer
                  WHERE newer.report = old.report AND newer.schedule = old.schedule AND newer.due_at > old.due_at)
    """
)


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which report was due when (epoch s), by which schedule."""

    report: str
    schedule: str
    due_s: int

    @property
    def columns(self) -> dict[str, str | datetime]:
        return {"report": self.report, "schedule": self.schedule, "due_at": datetime.fromtimestamp(self.due_s, UTC)}


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run that is ours to make. `attempts` counts this one; `age_s` since the run was begun."""

    claim: uuid.UUID
    attempts: int
    reached: frozenset[str]
    age_s: float


@dataclass(frozen=True, slots=True)
class LastRun:
    """A run as it stands: `outcome` None while it is not done, `error` what was wrong last."""

    due_at: datetime
    outcome: str | None
    attempts: int
    error: str | None

    @property
    def summary(self) -> str:
        """`sent`, `failed after 3 attempts: …`, `waits`, `to be tried again: …`."""
        if self.outcome is None:
            return f"will be retried: {self.error}" if self.error else "waits"
        tried = f" after {fmt.counted(self.attempts, 'attempt')}" if self.outcome == "failed" else ""
        return f"{self.outcome}{tried}{f': {self.error}' if self.error else ''}"


class Runs:
    """The runs in one database. `claim_s` and `first_retry_s` are for tests."""

    def __init__(self, engine: Engine, claim_s: float = CLAIM_S, first_retry_s: float = FIRST_RETRY_S) -> None:
        self._engine = engine
        self._claim_s = claim_s
        self._first_retry_s = first_retry_s

    def begin(self, key: RunKey) -> None:
        """Make the run if it is not there; those of older times that are not done are given up. The first of a schedule
        is skipped: a new schedule does not apply to the time before it. Nothing is begun by a clock
        that is behind another dashboard's."""
        with self._engine.begin() as connection:
            connection.execute(_BEGIN, key.columns)
            connection.execute(_OVERTAKE, key.columns)

    def waited_s(self, key: RunKey) -> float | None:
        """Seconds since the run was begun, if it waits to be claimed now; else None."""
        with self._engine.connect() as connection:
            waits = select(_CLAIMS.age_s).where(_is(key), _CLAIMS.is_due)
            waited: float | None = connection.execute(waits).scalar_one_or_none()
        return waited

    def claim(self, key: RunKey) -> ClaimedRun | None:
        """Claim the run, unless it is claimed, done or deferred."""
        with self._engine.begin() as connection:
            claim, rows = _CLAIMS.claim(connection, self._claim_s, _is(key))
        return next((ClaimedRun(claim, row.attempts, frozenset(row.reached), row.age_s) for row in rows), None)

    def release(self, claimed: ClaimedRun) -> None:
        """Lets go of the run, if it is still ours: it is due again now."""
        with self._engine.begin() as connection:
            _CLAIMS.renew(connection, claimed.claim, 0)

    def renew(self, claimed: ClaimedRun) -> bool:
        """Hold the claim for as long again; whether it was still ours."""
        with self._engine.begin() as connection:
            return _CLAIMS.renew(connection, claimed.claim, self._claim_s)

    def once(self, claimed: ClaimedRun, reached: Sequence[str], write: Callable[[Connection], None]) -> bool:
        """Write something and that these have the report, in one commit, if the run is still ours; return whether it
        was."""
        with self._engine.begin() as connection:
            is_ours = _CLAIMS.renew(connection, claimed.claim, self._claim_s, reached=_with(reached))
            if is_ours:
                write(connection)
        return is_ours

    def record(self, claimed: ClaimedRun, outcome: Outcome, reached: Sequence[str] = ()) -> Outcome:
        """Record the outcome, unless the claim has run out; a run deferred for longer than a day is given up. Return
        what was recorded."""
        if isinstance(outcome, TryLater) and claimed.age_s > GIVE_UP_AFTER_S:
            outcome = outcome.given_up(claimed.attempts)
        claim, now_reached = claimed.claim, _with(reached)
        with self._engine.begin() as connection:
            match outcome:
                case Sent():
                    _CLAIMS.finish(connection, claim, "sent", None, reached=now_reached)
                case Refused(error):
                    _CLAIMS.finish(connection, claim, "failed", error, reached=now_reached)
                case TryLater(error):
                    wait_s = outcome.wait_s(claimed.attempts, self._first_retry_s, LONGEST_RETRY_S)
                    _CLAIMS.defer(connection, claim, wait_s, error, reached=now_reached)
        return outcome

    def forget(self, keep_days: int) -> int:
        """Delete runs that were due more than so many days ago, and says how many. The newest of a schedule stays,
        however old: it says that the schedule is known."""
        with self._engine.begin() as connection:
            return connection.execute(_FORGET, {"keep_days": keep_days}).rowcount

    def last(self, report: str, schedule: str) -> LastRun | None:
        """Return the newest run of a report."""
        table = table_of(ReportRunRow)
        with self._engine.connect() as connection:
            row = connection.execute(
                select(table)
                .where(table.c.report == report, table.c.schedule == schedule)
                .order_by(table.c.due_at.desc())
                .limit(1)
            ).one_or_none()
        return None if row is None else LastRun(row.due_at, row.outcome, row.attempts, row.last_error)


def _is(key: RunKey) -> ColumnElement[bool]:
    columns = _CLAIMS.table.c
    return and_(*(columns[name] == value for name, value in key.columns.items()))


def _with(reached: Sequence[str]) -> ColumnElement[list[Any]]:
    """Return what `reached` is with these more."""
    return ReportRunRow.reached.concat([*reached])
