"""Kafka Connect's JDBC sink, tapped by its group and its table: rows that are there are delivered, records that it
skips are lost there by name, and a kill loses nothing."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.model.window import Interval
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from pipeline_under_test.harness.measured import ALL_NAMES, CERTAIN
from pipeline_under_test.harness.stack import ScenarioStack
from tests.conftest import fresh_database
from tests.programs import need
from tests.support.kafka_connect import JDBC, ConnectWorker
from tests.support.kafka_log import wait_for
from tests.support.tapped_pipelines import Tapped
from tests.support.tapped_tables import TappedDatabase, tapped_database

pytestmark = pytest.mark.slow

STORED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - name: shop
      to: [warehouse]
      taps: {out: {topic: NAME.orders, id: $.payload.order_id, eventTime: $.payload.created_at}}
    - name: warehouse
      taps:
        in: {group: connect-NAME-warehouse}
        out: {database: shop, table: public.orders, id: order_id, eventTime: created_at, cursor: lagloss_xid}
  grace: 2s
  maxWait: 60s
  lookback: 10m
"""
CURSOR = """
ALTER TABLE orders ADD lagloss_xid xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX ON orders (lagloss_xid)
"""
"""As docs/sinks.md has it."""
SCHEMA = {
    "type": "struct",
    "fields": [
        {"field": "order_id", "type": "string", "optional": False},
        {"field": "created_at", "type": "int64", "optional": False},
        {"field": "quantity", "type": "int32", "optional": False},
    ],
}
ORDERS = 3_000
SKIPPED_EACH = 60


@pytest.fixture(scope="module")
def shop(postgres: EmbeddedPostgres) -> Iterator[TappedDatabase]:
    with fresh_database(postgres) as url, pytest.MonkeyPatch.context() as patch, tapped_database(url, patch) as shop:
        yield shop


@pytest.fixture
def tapped(jars: None, shop: TappedDatabase, tmp_path: Path) -> Iterator[Tapped]:
    need("kafka-connect")
    need("kafka-connect-jdbc")
    with ScenarioStack() as stack:
        store = Store(stack.settings.require_database())
        try:
            yield Tapped(f"shop-{uuid.uuid4().hex[:8]}", stack, store, tmp_path)
        finally:
            store.close()


def connector(name: str, shop: TappedDatabase) -> dict[str, str]:
    """The connector that docs/sinks.md shows, for a role that owns the table."""
    role = f"{shop.role}_sink"
    shop.owner.execute(
        sql.SQL("CREATE ROLE {0} LOGIN PASSWORD 'secret'; GRANT USAGE, CREATE ON SCHEMA public TO {0}").format(
            sql.Identifier(role)
        )
    )
    options = conninfo_to_dict(shop.url)
    return {
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": "1",
        "topics": f"{name}.orders",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "connection.url": f"jdbc:postgresql://{options['host']}:{options['port']}/{options['dbname']}",
        "connection.username": role,
        "connection.password": "secret",
        "collection.name.format": "orders",
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "order_id",
        "schema.evolution": "basic",
        "errors.tolerance": "all",
        "consumer.override.auto.offset.reset": "earliest",
    }


def order(number: int, end_ms: int) -> dict[str, Any]:
    """An order of the three minutes before `end_ms`; some lack the quantity, which their schema demands."""
    created_at = end_ms - 1_000 - (number * 211) % (3 * WINDOW_S * 1_000)
    quantity = {} if number % SKIPPED_EACH == 7 else {"quantity": number % 5}
    return {"order_id": f"order-{number}", "created_at": created_at, **quantity}


def produce(tapped: Tapped, orders: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": tapped.bootstrap})
    for payload in orders:
        producer.produce(f"{tapped.name}.orders", json.dumps({"schema": SCHEMA, "payload": payload}))
        producer.poll(0)
    assert producer.flush(30) == 0


def rows(shop: TappedDatabase) -> int:
    (count,) = shop.owner.execute("SELECT count(*) FROM orders").fetchone() or (0,)
    return int(count)


def certainly_lost(tapped: Tapped, starts: list[int]) -> set[int]:
    return {
        message.id_hash
        for start in starts
        for message in tapped.store.missing(tapped.name, start, ALL_NAMES)
        if message.kind == CERTAIN
    }


def test_what_a_jdbc_sink_skips_is_lost_there_by_name_and_a_kill_loses_nothing(
    tapped: Tapped, shop: TappedDatabase
) -> None:
    name, end_ms = tapped.name, int(time.time()) // WINDOW_S * WINDOW_S * 1_000
    tapped.create_topics(2, f"{name}.orders")
    orders = [order(number, end_ms) for number in range(ORDERS)]
    skipped = {hash_id(each["order_id"]) for each in orders if "quantity" not in each}
    starts = sorted({each["created_at"] // 1_000 // WINDOW_S * WINDOW_S for each in orders})
    worker = ConnectWorker(
        tapped.bootstrap, tapped.directory, {f"{name}-warehouse": connector(name, shop)}, plugins=[JDBC]
    )
    with worker:
        produce(tapped, orders[:1])
        exists = "SELECT to_regclass('orders')"
        wait_for(lambda: shop.owner.execute(exists).fetchone() != (None,), timeout_s=60, what="the table")
        shop.owner.execute(CURSOR)
        shop.owner.execute(sql.SQL("GRANT SELECT ON orders TO {}").format(sql.Identifier(shop.role)))
        tapped.apply(STORED)
        produce(tapped, orders[1:])
        wait_for(lambda: rows(shop) > ORDERS // 10, timeout_s=60, what="the first rows")
        worker.kill()
        at_kill = rows(shop)
        until = time.monotonic() + 15
        while time.monotonic() < until:  # more than the 5 s after which what is committed would be lost
            assert certainly_lost(tapped, starts) <= skipped
            time.sleep(0.5)
        worker.start()
        wait_for(lambda: rows(shop) == ORDERS - len(skipped), timeout_s=90, what="the other rows")
        results = tapped.settled(starts)
    assert at_kill <= rows(shop)
    lost = frozenset[int]().union(*(measured.lost_at.get("node warehouse", ()) for measured in results.values()))
    assert lost == skipped
    assert {place for measured in results.values() for place in measured.lost_at} == {"node warehouse"}
    for measured in results.values():
        named = len(measured.lost_at.get("node warehouse", ()))
        assert measured.window.lost == Interval(named, named)
        assert measured.window.pending == 0
        assert not measured.duplicates.get("warehouse.out")
    assert sum(measured.window.delivered or 0 for measured in results.values()) == ORDERS - len(skipped)
