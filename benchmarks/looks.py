"""Looks: what it costs the alerter and PostgreSQL to look at pipelines by all default rules, beside bare SELECTs."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Final

import psycopg

from alerting.incidents.evaluator import Evaluator
from alerting.incidents.notifier import Notifier
from alerting.rounds import AT_ONCE
from benchmarks.database import fresh_database, read_documents
from benchmarks.figures import Figure
from benchmarks.generated import LOSSY, add_minute, fill
from benchmarks.timing import Stopwatch
from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import StoredPipeline
from lagloss_server.store.store import Store

NODES: Final = 3
DAY: Final = 200
"""Pipelines with a day of windows, all of which an alerter that takes over reads."""
WEEK: Final = 4
"""Pipelines with minutes of as many days as there are roll-ups."""
ALL: Final = 10_000
ALL_MINUTES: Final = 15
"""Windows of each of these, none lossy: all are settled. What a look costs hardly hangs on how many there are."""
PART: Final = 1_000
"""Pipelines that are filled and looked at for the first time together."""
SIZED: Final = 20
"""Pipelines whose memory is measured."""
ROLLUP_DAYS: Final = 8
TAKEOVER_S: Final = 10.0
LOOK_MS: Final = 1.5
"""CPU of alerter and PostgreSQL together for a pipeline with a new window."""
REPEATS: Final = 3


def run() -> list[Figure]:
    """Print what a first look costs, one when nothing changed, and one at a window of each that has just closed."""
    takeover_s, _ = _measure(DAY, 1, ROLLUP_DAYS, "a day of windows")
    _measure(WEEK, ROLLUP_DAYS, ROLLUP_DAYS, f"{ROLLUP_DAYS} days of windows")
    _, look_ms = _measure(ALL, ALL_MINUTES / 1_440, 0, f"{ALL_MINUTES} minutes of windows, no roll-ups")
    return [
        Figure(f"a cold takeover of {DAY} pipelines", takeover_s, "s", TAKEOVER_S),
        Figure(f"a look at {ALL:,} pipelines, CPU each", look_ms, "ms", LOOK_MS),
    ]


def _measure(pipelines: int, minutes_days: float, rollup_days: int, filled: str) -> tuple[float, float]:
    """Return the seconds that another alerter takes to look at all for the first time, and the CPU in ms of a look at a
    new window of each."""
    names = [f"pipeline-{number:05}" for number in range(pipelines)]
    with fresh_database() as (_, postgres, store), psycopg.connect(postgres.url, autocommit=True) as bare:
        print(f"{pipelines:,} pipelines of {NODES} nodes with {filled} each, all rules that are on by default")
        leading, stored = Evaluator(store, Notifier()), dict[str, StoredPipeline]()
        servers = [process.pid for process in postgres.processes]

        def say(what: str, spent: Stopwatch) -> None:
            wall, own, server = (took * 1_000 / pipelines for took in (spent.wall_s, spent.own_s, spent.servers_s))
            cpu = f"CPU {own + server:.2f} ms a pipeline, of it PostgreSQL {server:.2f} ms"
            print(f"{what}: {spent.wall_s:.2f} s for all, {wall:.2f} ms a pipeline, {cpu}", flush=True)

        def look(
            evaluator: Evaluator, names: Sequence[str], starts_s: Sequence[int] = (), spent: Stopwatch | None = None
        ) -> Stopwatch:
            """Look as the alerter does; return what that takes, added to what was spent before."""
            spent = spent or Stopwatch(*servers)
            closed = {name: starts_s for name in names if starts_s}
            with spent:
                due = evaluator.find_due({name: stored[name].version for name in names})
                due = list(dict.fromkeys([*due, *closed]))
                for at in range(0, len(due), AT_ONCE):
                    news = evaluator.assess_news([stored[name] for name in due[at : at + AT_ONCE]], closed)
                    for findings in news.findings:
                        evaluator.apply(findings)
                    for name in news.unread:
                        evaluator.evaluate(stored[name])
            return spent

        read, first = Stopwatch(*servers), Stopwatch(*servers)
        for index in range(0, pipelines, PART):  # within a minute or two, else nodes have fallen silent
            part = names[index : index + PART]
            fill(store, part, NODES, minutes_days, rollup_days, lossy=LOSSY if rollup_days else 0)
            stored |= {name: store.pipeline(name) for name in part}
            with read:
                for name in part:
                    bare.execute('SELECT document FROM "window" WHERE pipeline = %s', [name]).fetchall()
            look(leading, part, spent=first)
        say("bare SELECT of all these documents", read)
        say("first look", first)
        takeover = look(Evaluator(store, Notifier()), names)
        say("first look of another alerter, which takes over", takeover)
        print(f"memory of a pipeline: {_memory(store, names[:SIZED]) / 1_000:.0f} kB")
        spent_ms = []
        for start_s in _minutes(REPEATS):
            add_minute(store, names, NODES, start_s)
            with Stopwatch(*servers) as read:
                read_documents(bare, names, start_s, AT_ONCE)
            say("bare SELECT of a new window of each", read)
            with Stopwatch(*servers) as read:
                leading.find_lossy({key: [start_s] for key in names})
            say("find which of these windows are lossy, to be evaluated first", read)
            closed = look(leading, names, [start_s])
            spent_ms.append((closed.own_s + closed.servers_s) * 1_000 / pipelines)
            say("a window closed in each", closed)
            say("nothing changed", look(leading, names))
    return takeover.wall_s, sorted(spent_ms)[len(spent_ms) // 2]


def _memory(store: Store, names: Sequence[str]) -> float:
    """Return the bytes that an alerter holds of each of these pipelines once it has looked at it, its definition and
    rules included."""
    evaluator = Evaluator(store, Notifier())
    evaluator.evaluate(store.pipeline(names[0]))  # what is loaded once
    tracemalloc.start()
    try:
        pipelines = [store.pipeline(name) for name in names]
        for pipeline in pipelines:
            evaluator.evaluate(pipeline)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(names)
    finally:
        tracemalloc.stop()


def _minutes(count: int) -> Iterator[int]:
    """Yield the newest minutes that are over, oldest first; wait for those that are not."""
    newest_s = int(time.time()) // WINDOW_S * WINDOW_S - 2 * WINDOW_S
    for _ in range(count):
        time.sleep(max(0.0, newest_s + 2 * WINDOW_S - time.time()))
        yield newest_s
        newest_s += WINDOW_S
