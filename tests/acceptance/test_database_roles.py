"""The services, each as a role of PostgreSQL with the least rights, over TLS: all that they do works, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from psycopg.conninfo import make_conninfo
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from lagloss.broker.topics import connect, create_missing, create_topics
from lagloss.sdk.emitter import Emitter
from lagloss.wire.format import Progress
from lagloss_server.base.errors import DatabaseUnreachable
from lagloss_server.model.definition import parse_definition
from lagloss_server.ops.embedded.kafka import EmbeddedKafka
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.processes import LOOPBACK, choose_port, spawn, terminate
from lagloss_server.store.migrate import migrate
from lagloss_server.store.rights import ADDS, AUDIT, PRUNES, WRITES, grant
from lagloss_server.store.schema import alerting, audit, canary, dashboard, taps  # noqa: F401  # their tables are registered
from lagloss_server.store.schema.core import PARTITIONED, Base
from lagloss_server.store.store import Store
from tests.integration.conftest import YAML
from tests.support.closers import wait_until
from tests.support.secured_kafka import Authority
from tests.support.tls_front import tls_front
from tests.support.window_documents import documents

OWNER = "lagloss_owner"
DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: src, to: [snk]}
    - {name: snk}
  grace: 1s
"""
TAPPED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: src, to: [snk], taps: {out: {topic: NAME, id: $.id, eventTime: $.at}}}
    - {name: snk}
"""
SECRET_READERS = {
    "token": {"lagloss_collector", "lagloss_cli"},
    "login_user": {"lagloss_dashboard", "lagloss_cli"},
    "login_session": {"lagloss_dashboard", "lagloss_cli"},
    "audit_trail": {"lagloss_aggregator", "lagloss_dashboard", "lagloss_cli"},
    "canary_secret": {"lagloss_canary"},
}
"""Who reads what not everybody may; all else every role reads."""
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
CLI = [sys.executable, "-m", "lagloss_server.cli.main"]


@dataclass(frozen=True)
class Roles:
    """A database that its owner has prepared. `url` is of one role, over TLS whose certificate is verified."""

    port: int
    authority: Authority
    database: str
    passwords: Path

    def url(self, role: str) -> str:
        place = {"host": "localhost", "hostaddr": LOOPBACK, "port": str(self.port), "dbname": self.database}
        tls = {"sslmode": "verify-full", "sslrootcert": str(self.authority.path)}
        return make_conninfo(user=role, passfile=str(self.passwords), **place, **tls)

    def environment(self, role: str, **more: str) -> dict[str, str]:
        return {**os.environ, "LAGLOSS_DATABASE_URL": self.url(role), **more}


@pytest.fixture(scope="module")
def roles(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    folder = tmp_path_factory.mktemp("roles")
    authority = Authority(folder / "authority")
    passwords = folder / "pgpass"
    passwords.touch(mode=0o600)
    passwords.write_text("".join(f"*:*:*:{role}:word of {role}\n" for role in (OWNER, *WRITES)))
    with EmbeddedPostgres(folder / "postgres") as postgres:
        name = f"roles_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(postgres.database_url("postgres"), autocommit=True) as connection:
            for role in (OWNER, *WRITES):
                connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'word of {role}'".encode())
            connection.execute(f"GRANT lagloss_aggregator TO {OWNER}".encode())
            connection.execute(f"CREATE DATABASE {name} OWNER {OWNER}".encode())
        with tls_front(postgres.port, *authority.issue("postgres")) as port:
            yield Roles(port, authority, name, passwords)


@dataclass(frozen=True)
class Service:
    """A process of a service that starts or runs."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def await_well(self) -> str:
        """Return its address once it answers."""
        wait_until(lambda: self.process.poll() is not None or _is_well(self.url), 120, f"for {self.log.stem}")
        assert self.process.poll() is None, self.log.read_text()
        return self.url


@contextmanager
def service(module: str, role: str, roles: Roles, bootstrap: str, folder: Path) -> Iterator[Service]:
    """A service that starts as this role. Its log says nothing of a right that it has not."""
    port = choose_port(module)
    variable = {"aggregator": "METRICS"}.get(module, module.upper())
    more = {
        f"LAGLOSS_{variable}_PORT": str(port),
        "LAGLOSS_KAFKA_BOOTSTRAP": bootstrap,
        "LAGLOSS_DATA_DIR": str(folder / module),
        "LAGLOSS_SPARK_DRIVER_MEMORY": "1g",
    }
    log = folder / f"{module}.log"
    process = spawn([sys.executable, "-P", "-m", module], log, env=roles.environment(role, **more))
    try:
        yield Service(f"http://{LOOPBACK}:{port}", process, log)
    finally:
        terminate(process, 20)
    assert "permission denied" not in log.read_text()
    assert "word of" not in log.read_text()


def _is_well(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/healthz", timeout=5).is_success
    except httpx2.TransportError:
        return False


def test_every_table_has_a_writer_and_none_that_is_not_there() -> None:
    written = {name for writes in WRITES.values() for name in writes}
    others = {*ADDS.values(), *(name for names in PRUNES.values() for name in names)}
    by_prepare = {"canary_secret"}  # whose role owns all tables
    assert written | others | by_prepare == set(Base.metadata.tables)
    assert AUDIT not in written


def test_a_certificate_of_another_authority_is_refused(roles: Roles, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other", "another CA").path
    url = make_conninfo(roles.url(OWNER), sslrootcert=str(other))
    with closing(Store(url)) as store, pytest.raises(DatabaseUnreachable, match="certificate verify failed"):
        store.check()
    with closing(Store(make_conninfo(url, sslmode="disable"))) as store, pytest.raises(DatabaseUnreachable):
        store.check()


def test_each_role_has_the_rights_of_the_table_and_no_other(roles: Roles) -> None:
    migrate(roles.url(OWNER))
    found = set()
    with closing(Store(roles.url(OWNER))) as store, store.engine.begin() as connection:
        assert grant(connection) == sorted(WRITES)
        grant(connection)  # again, as each `prepare` does
        for role, table, right in product(WRITES, [*Base.metadata.tables, "alembic_version"], RIGHTS):
            asked = text("SELECT has_table_privilege(:role, :table, :right)")
            if connection.execute(asked, {"role": role, "table": f'"{table}"', "right": right}).scalar_one():
                found.add((role, table, right))
    changes = {"INSERT", "UPDATE", "DELETE"}
    expected = {(role, table, right) for role, tables in WRITES.items() for table in tables for right in changes}
    expected |= {(role, table, "INSERT") for role, table in ADDS.items()}
    expected |= {(role, table, "DELETE") for role, tables in PRUNES.items() for table in tables}
    expected |= {
        (role, table, "SELECT")
        for role in WRITES
        for table in [*Base.metadata.tables, "alembic_version"]
        if role in SECRET_READERS.get(table, WRITES)
    }
    owned = {("lagloss_aggregator", table.name, right) for table in PARTITIONED for right in RIGHTS}
    assert (found - owned, expected - found) == (expected - owned, set())


@pytest.mark.parametrize("role", sorted(WRITES))
def test_hashes_of_secrets_are_read_by_those_that_check_them_only(roles: Roles, role: str) -> None:
    with closing(Store(roles.url(OWNER))) as store, store.engine.begin() as connection:
        migrate(roles.url(OWNER))
        grant(connection)
    with closing(Store(roles.url(role))) as store, store.engine.connect() as connection:
        for table, column in (
            ("token", "secret_hash"),
            ("login_user", "password_hash"),
            ("login_session", "token_hash"),
        ):
            for asked in (f"SELECT {column} FROM {table}", f"SELECT count(*) FROM {table}", f"TABLE {table}"):
                may = (
                    nullcontext() if role in SECRET_READERS[table] else pytest.raises(ProgrammingError, match="denied")
                )
                with may, connection.begin():
                    connection.execute(text(asked))


@pytest.mark.slow
def test_each_service_does_its_work_as_a_role_of_its_own(roles: Roles, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    name = f"roles-{uuid.uuid4().hex[:8]}"
    prepare = [sys.executable, "-m", "lagloss_server.ops.prepare"]
    for _ in range(2):  # a second time, with days that the aggregator owns
        subprocess.run(
            prepare, env=roles.environment(OWNER, LAGLOSS_KAFKA_BOOTSTRAP=kafka.bootstrap), timeout=120, check=True
        )
    create_topics(kafka.bootstrap)
    with ExitStack() as stack:
        store = stack.enter_context(closing(Store(roles.url("lagloss_cli"))))
        services = [
            stack.enter_context(service(module, f"lagloss_{module}", roles, kafka.bootstrap, tmp_path))
            for module in ("collector", "aggregator", "alerting", "dashboard", "taps")
        ]
        serve = [each.await_well() for each in services]
        put = httpx2.put(f"{serve[0]}/v1/pipelines/{name}", content=DEFINITION.replace("NAME", name), headers=YAML)
        assert put.is_success, put.text
        assert _reads_by_tap(store, serve[3], kafka.bootstrap, f"tapped-{name}") == 3
        start_s = int(time.time()) // 60 * 60
        with losing(kafka.bootstrap, name):
            (window,) = wait_until(lambda: _closed(store, name, start_s), 150, "the window")
        assert window["lost"] == {"min": 120, "max": 120}
        cli = roles.environment("lagloss_cli", LAGLOSS_KAFKA_BOOTSTRAP=kafka.bootstrap, LAGLOSS_DATA_DIR=str(tmp_path))
        assert _run(cli, "recompute", name, "--from", "-5m", "--to", "now").returncode == 0
        incident = wait_until(lambda: _incidents(store), 60, "an incident")[0]
        headers = {"Origin": serve[3], "Content-Type": "application/json"}
        answer = httpx2.post(f"{serve[3]}/api/v1/incidents/{incident}/acknowledge", json={}, headers=headers)
        assert answer.is_success, answer.text
        assert (
            _run(
                cli, "alerts", "silence", f"pipeline={name}", "--for", "1h", "--reason", "test", "--author", "ada"
            ).returncode
            == 0
        )
        assert _run(cli, "token", "create", name).returncode == 0
        migrate(roles.url(OWNER))
    for role in WRITES:
        with closing(Store(roles.url(role))) as narrow, narrow.engine.connect() as connection:
            for table in set(Base.metadata.tables) - {*WRITES[role], *PRUNES.get(role, ())}:
                with pytest.raises(ProgrammingError, match="permission denied"), connection.begin():
                    connection.execute(text(f'DELETE FROM "{table}"'))
            for change in ("UPDATE audit_trail SET actor = 'eve'", "TRUNCATE audit_trail"):
                with pytest.raises(ProgrammingError, match="permission denied"), connection.begin():
                    connection.execute(text(change))
    with closing(Store(roles.url("lagloss_cli"))) as store, store.engine.connect() as connection:
        entries = "SELECT action, known_by FROM audit_trail WHERE pipelines @> to_jsonb(ARRAY[:name])"
        noted = {tuple(row) for row in connection.execute(text(entries), {"name": name})}
    assert noted >= {
        ("definition.apply", "machine"), ("recompute", "command"), ("incident.acknowledge", "none"),
        ("silence.create", "command"), ("token.create", "command"),
    }  # fmt: skip


def _reads_by_tap(store: Store, address: str, bootstrap: str, name: str) -> int:
    """The number of records that a tap has read of three, as the dashboard answers once it is more than none."""
    create_missing(connect(bootstrap)[0], [NewTopic(name, 1, 1)])
    producer = Producer({"bootstrap.servers": bootstrap})
    for at in range(3):
        producer.produce(name, json.dumps({"id": f"m-{at}", "at": int(time.time() * 1_000)}).encode())
    assert producer.flush(20) == 0
    store.apply(parse_definition(TAPPED.replace("NAME", name)))
    url = f"{address}/api/v1/pipelines/{name}/taps"

    def read() -> int:
        (tap,) = httpx2.get(url).json()
        return int(tap["records"])

    return wait_until(read, 60, "the tap")


class NothingWaits:
    """The progress of an input of which everything has been taken in."""

    def snapshot(self) -> list[Progress]:
        return [Progress("snk.in", "in/0", int(time.time() * 1_000))]


@contextmanager
def losing(bootstrap: str, name: str) -> Iterator[None]:
    """A fifth of this minute's messages is lost; one window of it opens an incident."""
    with Emitter(name, "src", bootstrap, first=True) as src, Emitter(name, "snk", bootstrap) as snk:
        snk.follow(NothingWaits())
        event_ms = int(time.time() * 1_000)
        for at in range(600):
            src.received(f"m-{at}", event_ms)
            src.sent(f"m-{at}", event_ms)
            if at % 5:
                snk.received(f"m-{at}", event_ms)
                snk.sent(f"m-{at}", event_ms)
        yield


def _closed(store: Store, name: str, start_s: int) -> list[dict[str, Any]]:
    """The window, once nothing is pending: what is sent at the end of a minute is not overtaken when it closes."""
    found = documents(store.windows(name, start_s, start_s + 120))
    return [window for window in found if window["state"] == "closed" and window["messages"] and not window["pending"]]


def _incidents(store: Store) -> list[str]:
    with store.engine.connect() as connection:
        return [str(found) for found in connection.execute(text("SELECT id FROM incident")).scalars()]


def _run(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*CLI, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "permission denied" not in done.stderr, done.stderr
    assert done.returncode == 0, done.stderr + done.stdout
    return done
