"""Paging: how long from the commit of a window's result to the receiver of its page, beside a bare notification."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

import httpx2
import numpy as np
import psycopg
from sqlalchemy import func, select, update

from benchmarks.database import fresh_database, read_documents
from benchmarks.figures import Figure
from benchmarks.generated import add_minute, fill
from benchmarks.services import running
from benchmarks.timing import Stopwatch, cpu_s
from lagloss.wire.format import WINDOW_S
from lagloss_server.store.schema.alerting import JudgedWindowsRow
from lagloss_server.store.schema.core import EmitterRow
from lagloss_server.store.store import Store
from tests.fakes.http_receiver import HttpReceiver, Reply, Request

PIPELINES = 10_000
NODES = 2
FILLED_MINUTES = 5
MINUTES = 3
BREACHING = 20
"""Pipelines that lose messages in each of these minutes."""
TOGETHER = 100
"""Pipelines whose windows are committed, or read, together."""
BARE = 300
REPORTED_S = 60.0
"""Nodes report this often, else they are silent."""
IDLE = 0.05
"""Cores that the alerter takes when no window closes."""
TARGET_S = 5.0


class Pager(HttpReceiver):
    """Notes when the messages of each state of each incident about loss came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: dict[tuple[str, str], list[float]] = {}
        self.changed = threading.Condition()

    def answer(self, request: Request) -> Reply:
        incident = request.json()["incident"]
        if incident["rule"] == "loss":
            with self.changed:
                self.came.setdefault((incident["pipeline"], incident["state"]), []).append(time.time())
                self.changed.notify_all()
        return Reply(204)

    def wait(self, pipeline: str, state: str, before: int) -> float:
        """Return when the message came that followed this many."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.came.get((pipeline, state), ())) > before, timeout=60):
                raise TimeoutError(f"expected a message within a minute that {pipeline} is {state}, found none")
            return self.came[pipeline, state][before]


def run() -> list[Figure]:
    """Print how long pages take while a window of each of 10,000 pipelines closes per minute, and what that costs."""
    names = [f"pipeline-{number:05}" for number in range(PIPELINES)]
    with fresh_database() as (folder, postgres, store), Pager() as pager:
        next_s = fill(store, names, NODES, FILLED_MINUTES / 1_440, 0, lossy=0) + WINDOW_S
        bare = _bare(postgres.url, pager)
        servers = [process.pid for process in postgres.processes]
        with Stopwatch(*servers) as spent:
            _pages(store, names, set(), next_s, pager)
            with psycopg.connect(postgres.url, autocommit=True) as connection:
                read_documents(connection, names, next_s, TOGETHER)
        _say_cpu("written and read, no alerter", spent)
        env = {"LAGLOSS_DATABASE_URL": postgres.url, "LAGLOSS_ALERT_WEBHOOK_URL": pager.url}
        began_s, pages = time.monotonic(), list[float]()
        with running("alerting", folder, env) as alerter:
            _wait_until_idle(store, alerter.pid)
            print(f"{PIPELINES:,} pipelines judged {time.monotonic() - began_s:.0f} s after the alerter's start")
            for minute in range(MINUTES):
                next_s += WINDOW_S
                time.sleep(max(0.0, next_s + WINDOW_S - time.time()))
                with Stopwatch(alerter.pid, *servers) as spent:
                    pages += _pages(store, names, set(names[minute :: PIPELINES // BREACHING]), next_s, pager)
                    _wait_until_idle(store, alerter.pid)
                _say_cpu("written and looked at", spent)
    _say("bare NOTIFY, LISTEN and POST", bare)
    _say("from a window's commit to its page", pages)
    p99_s, bare_s = (float(np.quantile(took_s, 0.99)) for took_s in (pages, bare))
    what = f"from a window's commit to its page, p99, {PIPELINES:,} pipelines"
    return [Figure(what, p99_s, "s", TARGET_S, bare_s, "bare NOTIFY, LISTEN and POST")]


def _say_cpu(what: str, spent: Stopwatch) -> None:
    took = ", ".join(f"{seconds:.1f}" for seconds in (spent.own_s, *spent.others_s.values()))
    print(f"a window of each {what}: {spent.wall_s:.1f} s; CPU of this process, alerter and servers in s: {took}")


def _bare(database_url: str, pager: Pager) -> list[float]:
    """Measure a notification and a request without an alerter between them."""
    took_s = []
    body = {"incident": {"rule": "loss", "pipeline": "bare", "state": "open"}}
    with (
        psycopg.connect(database_url, autocommit=True) as listening,
        psycopg.connect(database_url, autocommit=True) as notifying,
        httpx2.Client() as client,
    ):
        listening.execute("LISTEN bench")
        for number in range(BARE):
            began = time.time()
            notifying.execute("NOTIFY bench")
            list(listening.notifies(timeout=5, stop_after=1))
            client.post(pager.url, json=body)
            took_s.append(pager.wait("bare", "open", number) - began)
    return took_s


def _pages(store: Store, names: Sequence[str], lossy: Collection[str], start_s: int, pager: Pager) -> list[float]:
    """Commit a window of each pipeline, a hundred at once, and wait for the pages of the lossy ones; return the seconds
    between."""
    began_s = dict[str, float]()
    for index in range(0, len(names), TOGETHER):
        part = names[index : index + TOGETHER]
        add_minute(store, part, NODES, start_s, lossy)
        began_s |= dict.fromkeys((name for name in part if name in lossy), time.time())
    return [pager.wait(name, "open", 0) - start_s for name, start_s in began_s.items()]


def _wait_until_idle(store: Store, alerter: int) -> None:
    """Wait until all pipelines have been judged, and the alerter has nothing to do; nodes report meanwhile."""
    judged = select(func.count()).select_from(JudgedWindowsRow)
    reported_s = time.monotonic()
    while True:
        before_s = cpu_s(alerter)
        time.sleep(1.0)
        with store.engine.begin() as connection:
            if time.monotonic() - reported_s > REPORTED_S:
                reported_s = time.monotonic()
                connection.execute(update(EmitterRow).values(appended_at=int(time.time() * 1_000)))
            if cpu_s(alerter) - before_s < IDLE and connection.execute(judged).scalar_one() == PIPELINES:
                return


def _say(what: str, took_s: list[float]) -> None:
    p50, p99, most = np.quantile(took_s, [0.5, 0.99, 1.0]) * 1_000
    print(f"{what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {most:.0f} ms, {len(took_s)} measured")
