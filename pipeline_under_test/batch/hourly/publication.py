"""What follows Spark: load an hour's draft, check the scores, publish them. Each step can be done again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.dialects.postgresql import insert as upsert

from pipeline_under_test.batch.schema import COUNTED, PUBLICATION, SCORE, SCORE_DRAFT

SHARE_TOLERANCE: Final = 1e-6
"""By how much the scores of an hour may miss a sum of 1: they are rounded to floats, each on its own."""


class BadScores(RuntimeError):
    """The scores of an hour do not match its events; the message gives the difference."""


@dataclass(frozen=True, slots=True)
class HourScores:
    """The loaded scores of an hour: (campaign, events, value, score), by campaign."""

    hour: int
    rows: Sequence[tuple[str, int, float, float]]

    @classmethod
    def read(cls, connection: Connection, hour: int) -> HourScores:
        columns = (SCORE.c.campaign, SCORE.c.events, SCORE.c.value, SCORE.c.score)
        rows = connection.execute(select(*columns).where(SCORE.c.hour == hour).order_by(SCORE.c.campaign))
        return cls(hour, [(row.campaign, row.events, row.value, row.score) for row in rows])

    @property
    def events(self) -> int:
        return sum(events for _, events, _, _ in self.rows)

    @property
    def digest(self) -> str:
        """SHA-256 of the rows: equal for equal scores, whenever they were computed."""
        return hashlib.sha256(json.dumps(self.rows).encode()).hexdigest()

    def check(self, counted: int) -> None:
        """Raise BadScores unless they are made of so many events, and are shares of one whole."""
        if self.events != counted:
            raise BadScores(f"expected scores of {counted} events, found {self.events}")
        if not all(math.isfinite(value) and math.isfinite(score) for _, _, value, score in self.rows):
            raise BadScores("expected finite values and scores")
        whole = sum(score for *_, score in self.rows)
        if any(value for _, _, value, _ in self.rows) and abs(whole - 1) > SHARE_TOLERANCE:
            raise BadScores(f"expected scores with the sum 1, found {whole:g}")


def load(connection: Connection, hour: int) -> None:
    """Replace the hour's scores by its draft."""
    connection.execute(delete(SCORE).where(SCORE.c.hour == hour))
    names = [column.name for column in SCORE.columns]
    draft = select(*SCORE_DRAFT.columns).where(SCORE_DRAFT.c.hour == hour)
    connection.execute(insert(SCORE).from_select(names, draft))


def check(connection: Connection, hour: int) -> None:
    """Raise BadScores if what is loaded is not what was aggregated."""
    statement = select(func.count()).select_from(COUNTED).where(COUNTED.c.hour == hour)
    HourScores.read(connection, hour).check(connection.execute(statement).scalar_one())


def publish(connection: Connection, hour: int) -> None:
    """Publish the hour's scores, or restate them."""
    scores = HourScores.read(connection, hour)
    row = {"hour": hour, "rows": len(scores.rows), "events": scores.events, "digest": scores.digest}
    restated = {**row, "published_at": func.now()}
    connection.execute(upsert(PUBLICATION).values(row).on_conflict_do_update(index_elements=["hour"], set_=restated))
