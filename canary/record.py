"""The record of the canary's minutes: what was sent, and what became of it. Statements only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from canary.witness import Judgement, Notice
from lagloss_server.model.canary import LATE, NOT_DUE, RIGHT, SENDING, SENT, WRONG
from lagloss_server.store.schema.canary import CanaryMinuteRow, CanarySecretRow
from lagloss_server.store.schema.core import table_of

_minute: Final = table_of(CanaryMinuteRow)
_ENDED: Final = "the process that sent it ended"


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


def excuse_unfinished(connection: Connection) -> None:
    """Note that what a process before this one was sending is not due."""
    unfinished = _minute.c.state == SENDING
    connection.execute(update(_minute).where(unfinished).values(state=NOT_DUE, why=_ENDED))


def read_due(connection: Connection, first_s: int) -> list[Any]:
    """Return the rows of the minutes from `first_s` (epoch s) on that were sent as planned, oldest first."""
    query = select(_minute).where(_minute.c.minute >= first_s, _minute.c.state == SENT)
    return [*connection.execute(query.order_by(_minute.c.minute))]


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
    """Note what was found of a minute; return its verdict. `before`: that so far. What was once wrong is at best
    late."""
    verdict = WRONG
    if judgement.is_right:
        verdict = RIGHT if before == RIGHT or (before is None and on_time) else LATE
    connection.execute(
        update(_minute)
        .where(_minute.c.minute == start_s)
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
