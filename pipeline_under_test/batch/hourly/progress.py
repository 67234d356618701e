"""Progress of the hourly job: how long ago the oldest event was imported that no run has aggregated yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, func, select

from lagloss.wire.format import Progress
from pipeline_under_test.batch.schema import COUNTED, EVENT

LANE: Final = "event"
"""Named, so that it stands still between runs: what has been imported since waits for the next one, and is not lost."""


def waiting_since_ms(connection: Connection) -> int:
    """Return when the oldest event was imported that is not aggregated (epoch ms); if all are, when the transaction
    began. What is imported and not visible to the transaction was seen last after that."""
    oldest = select(func.min(EVENT.c.imported_at)).where(
        ~select(COUNTED.c.id).where(COUNTED.c.id == EVENT.c.id).exists()
    )
    since = connection.execute(select(func.coalesce(oldest.scalar_subquery(), func.now()))).scalar_one()
    return int(since.timestamp() * 1000)


@dataclass(slots=True)
class ImportedLane:
    """The lane of table `event`, for `Emitter.follow`: all that was imported before `until_ms` has been taken in."""

    checkpoint: str
    until_ms: int

    def snapshot(self) -> Sequence[Progress]:
        return [Progress(self.checkpoint, LANE, self.until_ms)]
