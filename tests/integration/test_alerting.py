"""Alerting on a real PostgreSQL, posting to a real HTTP server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sqlalchemy import select, text, update

from alerting.incidents import Incidents
from lagloss.store import Store
from lagloss.tables import Incident, OutboxMessage
from tests.window_documents import chain, document, store_missing, store_window

START = int(time.time()) // 60 * 60 - 1_800


class Receiver:
    """Answers with the next of `answers` (200 when there are no more) and keeps what it was sent."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.hold = threading.Event()
        self.hold.set()
        self.came: list[tuple[str, dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.came.append((self.headers["webhook-id"], body))
                receiver.hold.wait(30)
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?token=secret-token"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    @property
    def types(self) -> list[str]:
        return [body["type"] for _, body in self.came]

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    yield server
    server.close()


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    store = Store(database_url)
    store.apply(chain())
    yield store
    store.engine.dispose()


@contextmanager
def alerter(database_url: str, webhook: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    environment = {
        **os.environ,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_ALERT_WEBHOOK_URL": webhook,
        "LAGLOSS_DASHBOARD_URL": "http://127.0.0.1:8050",
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "alerting"],
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


def until(condition: Callable[[], Any], what: str, timeout_s: float = 30) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail(f"waited {timeout_s} s in vain for: {what}")


def close_window(store: Store, minute: int, verdict: str, lost: int = 0, revision: int = 1, **more: Any) -> None:
    start_s = START + 60 * minute
    with store.engine.begin() as connection:
        window = document(
            chain(),
            start_s,
            verdict=verdict,
            messages=100,
            lost={"src->mid": (lost, lost)} if lost else None,
            revision=revision,
            **more,
        )
        store_window(connection, window, start_s)
        if lost and revision == 1:
            for number in range(lost):
                name = f"m-{minute}-{number}"
                store_missing(connection, "chain", start_s, name, kind="lost", place="link src->mid", last="src.out")


def rows(store: Store, table: type[Incident] | type[OutboxMessage]) -> list[Any]:
    with store.engine.connect() as connection:
        return list(connection.execute(select(table.__table__).order_by(table.id)))


def test_an_incident_is_opened_updated_and_resolved_and_each_is_posted_once_and_in_order(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    with alerter(database_url, receiver.url) as process:
        close_window(store, 0, "ok")
        close_window(store, 1, "loss", lost=30)
        until(lambda: receiver.types == ["incident.opened"], "the opening")
        close_window(store, 2, "loss", lost=40)
        until(lambda: len(receiver.came) == 2, "the update")
        close_window(store, 3, "unknown")
        close_window(store, 4, "ok")
        until(lambda: len(receiver.came) == 3, "the resolve")
        assert receiver.types == ["incident.opened", "incident.updated", "incident.resolved"]
        assert len({webhook_id for webhook_id, _ in receiver.came}) == 3
        assert len({body["incident"]["id"] for _, body in receiver.came}) == 1
        opened, resolved = receiver.came[0][1], receiver.came[2][1]
        assert opened["breach"]["value"] == pytest.approx(0.3)
        assert len(opened["examples"]) == 20
        assert opened["where"] == [{"kind": "link", "name": "src->mid", "lost": 30, "share": 1.0}]
        assert opened["links"]["dashboard"].startswith("http://127.0.0.1:8050/?pipeline=chain&window=")
        assert resolved["breach"]["worst"] == pytest.approx(0.4)
        assert resolved["incident"]["resolved_because"] == "recovered"
        [incident] = rows(store, Incident)
        assert (incident.state, incident.first_window, incident.last_window) == ("resolved", START + 60, START + 120)
        until(lambda: all(row.sent_at for row in rows(store, OutboxMessage)), "all to be recorded as sent")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == 0, output
        assert "alerting_stopped" in output
        assert "secret-token" not in output


def test_a_window_revised_from_loss_to_ok_resolves_its_incident_and_says_so(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    with alerter(database_url, receiver.url):
        close_window(store, 1, "loss", lost=30)
        until(lambda: receiver.types == ["incident.opened"], "the opening")
        close_window(store, 1, "ok", revision=2)
        until(lambda: len(receiver.came) == 2, "the resolve")
        assert receiver.came[1][1]["incident"]["resolved_because"] == "revised"
        close_window(store, 1, "loss", lost=20, revision=3)
        until(lambda: len(receiver.came) == 3, "the window that is lossy again to open a new one")
        assert receiver.types[2] == "incident.opened"
        assert len(rows(store, Incident)) == 2


def test_a_busy_receiver_is_tried_again_and_told_once(database_url: str, store: Store, receiver: Receiver) -> None:
    receiver.answers = [503, 429]
    with alerter(database_url, receiver.url):
        close_window(store, 1, "loss", lost=30)
        until(lambda: len(receiver.came) == 3, "the third attempt")
        [message] = until(lambda: [row for row in rows(store, OutboxMessage) if row.sent_at], "the record")
        assert (message.attempts, message.last_error, message.failed_at) == (3, None, None)
        assert len({webhook_id for webhook_id, _ in receiver.came}) == 1


def test_a_receiver_that_refuses_is_not_asked_again_and_the_next_message_still_goes(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    receiver.answers = [410]
    with alerter(database_url, receiver.url):
        close_window(store, 1, "loss", lost=30)
        [failed] = until(lambda: [row for row in rows(store, OutboxMessage) if row.failed_at], "the failure")
        assert (failed.last_error, failed.sent_at, failed.attempts) == ("HTTP 410", None, 1)
        close_window(store, 2, "ok")
        until(lambda: receiver.types == ["incident.opened", "incident.resolved"], "the resolve")


def test_an_update_that_nobody_tried_to_send_gives_way_to_a_newer_one(store: Store) -> None:
    [pipeline] = store.pipelines()
    incidents = Incidents(store, notify=True)
    for minute, changes in ((1, ["opened"]), (2, ["updated"]), (3, ["updated"])):
        close_window(store, minute, "loss", lost=10 * minute)
        assert incidents.evaluate(pipeline) == changes
    assert [row.change for row in rows(store, OutboxMessage)] == ["opened", "updated"]
    close_window(store, 4, "idle")
    assert incidents.evaluate(pipeline) == ["resolved"]
    assert [row.change for row in rows(store, OutboxMessage)] == ["opened", "resolved"]


def test_without_a_webhook_the_incident_is_recorded_and_nothing_is_queued(database_url: str, store: Store) -> None:
    close_window(store, 1, "loss", lost=30)
    with alerter(database_url, ""):
        until(lambda: rows(store, Incident), "the incident")
        close_window(store, 2, "ok")
        until(lambda: rows(store, Incident)[0].state == "resolved", "its end")
    assert rows(store, OutboxMessage) == []


def test_history_windows_page_nobody(store: Store) -> None:
    close_window(store, 1, "loss", lost=30, history=True)
    [pipeline] = store.pipelines()
    assert Incidents(store, notify=True).evaluate(pipeline) == []


def test_a_message_committed_before_a_kill_is_sent_after_the_restart(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    close_window(store, 1, "loss", lost=30)
    [pipeline] = store.pipelines()
    Incidents(store, notify=True).evaluate(pipeline)  # committed, and nobody lives to send it
    with alerter(database_url, receiver.url):
        until(lambda: receiver.types == ["incident.opened"], "the opening")
        until(lambda: rows(store, OutboxMessage)[0].sent_at, "the record")
    assert len(rows(store, Incident)) == 1


def test_an_alerter_killed_while_sending_leaves_a_message_that_its_successor_sends(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    receiver.hold.clear()
    with alerter(database_url, receiver.url) as first:
        close_window(store, 1, "loss", lost=30)
        until(lambda: receiver.came, "the first attempt")
        first.kill()
        first.wait()
    receiver.hold.set()
    with store.engine.begin() as connection:  # the lease of the dead one, cut short
        connection.execute(update(OutboxMessage).values(next_attempt_at=text("now()")))
    with alerter(database_url, receiver.url):
        until(lambda: rows(store, OutboxMessage)[0].sent_at, "the record")
    assert receiver.types == ["incident.opened", "incident.opened"]
    assert len({webhook_id for webhook_id, _ in receiver.came}) == 1
    assert len(rows(store, Incident)) == 1


def test_of_two_alerters_one_leads_and_the_other_takes_over_without_doubles(
    database_url: str, store: Store, receiver: Receiver
) -> None:
    with alerter(database_url, receiver.url) as first, alerter(database_url, receiver.url):
        close_window(store, 1, "loss", lost=30)
        until(lambda: receiver.types == ["incident.opened"], "the opening")
        until(lambda: rows(store, OutboxMessage)[0].sent_at, "the record")
        first.kill()
        first.wait()
        close_window(store, 2, "ok")
        until(lambda: receiver.types == ["incident.opened", "incident.resolved"], "the resolve", 15)


def test_a_lost_database_connection_is_made_again(database_url: str, store: Store, receiver: Receiver) -> None:
    with alerter(database_url, receiver.url):
        close_window(store, 1, "loss", lost=30)
        until(lambda: receiver.came, "the opening")
        with store.engine.connect() as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        close_window(store, 2, "ok")
        until(lambda: len(receiver.came) == 2, "the resolve")
