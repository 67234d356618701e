"""A stand-by is read as far as it has replayed its primary, and says which transactions of it are open."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Engine

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.net.table_urls import variable_of
from tests.support.closers import wait_until
from tests.support.rechecked_tables import rechecked
from tests.support.standby import Pair, primary_and_standby
from tests.support.tapped_tables import SHOP, TappedDatabase, tapped_database

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with primary_and_standby(tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
def shop(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[TappedDatabase]:
    with tapped_database(pair.primary.url, monkeypatch) as shop:
        options = conninfo_to_dict(shop.role_url) | {"port": str(pair.standby_port)}
        url = "postgresql://{user}:{password}@{host}:{port}/{dbname}?passfile=/dev/null".format(**options)
        monkeypatch.setenv(variable_of(SHOP), url)
        yield shop
        shop.owner.execute("DROP TABLE IF EXISTS orders")


def insert(message_id: str) -> str:
    return f"INSERT INTO orders (id) VALUES ('{message_id}')"


def replayed(pair: Pair) -> None:
    wait_until(lambda: pair.lag_bytes() == 0, 30, "the stand-by")


def test_the_horizon_of_a_stand_by_passes_neither_open_transactions_nor_what_it_has_not_replayed(
    pair: Pair, shop: TappedDatabase
) -> None:
    orders = shop.reading(shop.table("xid8"))
    shop.owner.execute(insert("first"))
    replayed(pair)
    assert orders.read() == ["first"]
    begun_ms = time.time_ns() // 1_000_000
    slow = shop.transaction()
    slow.execute(insert("slow"))
    slow.execute("SAVEPOINT a")
    slow.execute(insert("inner"))
    slow.execute("RELEASE a")
    shop.owner.execute(insert("fast"))
    replayed(pair)
    assert orders.read() == ["fast"]
    assert orders.until_ms <= begun_ms
    pair.hold_back(held=True)
    try:
        slow.commit()
        shop.owner.execute(insert("behind"))
        held_ms = time.time_ns() // 1_000_000
        for _ in range(3):
            assert orders.read() == []
            assert orders.until_ms < held_ms
    finally:
        pair.hold_back(held=False)
    replayed(pair)
    assert orders.read() == ["behind", "inner", "slow"]
    shop.owner.execute(insert("last"))
    replayed(pair)
    assert orders.read() == ["last"]
    assert held_ms <= orders.until_ms <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("kind", ["sequence", "clock"])
def test_other_cursors_are_refused_on_a_stand_by(pair: Pair, shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table(kind))
    replayed(pair)
    with pytest.raises(TableUnreadable, match="a stand-by shows no other open transactions"):
        orders.read()


def test_a_server_that_is_behind_what_was_read_says_nothing_of_what_is_lost_afterwards(
    pair: Pair, shop: TappedDatabase, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, of_standby = shop.table("xid8"), os.environ[variable_of(SHOP)]
    with rechecked(spec, tap_engine, tap_database) as orders:
        replayed(pair)
        pair.hold_back(held=True)
        try:
            shop.owner.execute(insert("kept"))
            shop.owner.execute(insert("gone"))
            with monkeypatch.context() as patch:
                options = conninfo_to_dict(shop.role_url)
                url = "postgresql://{user}:{password}@{host}:{port}/{dbname}?passfile=/dev/null".format(**options)
                patch.setenv(variable_of(SHOP), url)
                orders.read()
            shop.owner.execute("DELETE FROM orders WHERE id = 'gone'")
            assert os.environ[variable_of(SHOP)] == of_standby
            orders.look_twice()
            assert (orders.lost(), orders.trouble) == ({}, "the server that answers is behind what was read before")
        finally:
            pair.hold_back(held=False)
        replayed(pair)
        orders.look_twice("10m")
        assert (orders.lost(), orders.trouble) == ({"gone": "deleted"}, "")


def test_after_a_failover_rows_can_be_missing_and_later_ones_are_not(
    pair: Pair, shop: TappedDatabase, tap_engine: Engine, tap_database: str
) -> None:
    spec = shop.table("xid8")
    orders = shop.reading(spec)
    compared = shop.hold(rechecked(spec, tap_engine, tap_database))
    shop.owner.execute(insert("first"))
    replayed(pair)
    assert orders.read() == ["first"]
    compared.read()
    pair.fail_over()
    with psycopg.connect(pair.standby_url, autocommit=True) as promoted:
        wait_until(lambda: promoted.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), 30, "promotion")
        promoted.execute(insert("second"))
        orders.table.close()
        assert orders.read() == ["second"]
        assert orders.break_ == "its server has failed over"
        compared.reader.close()
        compared.read()
        promoted.execute("DELETE FROM orders WHERE id = 'first'")
        compared.look_twice()
        assert (compared.lost(), compared.trouble) == ({"first": "deleted"}, "")
        promoted.execute(insert("third"))
        assert (orders.read(), orders.break_) == (["third"], "")
        promoted.execute("DROP TABLE orders")
        shop.owner.close()
        shop.owner = psycopg.connect(pair.standby_url, autocommit=True)
