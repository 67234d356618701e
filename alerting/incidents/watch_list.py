"""Watch list: pipelines of which more than windows may be new, by statements for all pipelines at once."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, or_, select

from alerting.views.silent_nodes import read_silent
from lagloss.wire.format import WINDOW_S
from lagloss_server.rules.group_progress import NOW_S
from lagloss_server.store.schema.alerting import PendingBreachRow
from lagloss_server.store.schema.core import ConsumerLagRow, is_any


def read_watched(connection: Connection, now_s: float, with_groups: Collection[str]) -> set[str]:
    """Return the pipelines with a pending breach, a node that fell silent or, of those that are
    `with_groups`, a partition at risk."""
    pending = set(connection.execute(select(PendingBreachRow.pipeline).distinct()).scalars())
    silent = read_silent(connection, now_s).keys()
    return pending | silent | _at_risk(connection, now_s, with_groups)


def _at_risk(connection: Connection, now_s: float, pipelines: Collection[str]) -> set[str]:
    """Return the pipelines with a partition of which messages were deleted unread, or will be."""
    if not pipelines:
        return set()
    row = ConsumerLagRow
    asked = select(row.pipeline).where(
        is_any(row.pipeline, pipelines),
        row.window_start >= int(now_s) - NOW_S,
        row.window_start < int(now_s) + WINDOW_S,
        or_(row.deleted > 0, row.loss_at.is_not(None)),
    )
    return set(connection.execute(asked.distinct()).scalars())
