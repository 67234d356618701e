"""`lagloss reports` as people type it, and the dashboard that mails by itself, on a real PostgreSQL and mail server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text
from typer.testing import CliRunner

from dashboard.reports.schedule.cli import app
from lagloss.errors import LaglossError
from lagloss_server.store.store import Store
from tests.fakes.mail import Mailbox, smtp_server
from tests.support.incident_rows import store_receiver
from tests.support.kafka_log import wait_for
from tests.support.window_documents import chain

ADA, BOB = "ada@a.example", "bob@b.example"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with smtp_server(Mailbox()) as running:
        yield running


@pytest.fixture
def file(tmp_path: Path, mailbox: Mailbox, database_url: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reports file with one report, which the settings name, and the one pipeline that it is of."""
    store.apply(chain(), 0)
    report = {
        "name": "daily",
        "pipelines": "all",
        "range": "-24h",
        "rrule": "FREQ=DAILY",
        "formats": ["md"],
        "to": [ADA],
    }
    mail = {"host": "127.0.0.1", "port": mailbox.port, "tls": "none", "from": "lagloss <lagloss@l.example>"}
    path = tmp_path / "reports.yaml"
    path.write_text(yaml.safe_dump({"apiVersion": "lagloss/v1", "kind": "Reports", "mail": mail, "reports": [report]}))
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", database_url)
    monkeypatch.setenv("LAGLOSS_REPORTS_FILE", str(path))
    return path


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and what was said."""
    done = CliRunner().invoke(app, list(arguments))
    if isinstance(done.exception, LaglossError):
        return done.exception.exit_code, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_send_mails_now_to_whom_it_is_told_and_leaves_the_schedule_alone(
    file: Path, mailbox: Mailbox, store: Store
) -> None:
    code, said = run("send", "daily", "--to", f"Bob <{BOB}>")
    assert (code, said.splitlines()[-1].endswith(f"sent to {BOB}")) == (0, True)
    assert run("send", "daily")[0] == 0
    assert [recipients for recipients, _ in mailbox.mails] == [[BOB], [ADA]]
    assert len({mail["Message-ID"] for _, mail in mailbox.mails}) == 2
    assert [each.get_content_type() for each in mailbox.mails[0][1].iter_attachments()] == ["text/markdown"]
    with store.engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM report_run")).scalar_one() == 0


def test_send_queues_a_report_for_its_receivers_each_time(file: Path, mailbox: Mailbox, store: Store) -> None:
    file.write_text(file.read_text().replace("rrule:", "receivers: [chat]\n  rrule:"))
    code, said = run("send", "daily")
    assert (code, "receiver chat: the active alerter has no receiver of this name" in said) == (1, True)
    with store.engine.begin() as connection:
        store_receiver(connection, "chat", "slack")
    for _ in range(2):
        code, said = run("send", "daily")
        assert (code, said.splitlines()[-1].endswith(f"sent to {ADA}, receiver chat")) == (0, True)
    assert run("send", "daily", "--to", BOB)[0] == 0
    with store.engine.connect() as connection:
        keys = connection.execute(text("SELECT body->>'idempotency_key' FROM outbox")).scalars().all()
    assert len(set(keys)) == len(keys) == 2


def test_send_says_why_the_mail_server_did_not_take_it(file: Path, mailbox: Mailbox) -> None:
    mailbox.answers = {ADA: "550 no such user"}
    code, said = run("send", "daily")
    assert code == 1
    assert f"daily was not sent: the mail server rejected 1 of 1 recipients: {ADA}: 550 no such user" in said


def test_a_report_or_address_that_is_none_is_refused(file: Path, mailbox: Mailbox) -> None:
    assert run("send", "weekly") == (2, f"No report is named weekly; existing reports: daily. Reports are in {file}.")
    code, said = run("send", "daily", "--to", "a@b.example\r\nBcc: c@d.example")
    assert code == 2
    assert "Expected --to to be one email address" in said
    assert mailbox.mails == []


def test_list_shows_when_each_is_due_next_and_what_became_of_it_last(file: Path, store: Store) -> None:
    heads, line = run("list")[1].splitlines()
    assert heads.split() == ["report", "pipelines", "range", "to", "next", "last", "due", "outcome"]
    assert line.split()[:4] == ["daily", "all", "-24h", ADA]
    assert line.split()[-2:] == ["–", "–"]
    with store.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO report_run (report, schedule, due_at, attempts, outcome, last_error) "
                "VALUES ('daily', 'FREQ=DAILY UTC', '2026-11-16T00:00Z', 3, 'failed', '550 no')"
            )
        )
    line = run("list")[1].splitlines()[1]
    assert "Mon 2026-11-16 00:00 UTC" in line
    assert line.rstrip().endswith("failed after 3 attempts: 550 no")


def test_check_shows_the_next_three_times_and_sends_nothing(file: Path, mailbox: Mailbox) -> None:
    code, said = run("check", str(file))
    assert code == 0
    assert said.splitlines()[1].count("00:00 UTC") == 3
    assert mailbox.mails == []


def test_check_names_file_and_line_of_an_error_and_a_secret_that_is_missing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMTP_PASSWORD", raising=False)
    examples = Path(__file__).parents[4] / "examples/reports.yaml"
    assert run("check", str(examples)) == (
        2, "Expected a secret in the environment variable SMTP_PASSWORD, found no such variable.",
    )  # fmt: skip
    file.write_text(file.read_text().replace("FREQ=DAILY", "FREQ=SOMETIMES"))
    code, said = run("check")
    assert code == 2
    assert said.startswith(f"{file}:")
    assert "found SOMETIMES" in said


def test_without_a_file_the_commands_say_how_to_name_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAGLOSS_REPORTS_FILE")
    code, said = run("list")
    assert code == 2
    assert "LAGLOSS_REPORTS_FILE" in said


def test_the_dashboard_mails_what_is_due_and_ends_when_told(file: Path, mailbox: Mailbox, store: Store) -> None:
    with store.engine.begin() as connection:  # yesterday's was sent: today's is missed
        connection.execute(
            text(
                "INSERT INTO report_run (report, schedule, due_at, outcome, done_at) "
                "SELECT 'daily', 'FREQ=DAILY UTC', date_trunc('day', now(), 'UTC') - interval '1 day', 'sent', now()"
            )
        )
    dashboard = subprocess.Popen([sys.executable, "-m", "dashboard"], env=os.environ.copy(), stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: bool(mailbox.mails), timeout_s=60, what="the mail")
    finally:
        dashboard.terminate()
        assert dashboard.wait(20) == -signal.SIGTERM  # uvicorn takes its leave with the signal it got
    ((recipients, mail),) = mailbox.mails
    assert recipients == [ADA]
    assert mail["Subject"].startswith("SLA report daily: ")


def test_lagloss_leads_to_the_commands() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "lagloss_server.cli.main", "reports", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(command in said for command in ("list", "send", "check"))
