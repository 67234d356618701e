"""Limits of how many rows of a kind there are, where people or services add them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, func, select

from lagloss_server.base.errors import LimitReached


def demand_room(connection: Connection, rows: Select[Any], limit: int, what: str, remedy: str, more: int = 1) -> None:
    """Check that there is room for `more` of what is selected. Those who add to the same wait for each other until the
    end of their transaction, so that together they do not pass the limit.

    Raises:
        LimitReached: there is not; `what` names the rows, `remedy` says what to do.
    """
    connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(what, 0))))
    count = connection.execute(select(func.count()).select_from(rows.limit(limit + 1).subquery())).scalar_one()
    if count + more > limit:
        raise LimitReached(limit=f"{limit:,}", what=what, remedy=remedy)
