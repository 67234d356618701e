"""Paging: how long from the commit of a window's result to the receiver of its page, beside a bare notification."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psycopg

from lagloss.wire.format import WINDOW_S
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import spawn, terminate
from lagloss_server.store.migrate import migrate
from lagloss_server.store.store import Store
from tests.support.window_documents import CHAIN, document, store_window

PIPELINES = 20
HOURS = 24
PAGES = 300
TARGET_S = 5.0


class Pager:
    """Notes when the first message of each state of each incident about loss came, and how often there was one."""

    def __init__(self) -> None:
        self.came: dict[tuple[str, str], list[float]] = {}
        self.changed = threading.Condition()
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                pager.note(body)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def note(self, body: Any) -> None:
        incident = body["incident"]
        if incident["rule"] == "loss":
            with self.changed:
                self.came.setdefault((incident["pipeline"], incident["state"]), []).append(time.time())
                self.changed.notify_all()

    def wait(self, pipeline: str, state: str, before: int) -> float:
        """Return when the message came that followed this many."""
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.came.get((pipeline, state), ())) > before, timeout=60):
                raise TimeoutError(f"expected a message within a minute that {pipeline} is {state}, found none")
            return self.came[pipeline, state][before]

    def count(self, pipeline: str, state: str) -> int:
        return len(self.came.get((pipeline, state), ()))


def run() -> None:
    """Print how long pages take while 20 pipelines with a day of windows each are watched by all default rules."""
    with (
        tempfile.TemporaryDirectory(prefix="lagloss-bench-") as folder,
        EmbeddedPostgres(Path(folder) / "postgres") as postgres,
        _pager() as pager,
    ):
        Path(folder).chmod(0o711)
        migrate(postgres.url)
        definitions = [parse_definition(CHAIN.replace("chain", f"chain-{number}")) for number in range(PIPELINES)]
        env = {"LAGLOSS_DATABASE_URL": postgres.url, "LAGLOSS_ALERT_WEBHOOK_URL": pager.url}
        with closing(Store(postgres.url)) as store:
            next_s = _fill(store, definitions)
            bare = _bare(postgres.url, pager)
            alerter = spawn([sys.executable, "-m", "alerting"], Path(folder) / "alerting.log", env=env)
            try:
                first = _page(store, definitions[-1], next_s - WINDOW_S, pager, "loss")
                pages = _pages(store, definitions[:-1], next_s, pager)
            finally:
                terminate(alerter)
    print(f"watched: {PIPELINES} pipelines with {HOURS} h of windows each, all rules that are on by default")
    print(f"page of a loss that was there when the alerter started: {first:.1f} s after its start")
    _say("bare NOTIFY, LISTEN and POST", bare)
    _say("from a window's commit to its page", pages)
    print(f"p99 {np.quantile(pages, 0.99):.2f} s (asked for: {TARGET_S:.0f} s)")


@contextmanager
def _pager() -> Iterator[Pager]:
    pager = Pager()
    thread = threading.Thread(target=pager.server.serve_forever)
    thread.start()
    try:
        yield pager
    finally:
        pager.server.shutdown()
        pager.server.server_close()
        thread.join()


def _fill(store: Store, definitions: list[Definition]) -> int:
    """Write a day of windows for each; return the start of the next one."""
    next_s = int(time.time()) // WINDOW_S * WINDOW_S - 2 * 3_600
    for definition in definitions:
        store.apply(definition)
        with store.engine.begin() as connection:
            for start_s in range(next_s - HOURS * 3_600, next_s, WINDOW_S):
                store_window(connection, document(definition, start_s), start_s, notify=False)
    return next_s


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
        for number in range(PAGES):
            began = time.time()
            notifying.execute("NOTIFY bench")
            list(listening.notifies(timeout=5, stop_after=1))
            client.post(pager.url, json=body)
            took_s.append(pager.wait("bare", "open", number) - began)
    return took_s


def _pages(store: Store, definitions: list[Definition], next_s: int, pager: Pager) -> list[float]:
    """Time pages and their ends, one after the other, of one pipeline after the other."""
    took_s: list[float] = []
    while len(took_s) < PAGES:
        for definition in definitions:
            took_s.append(_page(store, definition, next_s, pager, "loss"))
            for number in range(1, 4):
                ended = _page(store, definition, next_s + number * WINDOW_S, pager, "ok" if number == 3 else "")
            took_s.append(ended)
        next_s += 4 * WINDOW_S
    return took_s


def _page(store: Store, definition: Definition, start_s: int, pager: Pager, verdict: str) -> float:
    """Commit a window and wait for the message that follows from it, if one does; return the seconds between."""
    state = "open" if verdict == "loss" else "resolved"
    before = pager.count(definition.name, state)
    lost = {"src->mid": (400, 400)} if verdict == "loss" else None
    with store.engine.begin() as connection:
        store_window(connection, document(definition, start_s, verdict=verdict or "ok", lost=lost), start_s)
    began = time.time()
    return pager.wait(definition.name, state, before) - began if verdict else 0.0


def _say(what: str, took_s: list[float]) -> None:
    p50, p99, most = np.quantile(took_s, [0.5, 0.99, 1.0]) * 1_000
    print(f"{what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {most:.0f} ms, {len(took_s)} measured")
