"""The overview of 10,000 pipelines: the API's answers beside a bare read of their rows, the page beside the
bare shell."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import text

from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.serving import Served, measure_answer, measure_pages, serving

PIPELINES: Final = 10_000
NODES: Final = 3
ROLLUP_DAYS: Final = 30
PAGE: Final = 100
ANSWER_S: Final = 1.0
USABLE_S: Final = 2.0
_API: Final = "/api/v1/overview"
_WAYS: Final = {
    "": "worst first",
    "&offset=5000": "further down",
    "&q=pipeline-007": "filtered",
    "&state=blind": "in one state",
    "&sort=lag": "sorted",
}


def run() -> list[Figure]:
    """Print and return both."""
    names = [f"pipeline-{number:05}" for number in range(PIPELINES)]
    with serving(lambda store: fill(store, names, NODES, 1 / 24, ROLLUP_DAYS, 1)) as served:
        print(f"{PIPELINES:,} pipelines of {NODES} nodes, an hour of windows and {ROLLUP_DAYS} days of roll-ups each")
        answers = []
        for way, meaning in _WAYS.items():
            print(f"{meaning}, {PAGE} of them: ", end="")
            path = f"{_API}?limit={PAGE}{way}"
            answers.append(measure_answer(served, path, lambda: _read_bare(served), ANSWER_S))
        print("all of them (without a limit): ", end="")
        measure_answer(served, _API, lambda: _read_bare(served), ANSWER_S)
        return [*answers, *measure_pages(served, ["/"], f"#overview-rows tbody tr:nth-child({PAGE})", USABLE_S)]


def _read_bare(served: Served) -> None:
    """Read the newest window of each pipeline, its last day by the hour and its last month by the day."""
    now_s = int(time.time())
    with served.store.engine.connect() as connection:
        newest = 'SELECT DISTINCT ON (pipeline) document FROM "window" WHERE window_start > :since'
        connection.execute(text(f"{newest} ORDER BY pipeline, window_start DESC"), {"since": now_s - 900}).all()
        sums = "SELECT pipeline, start, messages, lost_min, on_time, on_time_of, e2e_p95_ms FROM rollup"
        for period, since in (("hour", now_s - 86_400), ("day", now_s - ROLLUP_DAYS * 86_400)):
            where = {"period": period, "since": since}
            connection.execute(text(f"{sums} WHERE period = :period AND start >= :since"), where).all()
