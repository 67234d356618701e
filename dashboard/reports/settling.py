"""Whether the windows of a range that is over are all closed."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import exists, select

from dashboard.reports.ranges import CalendarSpan
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition
from lagloss_server.rules.freshness import expected_to_s
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store


def unsettled(store: Store, pipelines: Sequence[Definition], span: CalendarSpan, now_s: float) -> list[str]:
    """Pipelines, by name, with a window of this range that is not closed yet. One that never had a
    report of has none."""
    early = {each.name for each in pipelines if expected_to_s(now_s, each.spec.grace) < span.to_s - WINDOW_S}
    row, window = tables.PipelineRow, tables.WindowRow
    has_reports = exists().where(tables.EmitterRow.pipeline == row.name)
    # every minute up to the newest due one has its window: the range's last one is closed after all others
    is_closed = exists().where(window.pipeline == row.name, window.window_start >= span.to_s - WINDOW_S)
    names = [each.name for each in pipelines]
    with store.engine.connect() as connection:
        found = connection.execute(select(row.name).where(tables.is_any(row.name, names), has_reports & ~is_closed))
        return sorted(early | set(found.scalars()))
