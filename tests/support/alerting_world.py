"""What tests of alerting share: a pipeline with one rule, windows that close, an alerter, and somebody who is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import Connection, select

from alerting.incidents.evaluator import Evaluator
from lagloss.wire.traces import TraceContext
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.store.schema.alerting import IncidentChangeRow, IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.support.window_documents import CHAIN, document, store_missing, store_window

START = int(time.time()) // 60 * 60 - 3_600
MESSAGES = 1_000
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
"""Of every message that a window of this world has lost."""
OFF = ("uncertainLoss", "lag", "onTime", "staleness", "budget", "blind", "deadLetters", "filtered", "volume",
       "duplicates", "corruption")  # fmt: skip
ONLY_LOSS = f"{{{', '.join(f'{name}: off' for name in OFF)}}}"


def only_loss(more: str = "", name: str = "chain") -> Definition:
    """A pipeline whose only rule is the one on loss: a lossy window opens it, 2 of 3 page, 3 good ones end it. `more`:
    further YAML of `spec.alerts`."""
    rules = json.dumps(yaml.safe_load(ONLY_LOSS) | yaml.safe_load(f"{{{more}}}"))
    labelled = CHAIN.replace("name: chain", f"name: {name}, labels: {{team: checkout}}")
    return parse_definition(f"{labelled}  alerts: {rules}\n")


class Somebody:
    """A webhook's receiver: answers with the next of `answers` (200 when there are no more) once it is not held, and
    keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.hold = threading.Event()
        self.hold.set()
        self.came: list[tuple[str, dict[str, Any]]] = []
        self.came_at: list[float] = []
        somebody = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                somebody.came.append((self.headers["webhook-id"], body))
                somebody.came_at.append(time.time())
                somebody.hold.wait(30)
                self.send_response(somebody.answers.pop(0) if somebody.answers else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=secret-token"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    @property
    def types(self) -> list[str]:
        return [body["type"].removeprefix("incident.") for _, body in self.came]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.came]

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@contextmanager
def somebody() -> Iterator[Somebody]:
    server = Somebody()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def alerter(database_url: str, webhook: str = "", module: Sequence[str] = ("alerting",), **more: str) -> Iterator[Any]:
    """A process of the alerter; killed at the end if it still runs."""
    environment = {
        **os.environ,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_ALERT_WEBHOOK_URL": webhook,
        "LAGLOSS_DASHBOARD_URL": "http://127.0.0.1:8050",
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *map(str, module)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def alerting_file(folder: Path, receivers: dict[str, dict[str, Any]], **more: Any) -> str:
    """Writes an alerting file with these receivers, each told of everything if no `routes` are given; its path."""
    document: dict[str, Any] = {
        "apiVersion": "lagloss/v1",
        "kind": "Alerting",
        "receivers": [{"name": name, **transport} for name, transport in receivers.items()],
        "routes": [{"to": list(receivers)}],
        **more,
    }
    path = folder / "alerting.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def webhook(url: str) -> dict[str, Any]:
    return {"webhook": {"url": url, "allowPrivate": True}}


def minutes_ago(minutes: int) -> int:
    """The number of the window that began so long ago, however long ago this module was imported."""
    return (int(time.time()) - START) // 60 - minutes


def close_window(
    store: Store, minute: int, verdict: str, lost: int = 0, revision: int = 1, *, name: str = "chain", **more: Any
) -> None:
    """As the closer does: a result, over the older revision if there is one, and its lost messages."""
    with store.engine.begin() as connection:
        _close(connection, minute, verdict, lost, revision, name=name, **more)


def close_windows(store: Store, verdicts: str, first: int = 0, **more: Any) -> None:
    """Windows that are closed together, one a letter: `l` has lost 40 of 1,000, `L` 400; `o` is ok, `u` unknown, `i`
    idle."""
    meaning = {"l": ("loss", 40), "L": ("loss", 400), "o": ("ok", 0), "u": ("unknown", 0), "i": ("idle", 0)}
    with store.engine.begin() as connection:
        for number, letter in enumerate(verdicts):
            _close(connection, first + number, *meaning[letter], **more)


def _close(
    connection: Connection,
    minute: int,
    verdict: str,
    lost: int,
    revision: int = 1,
    *,
    name: str = "chain",
    **more: Any,
) -> None:
    start_s = START + 60 * minute
    place = {"src->mid": (lost, lost)} if lost else None
    window = document(only_loss(name=name), start_s, verdict=verdict, lost=place, revision=revision, **more)
    store_window(connection, window, start_s)
    for number in range(lost if revision == 1 else 0):
        message = f"m-{minute}-{number}"
        found = {"kind": "lost", "place": "link src->mid", "last": "src.out", "trace": TRACE}
        store_missing(connection, name, start_s, message, **found)


def rows(store: Store, table: type[IncidentRow] | type[IncidentChangeRow] | type[OutboxMessageRow]) -> list[Any]:
    """All rows, in the order in which they came."""
    order = table.opened_at if table is IncidentRow else table.id
    with store.engine.connect() as connection:
        return list(connection.execute(select(table.__table__).order_by(order)))


def evaluate(store: Store, by: Evaluator) -> list[str]:
    """Every pipeline once; the changes made, in order, as `RULE CHANGE`."""
    return [change for pipeline in store.pipelines() for change in by.evaluate(pipeline)]
