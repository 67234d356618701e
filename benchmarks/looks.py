"""Looks: how long the alerter takes to judge 200 pipelines by all default rules, and how many statements that is."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
from sqlalchemy import event

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from benchmarks.generated import chain, fill
from lagloss.wire.format import WINDOW_S
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store
from tests.support.window_documents import document, store_window

PIPELINES: Final = 200
NODES: Final = 3
MINUTES_DAYS: Final = 1
ROLLUP_DAYS: Final = 8
WEEK: Final = 4
"""Pipelines with minutes of as many days as there are roll-ups."""
TARGET_S: Final = 10.0
"""A round begins this often; all pipelines together have to fit in."""


def run() -> None:
    """Print how long the first look takes, one when nothing changed, and one at a window that has just closed."""
    print(f"{PIPELINES} pipelines of {NODES} nodes, a day of windows, all rules that are on by default")
    _measure(PIPELINES, MINUTES_DAYS)
    print(f"{WEEK} pipelines with {ROLLUP_DAYS} days of windows")
    _measure(WEEK, ROLLUP_DAYS)


def _measure(pipelines: int, minutes_days: int) -> None:
    names = [f"pipeline-{number:03}" for number in range(pipelines)]
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
    ):
        Path(folder).chmod(0o711)
        migrate(postgres.url)
        with closing(Store(postgres.url)) as store:
            last_s = fill(store, names, NODES, minutes_days, ROLLUP_DAYS)
            statements = [0]
            event.listen(store.engine, "before_cursor_execute", lambda *_: statements.__setitem__(0, statements[0] + 1))
            evaluator = Evaluator(store, Notifier())
            stored = store.pipelines()

            def look(what: str, before: Callable[[Any], None] = lambda _: None) -> float:
                took_s = []
                asked = 0
                for pipeline in stored:
                    before(pipeline)
                    began, from_ = time.perf_counter(), statements[0]
                    evaluator.evaluate(pipeline)
                    took_s.append(time.perf_counter() - began)
                    asked += statements[0] - from_
                p50, p99 = np.quantile(took_s, [0.5, 0.99]) * 1_000
                total = sum(took_s)
                each = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms a pipeline, {asked / pipelines:.0f} statements"
                print(f"{what}: {total:.2f} s for all, {each}")
                return total

            look("first look")
            look("nothing changed")

            def close(pipeline: Any) -> None:
                with store.engine.begin() as connection:
                    window = document(chain(pipeline.name, NODES), last_s + WINDOW_S)
                    store_window(connection, window, last_s + WINDOW_S)

            took_s = look("a window closed", close)
            if pipelines == PIPELINES:
                print(f"asked for: {TARGET_S:.0f} s; {'ok' if took_s < TARGET_S else 'TOO SLOW'}")


if __name__ == "__main__":
    run()
