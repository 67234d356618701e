"""Requests to close windows again, which the aggregator answers in their row."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute

from lagloss_server.model.window import rfc3339
from lagloss_server.store import audit
from lagloss_server.store.limits import demand_room
from lagloss_server.store.schema.core import RecomputeRequestRow
from lagloss_server.store.store import Store

MAX_WAITING: Final = 100
"""Requests of a pipeline that are not answered yet."""


def add(store: Store, pipeline: str, from_s: int, to_s: int) -> int:
    """Ask the closer to close the windows with from <= start < to again; return the request's number.

    Raises:
        LimitReached: as many wait for it already.
    """
    with store.engine.begin() as connection:
        row = RecomputeRequestRow
        waiting = select(row.id).where(row.pipeline == pipeline, row.answer.is_(None))
        remedy = "The aggregator answers them one after the other."
        demand_room(connection, waiting, MAX_WAITING, f"recompute requests of {pipeline} that wait", remedy)
        request = insert(RecomputeRequestRow).values(pipeline=pipeline, from_s=from_s, to_s=to_s)
        number = int(connection.execute(request.returning(RecomputeRequestRow.id)).scalar_one())
        span = {"from": rfc3339(from_s), "to": rfc3339(to_s)}
        audit.note(connection, "recompute", pipeline, [pipeline], **span)
    return number


def answer_to(store: Store, request: int) -> dict[str, Any] | None:
    """Return the closer's answer; None while it works."""
    return _read(store, request, RecomputeRequestRow.answer)


def progress_of(store: Store, request: int) -> dict[str, Any] | None:
    """Return at least the numbers of windows `done` and `of`; None before the closer's first round."""
    return _read(store, request, RecomputeRequestRow.progress)


def _read(store: Store, request: int, column: InstrumentedAttribute[dict[str, Any] | None]) -> dict[str, Any] | None:
    with store.engine.connect() as connection:
        document: dict[str, Any] | None = connection.execute(
            select(column).where(RecomputeRequestRow.id == request)
        ).scalar_one()
    return document
