"""`lagloss users`, and the passwords that it keeps."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Iterator

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.profiles import RFC_9106_LOW_MEMORY
from sqlalchemy import insert, select, update
from typer.testing import CliRunner, Result

from lagloss_server.base.errors import BadPassword, BadUserName, UnknownUser, UserExists
from lagloss_server.cli.main import app
from lagloss_server.store import users
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.dashboard import UserRow
from lagloss_server.store.store import Store

PASSWORD = "correct horse battery"
_user = table_of(UserRow)


@pytest.fixture(scope="module")
def store(module_database_url: str) -> Iterator[Store]:
    store = Store(module_database_url)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def database(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands find the test's database."""
    url = store.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    monkeypatch.setenv("LAGLOSS_DATABASE_URL", url)


def lagloss_users(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["users", *words], input=typed)


def on_a_terminal(*words: str, typed: str) -> tuple[int, str]:
    """Exit code, and what the terminal shows."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "lagloss_server.cli.main", "users", *words])
    shown = b""
    for line in typed.splitlines():
        while not shown.endswith(b": "):
            shown += os.read(terminal, 1_024)
        os.write(terminal, line.encode() + b"\n")
        shown += b"\n"
    try:
        while part := os.read(terminal, 1_024):
            shown += part
    except OSError:  # Linux says so that the other end is closed
        pass
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()


def test_people_are_added_changed_shown_and_removed(store: Store) -> None:
    added = lagloss_users("add", "Cara", "--role", "operator", typed=f"{PASSWORD}\n")
    assert (added.exit_code, added.stdout, added.stderr) == (0, "cara: operator\n", "")
    assert users.recognise(store, "cara", PASSWORD)
    assert lagloss_users("role", "cara", "viewer").exit_code == 0
    (found,) = json.loads(lagloss_users("list", "--json").stdout)
    assert (found["name"], found["role"]) == ("cara", "viewer")
    assert "password" not in str(found)
    assert lagloss_users("passwd", "cara", typed="another long password\n").exit_code == 0
    assert users.recognise(store, "cara", PASSWORD) is None
    assert users.recognise(store, "CARA", "another long password")
    assert lagloss_users("logout", "cara").stdout == "cara: ended 0 sessions\n"
    assert lagloss_users("remove", "cara").exit_code == 0
    gone = lagloss_users("remove", "cara")
    assert isinstance(gone.exception, UnknownUser)


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_shown(store: Store) -> None:
    code, shown = on_a_terminal("add", "tess", typed=f"{PASSWORD}\n{PASSWORD}\n")
    assert (code, "Password: " in shown, "Repeat the password: " in shown) == (0, True, True)
    assert PASSWORD not in shown
    code, shown = on_a_terminal("passwd", "tess", typed=f"{PASSWORD}\nanother long one\n")
    assert (code, "do not match" in shown) == (2, True)
    users.remove(store, "tess")


def test_a_name_or_password_that_cannot_be_used_is_refused_with_what_is_expected(store: Store) -> None:
    for name in ("", "a b", "-x", "é", "a" * 65, "a\0", "../x"):
        with pytest.raises(BadUserName, match="1 to 64"):
            users.add(store, name, "viewer", PASSWORD)
    for password in ("", "short", "x" * 1_001):
        with pytest.raises(BadPassword, match="12 to 1000"):
            users.add(store, "dora", "viewer", password)
    with pytest.raises(UnknownUser, match="no users exist yet"):
        users.set_password(store, "dora", PASSWORD)
    with pytest.raises(UnknownUser):
        users.set_role(store, "dora", "viewer")


def test_a_name_is_given_once(store: Store) -> None:
    users.add(store, "eli", "viewer", PASSWORD)
    with pytest.raises(UserExists):
        users.add(store, "ELI", "operator", PASSWORD)
    users.remove(store, "eli")


def test_a_password_is_the_same_however_a_keyboard_composes_it(store: Store) -> None:
    users.add(store, "uwe", "viewer", "Schlu\u0308ssel-zum-Haus")
    assert users.recognise(store, "uwe", "Schl\u00fcssel-zum-Haus")
    users.remove(store, "uwe")


def test_a_hash_is_dear_and_one_of_other_parameters_is_made_anew(store: Store) -> None:
    weak = PasswordHasher(time_cost=1, memory_cost=1_024).hash(PASSWORD)
    values = {"name": "fay", "role": "viewer", "password_hash": weak, "created_at": "2026-01-01T00:00:00Z"}
    with store.engine.begin() as connection:
        connection.execute(insert(_user).values(values))
    found = users.recognise(store, "fay", PASSWORD)
    with store.engine.begin() as connection:
        stored = connection.execute(select(_user.c.password_hash).where(_user.c.name == "fay")).scalar_one()
        assert found is not None
        assert users.hold(connection, found) == found
        connection.execute(update(_user).values(password_hash="no hash at all"))
    assert extract_parameters(stored) == RFC_9106_LOW_MEMORY
    assert users.recognise(store, "fay", PASSWORD) is None
    users.remove(store, "fay")
