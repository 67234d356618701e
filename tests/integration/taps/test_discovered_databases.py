"""`lagloss tap discover` proposes the tables of a real PostgreSQL that hold the ids of topics of a real Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.ops.checks import Check
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.table_checks import check_tables
from taps.discovery import table_survey
from taps.discovery.guessing import TopicGuess
from taps.discovery.table_survey import TableSurvey
from tests.conftest import fresh_database
from tests.support.closers import wait_until
from tests.support.tapped_tables import TappedDatabase, tapped_database
from tests.unit.taps.test_discovery import topic

RECORDS = 300


@dataclass(frozen=True)
class Warehouse:
    """Topic and group of the test's own, with orders whose ids are in tables of `shop`."""

    bootstrap: str
    orders: str
    sink: str
    shop: TappedDatabase
    begin_ms: int

    def fill(self, table: str) -> None:
        """Write the orders into a table with the columns id and at, and have its role read it."""
        rows = [(f"o-{number:05}", (self.begin_ms + number) / 1_000) for number in range(RECORDS)]
        with self.shop.owner.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} (id, at) VALUES (%s, to_timestamp(%s))", rows)  # type: ignore[arg-type]
        self.shop.owner.execute(f"GRANT USAGE ON SCHEMA public TO {self.shop.role}")  # type: ignore[arg-type]
        self.shop.owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {self.shop.role}")  # type: ignore[arg-type]

    def discover(self) -> tuple[Definition, str, str]:
        """Return the proposed definition, its text, and what stderr says."""
        env = {**os.environ, "LAGLOSS_KAFKA_BOOTSTRAP": self.bootstrap}
        command = [sys.executable, "-m", "lagloss_server.cli.main", "tap", "discover", "--group", self.sink]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return parse_definition(done.stdout), done.stdout, done.stderr

    def tapped(self) -> dict[str, tuple[str, ...]]:
        """Return by table that is proposed its columns: id, event time, cursor."""
        taps = [tap.table for tap in self.discover()[0].table_taps]
        return {table.table: (table.id, table.event_time, table.cursor or "") for table in taps}


def is_committed(consumer: Consumer, place: TopicPartition) -> bool:
    """Commit; False while the broker has not taken up the group, as in its first seconds."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.NOT_COORDINATOR:
            raise
        return False
    return True


@pytest.fixture
def warehouse(kafka_bootstrap: str, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    word = uuid.uuid4().hex[:6]
    orders, sink = f"orders-{word}", f"sink-{word}"
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(orders, 1, 1)]).values():
        created.result(30)
    begin_ms = time.time_ns() // 1_000_000 - 20_000
    producer = Producer({"bootstrap.servers": kafka_bootstrap, "log_level": 0})
    for number in range(RECORDS):
        order = {"order_id": f"o-{number:05}", "created_at": begin_ms + number}
        producer.produce(orders, json.dumps(order), timestamp=begin_ms + number + 1_000)
    assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": kafka_bootstrap, "group.id": sink, "log_level": 0})
    wait_until(lambda: is_committed(consumer, TopicPartition(orders, 0, 10)), 30, "for the group's coordinator")
    consumer.close()
    with fresh_database(postgres) as url, tapped_database(url, monkeypatch) as shop:
        shop.owner.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield Warehouse(kafka_bootstrap, orders, sink, shop, begin_ms)
    admin.delete_topics([orders])


def test_a_table_with_the_ids_of_a_topic_is_proposed_as_doctor_accepts_it(warehouse: Warehouse) -> None:
    warehouse.shop.owner.execute(
        """CREATE TABLE stock (id text PRIMARY KEY, at timestamptz, note text);
        CREATE TABLE "Orders" (id text, at timestamptz, "stored on" timestamptz NOT NULL DEFAULT now(),
            n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text);
        CREATE TABLE empty (id text)"""
    )
    warehouse.fill('"Orders"')
    warehouse.shop.owner.execute('INSERT INTO stock SELECT md5(n::text), at, body FROM "Orders"')
    warehouse.shop.owner.execute(
        f'GRANT SELECT ON SEQUENCE "Orders_n_seq" TO {warehouse.shop.role}'  # type: ignore[arg-type]
    )
    definition, text, said = warehouse.discover()
    (tap,) = definition.table_taps
    assert (tap.node, tap.places) == (warehouse.sink, ("out",))
    assert (tap.table.table, tap.table.id, tap.table.event_time, tap.table.cursor) == ("public.Orders", "id", "at", "n")
    assert f"# 100% of the newest ids in public.Orders of shop also occur in {warehouse.orders}" in text
    assert "1 of 3 tables connected (33%)" in said
    assert "1 empty: public.empty of shop" in said
    assert "1 no ids of a topic: public.stock of shop" in said
    (check,) = check_tables([tap])
    assert check == Check("table public.Orders of shop", "ok", "read by n, a sequence")


@pytest.mark.parametrize(
    ("columns", "cursor"),
    [
        ("n bigserial PRIMARY KEY, x xid8 NOT NULL DEFAULT pg_current_xact_id()", "n"),
        ("n bigserial, x xid8 NOT NULL DEFAULT pg_current_xact_id()", "x"),
        ("written timestamptz NOT NULL DEFAULT now(), n bigint NOT NULL DEFAULT 0", "written"),
        ("written timestamptz NOT NULL DEFAULT clock_timestamp(), x xid8 NOT NULL DEFAULT pg_current_xact_id()", "x"),
    ],
)
def test_the_best_cursor_is_proposed(warehouse: Warehouse, columns: str, cursor: str) -> None:
    warehouse.shop.owner.execute(f"CREATE TABLE orders (id text, at timestamptz, {columns})")  # type: ignore[arg-type]
    warehouse.fill("orders")
    warehouse.shop.owner.execute(
        f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA public TO {warehouse.shop.role}"  # type: ignore[arg-type]
    )
    assert warehouse.tapped() == {"public.orders": ("id", "at", cursor)}


def test_what_a_table_without_a_cursor_lacks_is_what_makes_it_tapped(warehouse: Warehouse) -> None:
    warehouse.shop.owner.execute("CREATE TABLE orders (id text PRIMARY KEY, at timestamptz NOT NULL DEFAULT now())")
    warehouse.fill("orders")
    definition, text, said = warehouse.discover()
    assert not definition.table_taps
    assert "1 no cursor: public.orders of shop" in said
    (advice,) = (line for line in text.splitlines() if "ALTER TABLE" in line)
    statements = advice.partition("add one: ")[2].split("; ")
    assert len(statements) == 2
    for statement in statements:
        warehouse.shop.owner.execute(statement)  # type: ignore[arg-type]
    assert warehouse.tapped() == {"public.orders": ("id", "at", "lagloss_xid")}


def test_a_right_that_is_missing_is_named(warehouse: Warehouse) -> None:
    warehouse.shop.owner.execute("CREATE TABLE orders (id text, at timestamptz, n bigserial PRIMARY KEY)")
    warehouse.fill("orders")
    assert "GRANT SELECT ON SEQUENCE orders_n_seq is missing" in warehouse.discover()[1]
    warehouse.shop.owner.execute(f"REVOKE SELECT ON orders FROM {warehouse.shop.role}")  # type: ignore[arg-type]
    definition, _, said = warehouse.discover()
    assert not definition.table_taps
    assert "1 denied: public.orders of shop" in said


def test_the_newest_rows_of_a_partitioned_table_are_compared(warehouse: Warehouse) -> None:
    warehouse.shop.owner.execute(
        """CREATE TABLE orders (id text, at timestamptz, written timestamptz NOT NULL DEFAULT now())
            PARTITION BY RANGE (at);
        CREATE TABLE orders_all PARTITION OF orders DEFAULT;
        CREATE INDEX ON orders (written)"""
    )
    warehouse.fill("orders")
    assert warehouse.tapped() == {"public.orders": ("id", "at", "written")}


def test_the_newest_rows_are_found_by_time_rather_than_by_any_number(warehouse: Warehouse) -> None:
    owner = warehouse.shop.owner
    owner.execute(
        """CREATE TABLE orders (customer int DEFAULT 0, id text, at timestamptz);
        INSERT INTO orders SELECT n, 'old-' || n, '2020-01-01' FROM generate_series(1, 5000) n;
        CREATE INDEX ON orders (customer);
        CREATE INDEX ON orders (at)"""
    )
    warehouse.fill("orders")
    ids = [f"o-{number:05}" for number in range(RECORDS)]
    (guess,) = surveyed([topic("o", ids, 0)]).guesses
    assert len(guess.rows.times("$.id")) == table_survey.ROWS


def test_a_database_that_is_away_is_skipped(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_TABLES_SHOP_URL", "postgresql://nobody:secret@127.0.0.1:1/shop")
    _, _, said = warehouse.discover()
    assert "Skipping the tables of shop: " in said
    assert "secret" not in said
    assert "Traceback" not in said


def surveyed(topics: list[TopicGuess]) -> TableSurvey:
    survey = TableSurvey(topics)
    survey.run(["shop"])
    return survey


def test_a_survey_reads_the_end_of_large_tables_alone(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = warehouse.shop.owner
    owner.execute("CREATE TABLE orders (id text, at timestamptz)")
    owner.execute("INSERT INTO orders SELECT 'old-' || n, now() FROM generate_series(1, 200000) n")
    warehouse.fill("orders")
    (guess,) = surveyed([topic("o", [f"o-{number:05}" for number in range(RECORDS)], 0)]).guesses
    assert len(guess.rows.times("$.id")) <= table_survey.ROWS
    plan = owner.execute("EXPLAIN SELECT id FROM orders WHERE ctid >= '(1000,0)'::tid LIMIT 2000").fetchall()
    assert "Tid Range Scan" in str(plan)


def test_a_table_that_is_locked_has_no_response(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_survey, "TIMEOUT", "200ms")
    warehouse.shop.owner.execute("CREATE TABLE orders (id text, at timestamptz)")
    warehouse.fill("orders")
    with psycopg.connect(warehouse.shop.url) as blocking:
        blocking.execute("LOCK orders")
        survey = surveyed([topic("o", ["o-00001"], 0)])
        assert survey.reasons == {"public.orders of shop": "no response"}
