"""The record of the canary's minutes: what was sent, and what became of it. Statements only."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Connection, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert

from canary.witness import Judgement, Notice
from lagloss_server.model.canary import LATE, NOT_DUE, RIGHT, SENDING, SENT, WRONG
from lagloss_server.store.schema.canary import CanaryMinuteRow, CanarySecretRow
from lagloss_server.store.schema.core import table_of

_minute: Final = table_of(CanaryMinuteRow)
_ENDED: Final = "the process that sent it ended"
_UNJUDGED: Final = "it was not judged within a day"


def read_secrets(connection: Connection) -> tuple[bytes, str] | None:
    """Return the secret of the plans, and the token for the collector; None before `prepare` has made them."""
    row = connection.execute(select(table_of(CanarySecretRow))).first()
    return None if row is None else (row.secret, row.token)


def begin(connection: Connection, start_s: int, shown: int) -> bool:
    """Note that a minute is being sent; return False if it was sent before: by another process, or before the clock
    was set back."""
    values = {"minute": start_s, "state": SENDING, "why": "", "began_at": func.clock_timestamp(), "problems": []}
    counts = {"shown": shown, "named": 0, "invented": 0}
    statement = insert(_minute).values(**values, **counts).on_conflict_do_nothing().returning(_minute.c.minute)
    return connection.execute(statement).first() is not None


def confirm(connection: Connection, start_s: int) -> None:
    """Note that a minute was sent as planned: it is due."""
    is_it = (_minute.c.minute == start_s) & (_minute.c.state == SENDING)
    connection.execute(update(_minute).where(is_it).values(state=SENT))


def excuse(connection: Connection, minutes: Iterable[int], why: str) -> None:
    """Note that minutes are not due, as far as nothing was said of them yet."""
    are_open = _minute.c.minute.in_(list(minutes)) & _minute.c.verdict.is_(None)
    connection.execute(update(_minute).where(are_open).values(state=NOT_DUE, why=why))


def excuse_unfinished(connection: Connection, before_s: int) -> None:
    """Note that what a process before this one was sending is not due, nor what began before `before_s` (epoch s) and
    was not judged."""
    unjudged = (_minute.c.state == SENT) & _minute.c.verdict.is_(None) & (_minute.c.minute < before_s)
    for which, why in ((_minute.c.state == SENDING, _ENDED), (unjudged, _UNJUDGED)):
        connection.execute(update(_minute).where(which).values(state=NOT_DUE, why=why))


def read_due(connection: Connection, first_s: int, again_s: float) -> list[Any]:
    """Return the rows of the minutes from `first_s` (epoch s) on that were sent as planned and were not judged yet, or
    judged first within the last `again_s` seconds, oldest first."""
    is_lately = _minute.c.judged_at >= func.clock_timestamp() - timedelta(seconds=again_s)
    is_open = (_minute.c.state == SENT) & or_(_minute.c.verdict.is_(None), is_lately)
    query = select(_minute).where(_minute.c.minute >= first_s, is_open)
    return [*connection.execute(query.order_by(_minute.c.minute))]


def read_notices(connection: Connection, first_s: int) -> dict[int, Notice]:
    """Return the first notification of each minute from `first_s` (epoch s) on that has one: also of those that are not
    due, since a reminder about one of them is also about the minutes before."""
    query = select(_minute.c.minute, _minute.c.notice).where(_minute.c.minute >= first_s, _minute.c.notice.is_not(None))
    return {row.minute: Notice.of_document(row.notice) for row in connection.execute(query)}


def note_notice(connection: Connection, start_s: int, notice: Notice) -> None:
    """Note the first notification of a minute."""
    is_first = (_minute.c.minute == start_s) & _minute.c.notice.is_(None)
    connection.execute(update(_minute).where(is_first).values(notice=notice.document()))


def note_judgement(
    connection: Connection,
    start_s: int,
    before: str | None,
    judgement: Judgement,
    revision: int | None,
    *,
    on_time: bool,
) -> str:
    """Note what was found of a minute, unless it is not due; return its verdict. `before`: that so far. What was once
    wrong is at best late."""
    verdict = WRONG
    if judgement.is_right:
        verdict = RIGHT if before == RIGHT or (before is None and on_time) else LATE
    connection.execute(
        update(_minute)
        .where(_minute.c.minute == start_s, _minute.c.state == SENT)
        .values(
            verdict=verdict,
            problems=list(judgement.problems),
            judged_at=func.coalesce(_minute.c.judged_at, func.clock_timestamp()),
            revision=revision,
            named=judgement.named,
            invented=judgement.invented,
        )
    )
    return verdict


def prune(connection: Connection, before_s: int) -> None:
    """Delete minutes that began before this (epoch s)."""
    connection.execute(delete(_minute).where(_minute.c.minute < before_s))
