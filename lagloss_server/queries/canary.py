"""How the canary stands: whether what lagloss reported of its last minutes was right, and of the last 30 days."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from sqlalchemy import Connection, case, func, select

from lagloss_server.base.format import count, counted
from lagloss_server.model.canary import CANARY, NEEDED, NOT_DUE, QUIET_S, RIGHT, WRONG
from lagloss_server.model.window import rfc3339
from lagloss_server.store.schema.canary import CanaryMinuteRow
from lagloss_server.store.schema.core import PipelineRow, table_of

SHOWN_MINUTES: Final = 30
"""The newest minutes that `lagloss canary` adds up."""
DAYS: Final = 30
_DAY_S: Final = 86_400
_minute: Final = table_of(CanaryMinuteRow)


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
    `not_due`: the newest minutes, up to three, that were not sent as planned, and why."""

    ok: bool
    why: str
    totals: CanaryTotals
    last_ok_s: int | None
    not_due: tuple[tuple[int, str], ...] = ()

    @property
    def is_young(self) -> bool:
        """Whether too few minutes were due so far to say anything."""
        return self.totals.minutes < NEEDED

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


NO_CANARY: Final = CanaryStanding(
    ok=False,
    why="there is no canary: LAGLOSS_CANARY is off, or its service never ran",
    totals=CanaryTotals(0, 0, 0, 0, 0),
    last_ok_s=None,
)


def standing_lines(standing: CanaryStanding) -> Iterator[str]:
    """Yield the standing as lines for people."""
    minutes = counted(standing.totals.minutes, "minute")
    yield "The canary is right." if standing.ok else f"The canary is not right: {standing.why}."
    yield f"{standing.totals.text(minutes).capitalize()}."
    if standing.last_ok_s is not None:
        yield f"Last right: {rfc3339(standing.last_ok_s)}"
    for minute, why in standing.not_due:
        yield f"Not due: {rfc3339(minute)}, {why}"


def problem_of(verdicts: Sequence[tuple[str, Sequence[str]]], quiet_s: float | None, waiting: str = "") -> str:
    """Return why the canary is not ok; empty if it is.

    Args:
        verdicts: of the newest due minutes, the newest first, each with its problems.
        quiet_s: seconds since a minute was found right; None: none ever was.
        waiting: why the newest minute was not sent as planned; empty if it was.
    """
    newest = verdicts[:NEEDED]
    for verdict, problems in newest:
        if verdict != RIGHT:
            said = "; ".join(problems) or "right only after it was due"
            return f"a minute was {verdict}: {said}"
    if len(newest) < NEEDED:
        return f"{len(newest)} of {NEEDED} minutes were due so far" + (f": {waiting}" if waiting else "")
    if quiet_s is None or quiet_s > QUIET_S:
        since = "" if quiet_s is None else f" for {quiet_s / 60:.0f} min"
        return f"no minute was found right{since}" + (f": {waiting}" if waiting else "")
    return ""


def read_standing(connection: Connection) -> CanaryStanding | None:
    """Return how the canary stands; None if there is none, or it never sent anything."""
    pipeline = table_of(PipelineRow).c
    versions = select(pipeline.deleted_at).where(pipeline.name == CANARY).order_by(pipeline.version.desc()).limit(1)
    version = connection.execute(versions).first()
    if version is None or version.deleted_at is not None:
        return None
    states = select(_minute.c.state, _minute.c.why).order_by(_minute.c.minute.desc()).limit(1)
    newest = connection.execute(states).first()
    if newest is None:
        return None
    rows = read_judged(connection)
    last_ok_s = connection.execute(select(func.max(_minute.c.minute)).where(_minute.c.verdict == RIGHT)).scalar_one()
    problem = problem_of(
        [(row.verdict, row.problems) for row in rows],
        read_quiet_s(connection),
        newest.why if newest.state == NOT_DUE else "",
    )
    not_due = select(_minute.c.minute, _minute.c.why).where(_minute.c.state == NOT_DUE)
    excused = connection.execute(not_due.order_by(_minute.c.minute.desc()).limit(NEEDED)).all()
    return CanaryStanding(
        not problem, problem, _totals(rows), last_ok_s, tuple((row.minute, row.why) for row in excused)
    )


def read_canary(connection: Connection, now_s: float) -> CanaryHealth | None:
    """Return how the canary stands, and its last 30 days up to `now_s`; None if it never sent anything."""
    standing = read_standing(connection)
    return None if standing is None else CanaryHealth(standing, read_totals(connection, now_s - DAYS * _DAY_S, now_s))


def read_judged(connection: Connection, limit: int = SHOWN_MINUTES) -> Sequence[Any]:
    """Return the rows of the newest due minutes, the newest first."""
    query = select(_minute).where(_minute.c.verdict.is_not(None)).order_by(_minute.c.minute.desc())
    return connection.execute(query.limit(limit)).all()


def read_quiet_s(connection: Connection) -> float | None:
    """Return the seconds since a minute was found right when it was due; None: none was."""
    age_s = func.extract("epoch", func.clock_timestamp() - func.max(_minute.c.judged_at))
    seconds: Any = connection.execute(select(age_s).where(_minute.c.verdict == RIGHT)).scalar_one()
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
