"""The panels of one pipeline over a month of minutes: answers beside a bare read of their rows, pages beside the bare
shell."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import text

from benchmarks.figures import Figure
from benchmarks.generated import fill
from benchmarks.serving import Served, measure_answer, measure_pages, serving

PIPELINE: Final = "month"
NODES: Final = 6
DAYS: Final = 31
RANGES_S: Final = {"1h": 3_600, "24h": 86_400, "7d": 7 * 86_400, "30d": 30 * 86_400}
ANSWER_S: Final = 1.0
USABLE_S: Final = 2.0


def run() -> list[Figure]:
    """Print and return both by range."""
    with serving(lambda store: fill(store, [PIPELINE], NODES, minutes_days=DAYS, rollup_days=DAYS)) as served:
        print(f"{NODES} nodes, {DAYS * 1_440:,} windows")
        answers = [
            measure_answer(served, f"/api/v1/pipelines/{PIPELINE}/panels?range={name}", _bare(served, of_s), ANSWER_S)
            for name, of_s in RANGES_S.items()
        ]
        paths = [f"/pipelines/{PIPELINE}?range={name}" for name in RANGES_S]
        return [*answers, *measure_pages(served, paths, "#pipeline-panels .legend .traces", USABLE_S)]


def _bare(served: Served, of_s: int) -> Callable[[], None]:
    """Read the rows of a range: its windows up to a day, else its hours."""
    windows = 'SELECT window_start, document FROM "window" WHERE pipeline = :pipeline AND window_start >= :since'
    hours = "SELECT start, packed FROM rollup WHERE pipeline = :pipeline AND period = 'hour' AND start >= :since"

    def read() -> None:
        with served.store.engine.connect() as connection:
            parameters = {"pipeline": PIPELINE, "since": int(time.time()) - of_s}
            connection.execute(text(windows if of_s <= 86_400 else hours), parameters).all()

    return read
