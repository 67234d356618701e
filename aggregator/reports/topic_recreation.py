"""Recreated topics: one that was deleted and created anew begins at offset 0, so no position we know holds."""

from __future__ import annotations

import structlog
from sqlalchemy import Engine, delete, select, update

from lagloss_server.store.schema import core as tables

log = structlog.get_logger()


def notice_recreated_topics(engine: Engine, beacons_id: str, reports_id: str) -> bool:
    """Compare the topics' ids with those that positions were kept for; whether one of them is another topic by now.

    If so, windows stay as they are (sealed), and following begins anew: positions, tallies and lanes of the old log are
    dropped. Emitters that live on send what changes from then on. The next report of each counts, whatever its seq: if
    only the beacons have a new topic, all reports are followed again.
    """
    reports, audited = tables.ReportsPositionRow, tables.AuditedRow
    with engine.begin() as connection:
        known_reports = set(connection.execute(select(reports.topic_id)).scalars())
        known_beacons = set(connection.execute(select(audited.topic_id)).scalars())
        if known_reports <= {reports_id} and known_beacons <= {beacons_id}:
            return False
        window = tables.WindowRow
        connection.execute(update(window).where(window.state == "closed").values(state="sealed", deadline=None))
        for table in (reports, tables.DeferredReportsRow, audited, tables.TallyRow, tables.LaneRow):
            connection.execute(delete(table))
        connection.execute(update(tables.EmitterRow).values(seq=-1))
    log.warning("topic recreated", note="existing windows are sealed; reports are consumed from the beginning")
    return True
