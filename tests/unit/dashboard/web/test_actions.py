"""Who may act on the dashboard, under which name, and how a backtest's process is kept in bounds."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from dashboard import actions as acts
from dashboard import backtesting
from dashboard.backtesting import backtest
from dashboard.request.current_user import LOCAL, Person, answer_for
from dashboard.request.shown_range import ShownRange
from lagloss.errors import LaglossError
from lagloss_server.base.database_url import connection_options
from lagloss_server.base.errors import BacktestBusy, BacktestFailed, BadSilence, BadText, NotAllowed, NotEnoughData
from lagloss_server.base.settings import Settings
from lagloss_server.store.store import Store


class NoStore:
    """Knows every pipeline and nothing else: whoever asks it for more fails."""

    def demand(self, name: str) -> str:
        return name


STORE = cast("Store", NoStore())
SETTINGS = Settings(database_url="postgresql://nowhere/none")
SPAN = ShownRange(0, 3_600)


def asked_by(person: Person, act: Callable[[], Any]) -> Any:
    """What comes of it when this person asks."""

    def run() -> Any:
        answer_for(person)
        return act()

    return contextvars.copy_context().run(run)


@pytest.mark.parametrize(
    "act",
    [
        lambda: acts.acknowledge(STORE, "0a"),
        lambda: acts.silence(STORE, ["a=b"], reason="known", for_s=60),
        lambda: acts.end_silence(STORE, "0f"),
        lambda: acts.rehearse(STORE, "hook"),
        lambda: backtest(STORE, SETTINGS, "chain", SPAN),
    ],
)
def test_a_viewer_may_do_nothing(act: Callable[[], Any]) -> None:
    with pytest.raises(NotAllowed, match="vera has the read-only role viewer"):
        asked_by(Person("vera", "viewer"), act)


def test_what_is_done_is_done_by_who_is_logged_in_whatever_they_typed() -> None:
    assert asked_by(Person("olga", "operator"), lambda: acts.doer("somebody else")) == "olga"


@pytest.mark.parametrize(("typed", "name"), [(None, "local"), ("  ", "local"), (" ann\n b ", "ann b")])
def test_without_a_login_it_is_the_name_that_was_typed_on_one_line(typed: str | None, name: str) -> None:
    assert asked_by(LOCAL, lambda: acts.doer(typed)) == name


@pytest.mark.parametrize(
    ("act", "kind", "told"),
    [
        (lambda: acts.doer("x" * 256), BadText, "a name is 256 characters long: expected at most 255"),
        (lambda: acts.acknowledge(STORE, "0a", "x" * 1_001), BadText, "a note"),
        (lambda: acts.silence(STORE, ["a=b"], reason="x" * 1_001, for_s=60), BadText, "a reason"),
        (lambda: acts.doer("a\0b"), BadText, "a name is text with a NUL"),
        (lambda: acts.acknowledge(STORE, "0a", "\ud800"), BadText, "a note is text with a NUL or an unpaired"),
        (lambda: acts.silence(STORE, ["a=b"], reason="\0b", for_s=60), BadText, "a reason is text"),
        (lambda: acts.silence(STORE, ["a=\udc00"], reason="known", for_s=60), BadText, "a matcher is text"),
        (lambda: acts.silence(STORE, ["a=b"] * 21, reason="known", for_s=60), BadSilence, "at most 20 matchers"),
    ],
)
def test_what_is_too_long_or_too_much_is_refused_before_it_is_written(
    act: Callable[[], Any], kind: type[LaglossError], told: str
) -> None:
    with pytest.raises(kind, match=told):
        asked_by(LOCAL, act)


def test_outside_of_a_request_nobody_may_act() -> None:
    with pytest.raises(NotAllowed, match="nobody has the read-only role viewer"):
        contextvars.Context().run(acts.acknowledge, STORE, "0a")


def tried(program: str, timeout_s: float = 30, settings: Settings = SETTINGS) -> Any:
    """A backtest by a program that gets the words of the command."""
    command = (sys.executable, "-c", program)
    return asked_by(LOCAL, lambda: backtest(STORE, settings, "chain", SPAN, command=command, timeout_s=timeout_s))


def test_a_backtest_is_given_the_database_and_the_span_and_its_document_is_read() -> None:
    told = "import json, os, sys; print(json.dumps([os.environ['LAGLOSS_DATABASE_URL'], *sys.argv[1:]]))"
    assert tried(told) == [
        "postgresql://nowhere/none", "chain",
        "--from", "1970-01-01T00:00:00Z", "--to", "1970-01-01T01:00:00Z", "--json",
    ]  # fmt: skip


def test_a_backtest_reads_the_database_where_its_url_is_in_a_file_and_no_other_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "url").write_text("postgresql://ann@db/lagloss")
    (tmp_path / "secret").write_text("s3cr3t")
    monkeypatch.setenv("LAGLOSS_DATABASE_URL_FILE", str(tmp_path / "url"))
    for name in ("LAGLOSS_DATABASE_PASSWORD_FILE", "LAGLOSS_OIDC_CLIENT_SECRET_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "secret"))
    told = (
        "import json; from lagloss_server.base.settings import Settings; s = Settings();"
        "print(json.dumps([s.require_database(), s.oidc_client_secret]))"
    )
    database, secret = tried(told, settings=Settings())
    assert connection_options(database) == {"user": "ann", "host": "db", "dbname": "lagloss", "password": "s3cr3t"}
    assert secret == ""


@pytest.mark.parametrize(
    ("program", "kind", "told"),
    [
        ("import sys; sys.stderr.write('lagloss: no window\\n'); sys.exit(4)", NotEnoughData, "^no window$"),
        ("import sys; sys.stderr.write('lagloss: bad file\\n'); sys.exit(2)", BacktestFailed, "bad file$"),
        ("import os; os.abort()", BacktestFailed, "exit code -6"),
        ("print('no json')", BacktestFailed, "its output is not JSON"),
        ("print('x' * 100)", BacktestFailed, "Choose a shorter range"),
    ],
)
def test_a_backtest_that_does_not_end_well_says_why(
    monkeypatch: pytest.MonkeyPatch, program: str, kind: type[LaglossError], told: str
) -> None:
    monkeypatch.setattr(backtesting, "MAX_BYTES", 50)
    with pytest.raises(kind, match=told):
        tried(program)


BEGUN = threading.Event()


class Begun(Settings):
    """Says when a backtest is about to be started."""

    def require_database(self) -> str:
        BEGUN.set()
        return super().require_database()


def test_a_backtest_that_takes_too_long_is_ended_and_nobody_waits_for_it() -> None:
    def endless() -> None:
        with pytest.raises(BacktestFailed, match=r"took longer than 1 s"):
            tried("import time; time.sleep(60)", 1, Begun(database_url=SETTINGS.database_url))

    running = threading.Thread(target=endless)
    running.start()
    assert BEGUN.wait(10)
    with pytest.raises(BacktestBusy):
        tried("print('[]')")
    running.join()
    assert tried("print('[]')") == []
