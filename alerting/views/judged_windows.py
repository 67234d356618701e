"""Judged windows in PostgreSQL: how far each pipeline's windows were judged, for the alerter that leads next.

Statements only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.postgresql import insert

from alerting.views.window_cache import JudgedWindows
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.schema.alerting import JudgedWindowsRow
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.store import names_not_deleted

_table = table_of(JudgedWindowsRow)
_DIGEST_COLUMNS = 5


def read(connection: Connection, pipeline: StoredPipeline) -> JudgedWindows | None:
    """Return what was judged by this version of a pipeline, if anything was."""
    is_this = (_table.c.pipeline == pipeline.name) & (_table.c.version == pipeline.version)
    row = connection.execute(select(_table).where(is_this)).one_or_none()
    if row is None or not isinstance(row.live, dict) or len(row.digests) % (8 * _DIGEST_COLUMNS):
        return None  # of another version: they are judged again
    return JudgedWindows(row.judged_to, np.frombuffer(row.digests, "<i8").reshape(-1, _DIGEST_COLUMNS), row.live)


def write(connection: Connection, judged: Iterable[tuple[StoredPipeline, JudgedWindows]]) -> None:
    """Replace what was judged of these pipelines."""
    rows = [
        {
            "pipeline": pipeline.name,
            "version": pipeline.version,
            "judged_to": judged_of.to_s,
            "digests": judged_of.digests.astype("<i8").tobytes(),
            "live": dict(judged_of.live),
        }
        for pipeline, judged_of in sorted(judged, key=lambda item: item[0].name)
    ]
    stored = insert(_table)
    changed = {name: stored.excluded[name] for name in ("version", "judged_to", "digests", "live")}
    connection.execute(stored.on_conflict_do_update(index_elements=["pipeline"], set_=changed), rows)


def forget_deleted(connection: Connection) -> None:
    """Delete what was judged of deleted pipelines."""
    connection.execute(delete(_table).where(_table.c.pipeline.not_in(names_not_deleted())))
