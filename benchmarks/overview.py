"""The overview of 200 pipelines: the API's answer beside a bare read of its rows, the page beside the bare shell."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import text

from benchmarks.generated import fill
from benchmarks.serving import measure_answer, measure_pages, serving, verdict

PIPELINES: Final = 200
NODES: Final = 3
ANSWER_S: Final = 1.0
USABLE_S: Final = 2.0


def run() -> None:
    """Print both, and fail where they are slower than asked for."""
    names = [f"pipeline-{number:03}" for number in range(PIPELINES)]
    with serving(lambda store: fill(store, names, NODES, minutes_days=1, rollup_days=30)) as served:

        def bare() -> None:
            """Read the newest window of each pipeline, its last day by the hour and its last month by the day."""
            now_s = int(time.time())
            with served.store.engine.connect() as connection:
                newest = 'SELECT DISTINCT ON (pipeline) document FROM "window" WHERE window_start > :since'
                connection.execute(text(f"{newest} ORDER BY pipeline, window_start DESC"), {"since": now_s - 900}).all()
                sums = "SELECT pipeline, start, messages, lost_min, on_time, on_time_of, e2e_p95_ms FROM rollup"
                for period, since in (("hour", now_s - 86_400), ("day", now_s - 30 * 86_400)):
                    where = {"period": period, "since": since}
                    connection.execute(text(f"{sums} WHERE period = :period AND start >= :since"), where).all()

        print(f"{PIPELINES} pipelines of {NODES} nodes, a day of windows and 30 days of roll-ups each")
        answer = measure_answer(served, "/api/v1/overview", bare, ANSWER_S)
        verdict([answer, *measure_pages(served, ["/"], f"#overview-rows tbody tr:nth-child({PIPELINES})", USABLE_S)])
