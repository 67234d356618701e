"""The statements that SECURITY.md has for an incident do what it says, on the tables of this version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from lagloss_server.store.canary import prepare_canary
from lagloss_server.store.store import Store

ROOT = Path(__file__).parents[4]
(BLOCK,) = re.findall(r"^```sql\n(.*?)^```$", (ROOT / "SECURITY.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
END_SESSIONS, END_CONNECTIONS, NEW_SECRET, SHOW = (
    statement.strip() for statement in BLOCK.split(";") if statement.strip()
)


@pytest.fixture
def owner(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def test_all_sessions_are_ended(owner: psycopg.Connection) -> None:
    columns = "(token_hash, login, name, role, created_at, seen_at)"
    owner.execute(f"INSERT INTO login_session {columns} VALUES ('x', 'oidc', 'ann', 'viewer', now(), now())")
    owner.execute(END_SESSIONS)
    assert owner.execute("SELECT count(*) FROM login_session").fetchone() == (0,)


def test_a_roles_connections_are_ended_and_no_other(owner: psycopg.Connection, database_url: str) -> None:
    role = f"leaked_{uuid4().hex}"
    owner.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'known'").format(sql.Identifier(role)))
    try:
        with psycopg.connect(database_url, user=role, password="known", autocommit=True) as thief:
            assert "'lagloss_collector'" in END_CONNECTIONS
            owner.execute(END_CONNECTIONS.replace("lagloss_collector", role))
            with pytest.raises(psycopg.OperationalError):
                thief.execute("SELECT 1")
        assert owner.execute("SELECT 1").fetchone() == (1,)
    finally:
        owner.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(role)))


def test_the_canary_gets_another_secret(owner: psycopg.Connection, store: Store) -> None:
    prepare_canary(store)
    before = owner.execute("SELECT secret, token FROM canary_secret").fetchall()
    owner.execute(NEW_SECRET)
    prepare_canary(store)
    after = owner.execute("SELECT secret, token FROM canary_secret").fetchall()
    assert len(before) == len(after) == 1
    assert all(old != new for old, new in zip(before[0], after[0], strict=True))


def test_what_happened_since_then_is_shown_with_all_that_the_trail_knows(
    owner: psycopg.Connection, store: Store
) -> None:
    prepare_canary(store)  # makes a token
    (since,) = re.findall(r"'(\d{4}-\d\d-\d\dT\d\d:\d\dZ)'", SHOW)
    rows = owner.execute(SHOW.replace(since, "2020-01-01T00:00Z").encode()).fetchall()
    assert "token.create" in {row[4] for row in rows}
    assert owner.execute("SELECT count(*) FROM audit_trail").fetchone() == (len(rows),)
    assert owner.execute(SHOW.replace(since, "2199-01-01T00:00Z").encode()).fetchall() == []
