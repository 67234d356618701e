"""How the canary stands: whether what lagloss reported of its last minutes was right, and of the last 30 days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

from sqlalchemy import BigInteger, Connection, case, cast, func, select

from lagloss_server.base.format import count, counted
from lagloss_server.model.canary import CANARY, NEEDED, NOT_DUE, NOT_TAKEN, QUIET_S, RIGHT, START_S, WRONG
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema.canary import CanaryMinuteRow
from lagloss_server.store.schema.core import PipelineRow, table_of

SHOWN_MINUTES: Final = 30
"""The newest minutes that `lagloss canary` adds up."""
DAYS: Final = 30
NEWEST: Final = 10
"""The newest minutes, of the last 20, of which fewer than `MANY` may not be taken: one right minute now and then is no
proof that lagloss works."""
MANY: Final = 5
AHEAD_S: Final = 5.0
"""A minute that was judged later than now by more than this was judged before the clock was set back."""
_DAY_S: Final = 86_400
_minute: Final = table_of(CanaryMinuteRow)
_now_s: Final = cast(func.extract("epoch", func.statement_timestamp()), BigInteger)
_is_past: Final = _minute.c.minute <= _now_s
"""Condition: the minute is not of a clock that was ahead; else it would be the newest one until that time has come."""


@dataclass(frozen=True, slots=True)
class CanaryTotals:
    """Minutes that were due, those of them that were right in the end, and their losses: those that were `shown`,
    `named` at their place, and `invented`."""

    minutes: int
    right: int
    shown: int
    named: int
    invented: int

    def text(self, span: str = f"{DAYS} days") -> str:
        """Return the totals of a span: `shown 86,400 losses in 30 days, named 86,400, invented 0`."""
        losses = "loss" if self.shown == 1 else "losses"
        return (
            f"shown {count(self.shown)} {losses} in {span}, named {count(self.named)}, invented {count(self.invented)}"
        )


class CanaryDocument(TypedDict):
    """How the canary stands, as programs read it: see `CanaryTotals` and `CanaryStanding`."""

    minutes: int
    shown: int
    named: int
    invented: int
    ok: bool
    last_ok: str | None
    why: str


@dataclass(frozen=True, slots=True)
class CanaryStanding:
    """`ok`: the last three due minutes were right, the last of them lately. `why` it is not; empty if it is. `totals`:
    of the newest 30 due minutes. `last_ok`: start (epoch s) of the newest minute that was right when it was due.
    `not_due`: the newest minutes of 24 hours, up to three, that were not sent as planned, and why. `is_young`: it began
    a few minutes ago, so that too few were due to say anything."""

    ok: bool
    why: str
    totals: CanaryTotals
    last_ok_s: int | None
    not_due: tuple[tuple[int, str], ...] = ()
    is_young: bool = False

    def document(self) -> CanaryDocument:
        """Return what `lagloss canary --json` prints."""
        return {
            "minutes": self.totals.minutes,
            "shown": self.totals.shown,
            "named": self.totals.named,
            "invented": self.totals.invented,
            "ok": self.ok,
            "last_ok": None if self.last_ok_s is None else rfc3339(self.last_ok_s),
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class CanaryHealth:
    """How the canary stands, and its `totals` of the last 30 days."""

    standing: CanaryStanding
    totals: CanaryTotals

    @property
    def text(self) -> str:
        """Return it in a sentence for pages."""
        state = "starting" if self.standing.is_young else "right" if self.standing.ok else "not right"
        why = "" if self.standing.ok or self.standing.is_young else f" ({self.standing.why})"
        return f"The canary of lagloss is {state}{why}: {self.totals.text()}."


_NOTHING: Final = CanaryTotals(0, 0, 0, 0, 0)
NO_CANARY: Final = CanaryStanding(False, "there is no canary: LAGLOSS_CANARY is off", _NOTHING, None)
NOT_RUN: Final = CanaryStanding(False, "it has sent nothing so far: its service does not run", _NOTHING, None)


def standing_lines(standing: CanaryStanding) -> Iterator[str]:
    """Yield the standing as lines for people."""
    minutes = counted(standing.totals.minutes, "minute")
    yield "The canary is right." if standing.ok else f"The canary is not right: {standing.why}."
    yield f"{standing.totals.text(minutes).capitalize()}."
    if standing.last_ok_s is not None:
        yield f"Last right: {rfc3339(standing.last_ok_s)}"
    for minute, why in standing.not_due:
        yield f"Not due: {rfc3339(minute)}, {why}"


def problem_of(
    verdicts: Sequence[tuple[str, Sequence[str]]],
    quiet_s: float | None,
    waiting: str = "",
    not_taken: Sequence[str] = (),
) -> str:
    """Return why the canary is not ok; empty if it is.

    Args:
        verdicts: of the newest due minutes, the newest first, each with its problems.
        quiet_s: seconds since a minute was found right; None: none ever was; negative: PostgreSQL's clock was set back.
        waiting: why the newest minute was not sent as planned; empty if it was.
        not_taken: why minutes of the newest ones were not taken, the newest first.
    """
    newest = verdicts[:NEEDED]
    for verdict, problems in newest:
        if verdict != RIGHT:
            said = "; ".join(problems) or "right only after it was due"
            return f"a minute was {verdict}: {said}"
    if len(not_taken) >= MANY:
        return f"{len(not_taken)} of the last {NEWEST} minutes were {not_taken[0]}"
    if len(newest) < NEEDED:
        return f"{len(newest)} of {NEEDED} minutes were due so far" + (f": {waiting}" if waiting else "")
    if quiet_s is not None and quiet_s < -AHEAD_S:
        return "PostgreSQL's clock was set back, to minutes that were judged before"
    if quiet_s is None or quiet_s > QUIET_S:
        since = "" if quiet_s is None else f" for {quiet_s / 60:.0f} min"
        return f"no minute was found right{since}" + (f": {waiting}" if waiting else "")
    return ""


def read_standing(connection: Connection) -> CanaryStanding | None:
    """Return how the canary stands; None if there is none."""
    pipeline = table_of(PipelineRow).c
    of_version = pipeline.deleted_at, (_now_s - pipeline.applied_at / 1_000).label("age_s")
    versions = select(*of_version).where(pipeline.name == CANARY).order_by(pipeline.version.desc()).limit(1)
    version = connection.execute(versions).first()
    if version is None or version.deleted_at is not None:
        return None
    age_s = _now_s - func.extract("epoch", _minute.c.began_at)
    first_age_s = connection.execute(select(age_s).order_by(_minute.c.minute).limit(1)).scalar()
    if first_age_s is None:
        return replace(NOT_RUN, is_young=version.age_s < START_S)
    states = select(_minute.c.state, _minute.c.why).where(_is_past).order_by(_minute.c.minute.desc()).limit(1)
    newest = connection.execute(states).first()
    rows = read_judged(connection)
    last_ok_s = connection.execute(select(func.max(_minute.c.minute)).where(_minute.c.verdict == RIGHT)).scalar_one()
    problem = problem_of(
        [(row.verdict, row.problems) for row in rows],
        read_quiet_s(connection),
        newest.why if newest is not None and newest.state == NOT_DUE else "",
        read_not_taken(connection),
    )
    is_today = _minute.c.minute > _now_s - _DAY_S
    not_due = select(_minute.c.minute, _minute.c.why).where(_minute.c.state == NOT_DUE, _is_past, is_today)
    excused = connection.execute(not_due.order_by(_minute.c.minute.desc()).limit(NEEDED)).all()
    is_young = len(rows) < NEEDED and all(row.verdict != WRONG for row in rows) and first_age_s < START_S
    names = tuple((row.minute, row.why) for row in excused)
    return CanaryStanding(not problem, problem, _totals(rows), last_ok_s, names, is_young)


def read_canary(connection: Connection, now_s: float) -> CanaryHealth | None:
    """Return how the canary stands, and its last 30 days up to `now_s`; None if there is none."""
    standing = read_standing(connection)
    return None if standing is None else CanaryHealth(standing, read_totals(connection, now_s - DAYS * _DAY_S, now_s))


def read_judged(connection: Connection, limit: int = SHOWN_MINUTES) -> Sequence[Any]:
    """Return the rows of the newest due minutes, the newest first."""
    query = select(_minute).where(_minute.c.verdict.is_not(None), _is_past).order_by(_minute.c.minute.desc())
    return connection.execute(query.limit(limit)).all()


def read_not_taken(connection: Connection) -> list[str]:
    """Return why those of the newest minutes were not due that were not taken, the newest first."""
    is_lately = _minute.c.minute > _now_s - 2 * NEWEST * 60
    newest = select(_minute.c.state, _minute.c.why).where(_is_past, is_lately).order_by(_minute.c.minute.desc())
    rows = connection.execute(newest.limit(NEWEST))
    return [row.why for row in rows if row.state == NOT_DUE and row.why.startswith(NOT_TAKEN)]


def read_quiet_s(connection: Connection) -> float | None:
    """Return the seconds since a minute was found right when it was due; None: none was. Negative where PostgreSQL's
    clock was set back to minutes that were judged before."""
    right = select(_minute.c.judged_at).where(_minute.c.verdict == RIGHT, _is_past)
    newest = right.order_by(_minute.c.minute.desc()).limit(SHOWN_MINUTES).subquery()  # by the key, not of all rows
    age_s = func.extract("epoch", func.clock_timestamp() - func.max(newest.c.judged_at))
    seconds: Any = connection.execute(select(age_s)).scalar_one()
    return None if seconds is None else float(seconds)


def read_totals(connection: Connection, from_s: float, to_s: float) -> CanaryTotals:
    """Return the totals of the due minutes with from <= start < to (epoch s)."""
    which = (_minute.c.verdict.is_not(None), _minute.c.minute >= int(from_s), _minute.c.minute < int(to_s))
    is_right = case((_minute.c.verdict != WRONG, 1), else_=0)
    sums = (is_right, _minute.c.shown, _minute.c.named, _minute.c.invented)
    columns = [func.count(), *(func.coalesce(func.sum(column), 0) for column in sums)]
    return CanaryTotals(*map(int, connection.execute(select(*columns).where(*which)).one()))


def _totals(rows: Sequence[Any]) -> CanaryTotals:
    return CanaryTotals(
        len(rows),
        sum(row.verdict != WRONG for row in rows),
        *(sum(getattr(row, name) for row in rows) for name in ("shown", "named", "invented")),
    )
