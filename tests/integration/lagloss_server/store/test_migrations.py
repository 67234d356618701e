"""The migrations and the models have the same tables, and what is in them goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import alembic.command
import psycopg
import pytest
from sqlalchemy import text

from lagloss.errors import EXIT_UNREACHABLE
from lagloss_server.base.errors import NotUnicode, TablesBehind, TablesUnknown
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.migrate import demand_newest, migrate, revisions
from lagloss_server.store.partitions import ensure_days
from lagloss_server.store.store import Store
from tests.support.alerting_world import START, close_windows, only_loss
from tests.support.next_version import REVISION, config, go_back, next_version
from tests.support.window_documents import documents

MIGRATE = "import sys; from lagloss_server.store.migrate import migrate; migrate(sys.argv[1])"


def test_migrations_lead_to_the_models_tables(database_url: str, store: Store) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [1_780_000_020])  # day partitions are no difference
    alembic.command.check(config(database_url))


def test_the_way_down_and_up_again_works(database_url: str, store: Store) -> None:
    alembic.command.downgrade(config(database_url), "base")
    with store.engine.connect() as connection:
        left = connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).scalars()
        assert set(left) == {"alembic_version"}
        functions = text("SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace")
        assert connection.execute(functions).all() == []
    alembic.command.upgrade(config(database_url), "head")
    alembic.command.check(config(database_url))


def test_what_is_stored_goes_on_in_the_next_versions_tables_and_back_in_this_ones(
    database_url: str, store: Store, tmp_path: Path
) -> None:
    store.apply(only_loss())
    close_windows(store, "oL")
    with store.engine.begin() as connection:  # of a version that nobody knows; it stands in no migration's way
        odd = "INSERT INTO pipeline (name, version, applied_at, definition) VALUES ('odd', 7, 0, '[]')"
        connection.execute(text(odd))
    before = documents(store.windows("chain", START, START + 120))
    with next_version(tmp_path):
        with pytest.raises(TablesBehind):
            demand_newest(store.engine)
        migrate(database_url)
        demand_newest(store.engine)
        with store.engine.connect() as connection:
            losses = connection.execute(text('SELECT losses FROM "window" ORDER BY window_start')).scalars().all()
        assert losses == [f"chain lost {window['lost']['min']}" for window in before]
        assert documents(store.windows("chain", START, START + 120)) == before
        go_back(database_url)
    demand_newest(store.engine)
    alembic.command.check(config(database_url))
    assert documents(store.windows("chain", START, START + 120)) == before
    assert [each.name for each in store.versions()] == ["chain"]
    assert [each.name for each in store.versions().unreadable] == ["7"]


def test_tables_of_another_version_are_refused_with_what_to_do(database_url: str, store: Store, tmp_path: Path) -> None:
    demand_newest(store.engine)
    newest = revisions()[0]
    with next_version(tmp_path):
        behind = rf"{newest}.* needs {REVISION}. Run `python -m lagloss_server.ops.prepare`"
        with pytest.raises(TablesBehind, match=behind):
            demand_newest(store.engine)
        migrate(database_url)
    unknown = f"revision {REVISION} of a newer lagloss; this one supports revisions up to {newest}"
    with pytest.raises(TablesUnknown, match=unknown):
        demand_newest(store.engine)
    with pytest.raises(TablesUnknown):
        migrate(database_url)


@pytest.mark.parametrize("service", ["aggregator", "collector", "dashboard"])
def test_a_service_ends_where_the_tables_are_of_a_newer_version(
    service: str, database_url: str, store: Store, kafka_bootstrap: str, tmp_path: Path
) -> None:
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    environment = {
        **os.environ,
        "LAGLOSS_DATABASE_URL": database_url,
        "LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "LAGLOSS_DATA_DIR": str(tmp_path),
        "LAGLOSS_METRICS_PORT": "0",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", service], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "of a newer lagloss" in done.stderr) == (EXIT_UNREACHABLE, True), done.stderr


def test_of_four_that_migrate_at_once_each_finds_the_newest_tables(database_url: str, store: Store) -> None:
    alembic.command.downgrade(config(database_url), "base")
    with ThreadPoolExecutor(4) as pool:
        processes = [
            pool.submit(
                subprocess.run,
                [sys.executable, "-c", MIGRATE, database_url],
                capture_output=True, text=True, timeout=120, check=False,
            )
            for _ in range(4)
        ]  # fmt: skip
    assert [(done.result().returncode, done.result().stderr) for done in processes] == [(0, "")] * 4
    demand_newest(store.engine)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text_is_refused(postgres: EmbeddedPostgres, encoding: str) -> None:
    name = f"encoded_{encoding.lower()}"
    locale = "LOCALE_PROVIDER libc LOCALE 'C' TEMPLATE template0"
    with psycopg.connect(postgres.database_url("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' {locale}".encode())
    with pytest.raises(NotUnicode, match=encoding):
        migrate(postgres.database_url(name))
    postgres.drop_database(name)
