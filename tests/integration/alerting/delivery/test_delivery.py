"""From an incident's change to its receivers, though alerters are killed, stopped and replaced on the way."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from lagloss_server.store.schema.alerting import IncidentRow, OutboxMessageRow
from lagloss_server.store.store import Store
from tests.support.alerting_world import (
    Somebody,
    alerter,
    alerting_file,
    close_windows,
    rows,
    somebody,
    webhook,
)
from tests.support.closers import wait_until
from tests.support.dying.alerter import POINTS
from tests.support.kafka_log import wait_for


def outcomes(store: Store) -> list[str | None]:
    return [row.outcome for row in rows(store, OutboxMessageRow)]


def let_claims_run_out(store: Store) -> None:
    """As waiting for them would."""
    with store.engine.begin() as connection:
        connection.execute(update(OutboxMessageRow).values(next_attempt_at=text("clock_timestamp()")))


@pytest.mark.slow
def test_killed_between_any_two_steps_it_tells_at_least_once_of_one_incident(
    database_url: str, watched: Store, receiver: Somebody, tmp_path: Path
) -> None:
    close_windows(watched, "ll")
    for number, point in enumerate(POINTS):
        marker = tmp_path / f"{number}.died"
        with alerter(database_url, receiver.url, ("tests.support.dying.alerter", point, marker)) as process:
            assert process.wait(30) == -signal.SIGKILL, point
        assert marker.read_text() == point
        let_claims_run_out(watched)
        assert len(rows(watched, IncidentRow)) == (0 if point == "before the commit" else 1)
    assert outcomes(watched) == ["sent"]
    with alerter(database_url, receiver.url):
        close_windows(watched, "ooo", first=2)
        wait_for(lambda: outcomes(watched) == ["sent", "sent"], what="the resolve")
    # after the sending, and after the record, which is why the first attempt was followed by another
    assert receiver.types == ["opened", "opened", "resolved"]
    assert len({body["incident"]["id"] for body in receiver.bodies}) == 1
    assert len({webhook_id for webhook_id, _ in receiver.came}) == 2


def test_a_busy_receiver_is_tried_again_and_told_once(database_url: str, watched: Store, receiver: Somebody) -> None:
    receiver.answers = [503]
    with alerter(database_url, receiver.url):
        close_windows(watched, "ll")
        wait_for(lambda: outcomes(watched) == ["sent"], what="the record")
        [message] = rows(watched, OutboxMessageRow)
        assert (message.attempts, message.last_error) == (2, None)
        assert len({webhook_id for webhook_id, _ in receiver.came}) == 1


def test_what_a_receiver_refuses_is_not_sent_again_and_goes_to_the_fallback_with_the_reason(
    database_url: str, watched: Store, receiver: Somebody, tmp_path: Path
) -> None:
    receiver.answers = [410]
    with somebody() as other:
        receivers = {"hook": webhook(receiver.url), "other": webhook(other.url)}
        file = alerting_file(tmp_path, receivers, routes=[{"to": ["hook"]}], fallback="other")
        with alerter(database_url, LAGLOSS_ALERTING_FILE=file):
            close_windows(watched, "ll")
            wait_for(lambda: outcomes(watched) == ["failed", "sent"], what="the fallback")
            refused = rows(watched, OutboxMessageRow)[0]
            assert (refused.last_error, refused.attempts) == ("HTTP 410", 1)
            assert other.bodies[0]["notes"] == ["receiver hook refused this: HTTP 410"]
            close_windows(watched, "ooo", first=2)
            wait_for(lambda: len(other.came) == 2, what="the resolve")
        assert receiver.types == ["opened"]
        assert other.types == ["opened", "resolved"]


def test_a_receiver_that_hangs_delays_nobody_else(
    database_url: str, watched: Store, receiver: Somebody, tmp_path: Path
) -> None:
    receiver.hold.clear()
    with somebody() as other:
        file = alerting_file(tmp_path, {"hook": webhook(receiver.url), "other": webhook(other.url)})
        with alerter(database_url, LAGLOSS_ALERTING_FILE=file):
            close_windows(watched, "ll")
            wait_for(lambda: bool(receiver.came), what="the attempt that hangs")
            close_windows(watched, "ooo", first=2)
            wait_for(lambda: other.types == ["opened", "resolved"], what="the other receiver", timeout_s=5)
            assert receiver.types == ["opened"]
            receiver.hold.set()
            wait_for(lambda: set(outcomes(watched)) == {"sent"}, what="the rest")
            assert receiver.types[-1] == "resolved"


def test_of_two_alerters_one_leads_and_the_other_takes_over_without_doubles(
    database_url: str, watched: Store, receiver: Somebody
) -> None:
    with alerter(database_url, receiver.url) as first, alerter(database_url, receiver.url):
        close_windows(watched, "ll")
        wait_for(lambda: outcomes(watched) == ["sent"], what="the opening")
        first.kill()
        first.wait()
        close_windows(watched, "ooo", first=2)
        wait_for(lambda: receiver.types == ["opened", "resolved"], what="the resolve", timeout_s=15)


def leader_among(store: Store, processes: list[Any]) -> Any:
    """The process whose session owns the lead."""
    with store.engine.connect() as connection:
        owner = connection.execute(text("SELECT owner FROM lease WHERE work = 'alerting'")).scalar() or "//"
    return next((process for process in processes if owner.split("/")[1] == str(process.pid)), None)


@pytest.mark.slow
def test_an_alerter_that_is_stopped_with_the_lead_in_its_hands_loses_it_and_sends_nothing_when_it_wakes(
    database_url: str, watched: Store, receiver: Somebody
) -> None:
    with ExitStack() as stack:
        processes = [stack.enter_context(alerter(database_url, receiver.url)) for _ in range(2)]
        wait_until(lambda: leader_among(watched, processes) is not None, 20, "for a leader")
        stopped = leader_among(watched, processes)
        stopped.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        close_windows(watched, "ll")
        wait_until(lambda: receiver.types == ["opened"], 15, "for the opening by the other")
        print(f"takeover from a stopped leader: {time.monotonic() - began:.1f} s, 15 s at most")
        close_windows(watched, "ooo", first=2)
        wait_for(lambda: receiver.types == ["opened", "resolved"], what="the resolve")
        stopped.send_signal(signal.SIGCONT)
        close_windows(watched, "ll", first=5)
        wait_for(lambda: receiver.types[2:] == ["reopened"], what="the next")
        assert leader_among(watched, processes) is not stopped
        assert len(rows(watched, OutboxMessageRow)) == 3


def test_a_lost_database_connection_is_made_again(database_url: str, watched: Store, receiver: Somebody) -> None:
    with alerter(database_url, receiver.url):
        close_windows(watched, "ll")
        wait_for(lambda: bool(receiver.came), what="the opening")
        with watched.engine.connect() as connection:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        close_windows(watched, "ooo", first=2)
        wait_for(lambda: len(receiver.came) == 2, what="the resolve")


def test_without_a_receiver_incidents_are_recorded_and_whoever_is_named_later_hears_of_what_is_open_then(
    database_url: str, watched: Store, receiver: Somebody
) -> None:
    close_windows(watched, "ll")
    with alerter(database_url):
        wait_for(lambda: bool(rows(watched, IncidentRow)), what="the incident")
    assert rows(watched, OutboxMessageRow) == []
    with alerter(database_url, receiver.url):
        wait_for(lambda: receiver.types == ["opened"], what="the opening")


def test_a_page_comes_within_seconds_of_its_window(database_url: str, watched: Store, receiver: Somebody) -> None:
    took_s = []
    with alerter(database_url, receiver.url):
        close_windows(watched, "L")
        wait_for(lambda: bool(receiver.came), what="the opening")
        for round_number in range(4):
            before = len(receiver.came)
            began = time.time()
            close_windows(watched, "ooo" if round_number % 2 == 0 else "L", first=1 + 4 * round_number)
            wait_for(lambda before=before: len(receiver.came) > before, what="the next message")
            took_s.append(receiver.came_at[-1] - began)
    print(f"from closing to receiver: {max(took_s):.2f} s at most, 5 s allowed")
    assert max(took_s) < 5


def test_an_alerting_file_that_is_wrong_ends_it_with_file_and_line(database_url: str, tmp_path: Path) -> None:
    file = alerting_file(tmp_path, {"hook": webhook("http://127.0.0.1:1")}, fallback="nobody")
    with alerter(database_url, LAGLOSS_ALERTING_FILE=file) as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 2
    assert f"{file}:" in output
    assert "nobody" in output
