"""A sink that commits and does not write: what its table does not hold is lost there, for certain and by name."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition

from lagloss.wire.format import WINDOW_S, hash_id
from lagloss_server.model.window import Interval
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.store.store import Store
from pipeline_under_test.harness.measured import Measured
from pipeline_under_test.harness.stack import ScenarioStack
from tests.conftest import fresh_database
from tests.support.kafka_log import consumer_of, wait_for
from tests.support.lakes import SCHEMA, Lake, lake_on_disk
from tests.support.tapped_pipelines import Tapped
from tests.support.tapped_tables import TappedDatabase, tapped_database

pytestmark = pytest.mark.slow

STORED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec:
  nodes:
    - {name: shop, to: [warehouse], taps: {out: {topic: NAME.orders, id: $.order_id, eventTime: $.created_at}}}
    - name: warehouse
      taps:
        in: {group: NAME.warehouse}
        out: {database: shop, table: public.orders, id: id, eventTime: at, cursor: n}
  grace: 2s
  maxWait: 60s
  lookback: 10m
"""
IN_LAKE = STORED.replace(
    "{database: shop, table: public.orders, id: id, eventTime: at, cursor: n}",
    "{database: lake, table: raw.orders, id: id, eventTime: at}",
)
ORDERS = 600
SKIPPED_EACH = 50


@pytest.fixture(scope="module")
def shop(postgres: EmbeddedPostgres) -> Iterator[TappedDatabase]:
    with fresh_database(postgres) as url, pytest.MonkeyPatch.context() as patch, tapped_database(url, patch) as shop:
        yield shop


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with pytest.MonkeyPatch.context() as patch, lake_on_disk(tmp_path_factory.mktemp("lake"), patch) as lake:
        yield lake


@pytest.fixture
def tapped(jars: None, shop: TappedDatabase, lake: Lake, tmp_path: Path) -> Iterator[Tapped]:
    with ScenarioStack() as stack:
        store = Store(stack.settings.require_database())
        try:
            yield Tapped(f"shop-{uuid.uuid4().hex[:8]}", stack, store, tmp_path)
        finally:
            store.close()


def insert(connection: psycopg.Connection, orders: list[dict[str, object]]) -> None:  # type: ignore[type-arg]
    for order in orders:
        values = (order["order_id"], int(str(order["created_at"])) / 1_000)
        connection.execute("INSERT INTO orders (id, at) VALUES (%s, to_timestamp(%s))", values)


def test_what_a_sink_commits_and_its_table_does_not_hold_is_lost_there_by_name(
    tapped: Tapped, shop: TappedDatabase
) -> None:
    topic, group = f"{tapped.name}.orders", f"{tapped.name}.warehouse"
    tapped.create_topics(1, topic)
    shop.table("sequence")
    tapped.apply(STORED)
    orders = produce(tapped, topic)
    written = [order for number, order in enumerate(orders) if number % SKIPPED_EACH]
    fast, slow = written[: ORDERS // 2], written[ORDERS // 2 :]
    transaction = shop.transaction()
    insert(transaction, slow)
    insert(shop.owner, fast)
    commit(tapped, topic, group)
    starts = sorted({int(str(order["created_at"])) // 1_000 // WINDOW_S * WINDOW_S for order in orders})

    def windows() -> list[tuple[int, int, int]]:
        listed = tapped._windows(starts)
        return [(window.lost.min, window.pending, window.delivered) for window in listed.values() if window.lost]

    wait_for(
        lambda: sum(delivered for *_, delivered in windows()) == len(fast), timeout_s=60, what="the rows that are there"
    )
    time.sleep(12)  # more than the 5 s after which a message would be lost
    assert sum(lost for lost, *_ in windows()) == 0
    insert(shop.owner, [{"order_id": "of-no-one", "created_at": orders[0]["created_at"]}])
    transaction.commit()
    check_lost(tapped, starts, [order for order in orders if order not in written])


def test_what_a_sink_commits_and_no_snapshot_of_its_table_holds_is_lost_there_by_name(
    tapped: Tapped, lake: Lake
) -> None:
    topic, group = f"{tapped.name}.orders", f"{tapped.name}.warehouse"
    tapped.create_topics(1, topic)
    table = lake.table("orders", **{"format-version": "2"})
    tapped.apply(IN_LAKE)
    orders = produce(tapped, topic)
    written = [order for number, order in enumerate(orders) if number % SKIPPED_EACH]
    table.commit(table.write(rows_of(written[:200])))
    table.commit(table.write(rows_of(written[200:400])))
    table.compact()
    changed = rows_of([*written[:100], *written[400:]])  # as Flink upserts: some are new
    table.commit_delta(table.write(changed), [table.write_equality_deletes(changed.select(["id"]))])
    table.write(rows_of([order for order in orders if order not in written]))  # and never commits
    table.commit(table.write(rows_of([{"order_id": "of-no-one", "created_at": orders[0]["created_at"]}])))
    commit(tapped, topic, group)
    starts = sorted({int(str(order["created_at"])) // 1_000 // WINDOW_S * WINDOW_S for order in orders})
    results = check_lost(tapped, starts, [order for order in orders if order not in written])
    assert not any(measured.duplicates.get("warehouse.out") for measured in results.values())


def produce(tapped: Tapped, topic: str) -> list[dict[str, object]]:
    """Produce orders of two minutes that are over, and return them."""
    end_ms = int(time.time()) // WINDOW_S * WINDOW_S * 1_000
    orders: list[dict[str, object]] = [
        {"order_id": f"order-{number}", "created_at": end_ms - 1_000 - (number * 211) % (2 * WINDOW_S * 1_000)}
        for number in range(ORDERS)
    ]
    producer = Producer({"bootstrap.servers": tapped.bootstrap})
    for order in orders:
        producer.produce(topic, json.dumps(order))
    assert producer.flush(30) == 0
    return orders


def commit(tapped: Tapped, topic: str, group: str) -> None:
    with consumer_of(tapped.bootstrap, **{"group.id": group}) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, ORDERS)], asynchronous=False)


def rows_of(orders: list[dict[str, object]]) -> pa.Table:
    columns = {
        "id": [order["order_id"] for order in orders],
        "at": [int(str(order["created_at"])) * 1_000 for order in orders],
        "state": ["new"] * len(orders),
    }
    return pa.table({name: pa.array(values).cast(SCHEMA.field(name).type) for name, values in columns.items()})


def check_lost(tapped: Tapped, starts: list[int], lost: list[dict[str, object]]) -> dict[int, Measured]:
    """Check that these orders are lost at the sink by name, and nothing else; return the results."""
    results = tapped.settled(starts)
    hashes = {hash_id(str(order["order_id"])) for order in lost}
    assert sum(measured.window.unexplained or 0 for measured in results.values()) == 1
    assert frozenset[int]().union(*(each.lost_at.get("node warehouse", ()) for each in results.values())) == hashes
    assert {place for measured in results.values() for place in measured.lost_at} == {"node warehouse"}
    for measured in results.values():
        named = len(measured.lost_at.get("node warehouse", ()))
        assert measured.window.lost == Interval(named, named)
        assert measured.window.verdict == ("loss" if named else "ok")
    return results
