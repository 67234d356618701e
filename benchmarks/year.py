"""A year's SLA report of one pipeline: the API's answer and the page's document beside a bare read of its rows."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import text

from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.serving import measure_answer, serving
from lagloss_server.store.partitions import DAY_S

PIPELINE: Final = "year"
NODES: Final = 6
WINDOW_DAYS: Final = 35
"""As retention keeps them."""
DAYS: Final = 730
"""A year, and the year before it, which a report compares it with."""
ANSWER_S: Final = 2.0


def run() -> list[Figure]:
    """Print and return what each form takes."""
    with serving(lambda store: fill(store, [PIPELINE], NODES, WINDOW_DAYS, DAYS)) as served:
        print(f"{NODES} nodes, {DAYS} days of roll-ups by the hour and by the day, {WINDOW_DAYS} days of windows")
        to_s = int(time.time()) // DAY_S * DAY_S
        from_, to = (datetime.fromtimestamp(at_s, UTC).isoformat() for at_s in (to_s - 365 * DAY_S, to_s))
        span = f"from={from_[:19]}Z&to={to[:19]}Z"

        def bare() -> None:
            """Read the rows of both years: packed days, and counts of the hours of the reported one."""
            sums = "messages, delivered, pending, lost_min, lost_max, on_time, on_time_of"
            with served.store.engine.connect() as connection:
                days = "SELECT start, packed FROM rollup WHERE pipeline = :name AND period = 'day' AND start >= :since"
                connection.execute(text(days), {"name": PIPELINE, "since": to_s - DAYS * DAY_S}).all()
                hours = (
                    f"SELECT start, {sums} FROM rollup WHERE pipeline = :name AND period = 'hour' AND start >= :since"
                )
                connection.execute(text(hours), {"name": PIPELINE, "since": to_s - 365 * DAY_S}).all()

        path = f"/api/v1/pipelines/{PIPELINE}/report?{span}&format="
        return [measure_answer(served, path + form, bare, ANSWER_S) for form in ("json", "html")]
