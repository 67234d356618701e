"""A row that was in a tapped table and is not any more is lost afterwards, and no other one is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine, select

from lagloss_server.ops.tap_checks import check_tap_rows
from lagloss_server.store.schema.taps import LostAfterwardsRow, RememberedRowsRow
from tests.support.rechecked_tables import RecheckedTable, rechecked
from tests.support.tapped_tables import CURSORS, TappedDatabase, tapped_database

KINDS = pytest.mark.parametrize("kind", CURSORS)
Watch = Callable[..., RecheckedTable]


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TappedDatabase]:
    with tapped_database(database_url, monkeypatch) as database:
        yield database


@pytest.fixture
def watch(shop: TappedDatabase, tap_engine: Engine, tap_database: str) -> Iterator[Watch]:
    """Tap a table with a cursor of this kind that has the rows a, b and c."""
    with ExitStack() as stack:

        def watch(kind: str = "sequence", ids: str = "abc", recheck: str = "7d") -> RecheckedTable:
            orders = stack.enter_context(rechecked(shop.table(kind), tap_engine, tap_database, recheck))
            shop.owner.execute("INSERT INTO orders (id) SELECT unnest(%s::text[])", ([*ids],))  # of one minute
            orders.read()
            return orders

        yield watch


def insert(shop: TappedDatabase, *ids: str) -> None:
    for message_id in ids:
        shop.owner.execute("INSERT INTO orders (id) VALUES (%s)", (message_id,))


def delete(shop: TappedDatabase, *ids: str) -> None:
    shop.owner.execute("DELETE FROM orders WHERE id = ANY(%s)", ([*ids],))


@KINDS
def test_a_deleted_row_is_lost_after_two_looks_and_back_once_it_is_there_again(
    shop: TappedDatabase, watch: Watch, kind: str
) -> None:
    orders = watch(kind)
    orders.look_twice()
    assert orders.lost() == {}
    delete(shop, "b")
    orders.look("1h")
    assert orders.lost() == {}
    orders.look("599s")
    assert orders.lost() == {}
    orders.look("1s")
    assert orders.lost() == {"b": "deleted"}
    shop.owner.execute("INSERT INTO orders (id, at) SELECT 'b', at FROM orders WHERE id = 'a'")
    orders.read()
    orders.look()  # what is stated is compared at once when its minute has a new row
    assert orders.lost() == {}


@KINDS
def test_rows_that_are_moved_or_written_again_are_not_lost(shop: TappedDatabase, watch: Watch, kind: str) -> None:
    orders = watch(kind, ids="abcd")
    values = {"sequence": "nextval('orders_n_seq')", "xid8": "pg_current_xact_id()", "clock": "clock_timestamp()"}
    shop.owner.execute(f"UPDATE orders SET n = {values[kind]} WHERE id = 'a'")  # type: ignore[call-overload]
    delete(shop, "b")
    insert(shop, "b")
    shop.owner.execute("UPDATE orders SET at = at - interval '1 day', state = 'paid' WHERE id = 'c'")
    shop.owner.execute("VACUUM FULL orders")
    orders.look_twice()
    orders.look_twice("7d")
    assert orders.lost() == {}
    assert orders.trouble == ""


def test_a_row_that_is_away_for_less_than_ten_minutes_is_not_lost(shop: TappedDatabase, watch: Watch) -> None:
    orders = watch()
    delete(shop, "a")
    orders.look("12m")
    insert(shop, "a")
    orders.look("10m")
    delete(shop, "a")
    orders.look("1h")
    assert orders.lost() == {}


def test_a_row_that_is_put_back_with_its_old_number_is_not_lost_any_more(shop: TappedDatabase, watch: Watch) -> None:
    orders = watch()
    delete(shop, "a", "c")
    orders.look_twice()
    assert orders.lost() == {"a": "deleted", "c": "deleted"}
    shop.owner.execute("INSERT INTO orders (id, n) VALUES ('a', 1)")
    orders.look("11m")
    assert orders.lost() == {"c": "deleted"}


BROKEN = {
    "DROP TABLE orders": "does not exist",
    "ALTER TABLE orders RENAME TO gone": "does not exist",
    "ALTER TABLE orders RENAME id TO key": "no column id",
    "ALTER TABLE orders ENABLE ROW LEVEL SECURITY": "row security",
    "REVOKE SELECT ON orders FROM {role}": "permission denied",
    "ALTER TABLE orders ALTER id TYPE numeric USING 7": "expected|is numeric now",
    "ALTER TABLE orders ALTER at TYPE text": None,
    "ALTER ROLE {role} SET statement_timeout = '1ms'": None,
    "DROP TABLE orders; CREATE VIEW orders AS SELECT 1": "a view",
}


@pytest.mark.parametrize("statement", [statement for statement, said in BROKEN.items() if said])
def test_what_cannot_be_read_is_not_lost(shop: TappedDatabase, watch: Watch, statement: str) -> None:
    orders = watch(ids="123")
    delete(shop, "1")
    shop.owner.execute(statement.format(role=shop.role))  # type: ignore[call-overload]
    orders.look_twice()
    orders.look_twice("1h")
    assert orders.lost() == {}
    assert orders.trouble.startswith("Cannot read table public.orders of shop:") or "numeric" in orders.trouble


def test_a_statement_that_takes_too_long_says_nothing(
    shop: TappedDatabase, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = watch()
    delete(shop, "a")
    with shop.transaction() as locking, monkeypatch.context() as patch:
        locking.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        patch.setattr("taps.tables.postgres._SETTINGS", "SET LOCAL statement_timeout = '50ms'")
        orders.look_twice()
    assert orders.lost() == {}
    assert "statement timeout" in orders.trouble
    orders.look_twice("11m")
    assert (orders.lost(), orders.trouble) == ({"a": "deleted"}, "")


def test_a_changed_type_of_the_event_time_changes_nothing(shop: TappedDatabase, watch: Watch) -> None:
    orders = watch()
    shop.owner.execute("ALTER TABLE orders ALTER at TYPE text")
    delete(shop, "a")
    orders.look_twice()
    assert orders.lost() == {"a": "rewritten"}


def test_comparing_goes_on_once_a_right_is_there_again(shop: TappedDatabase, watch: Watch, tap_engine: Engine) -> None:
    orders = watch()
    delete(shop, "a")
    shop.owner.execute(f"REVOKE SELECT ON orders FROM {shop.role}")  # type: ignore[call-overload]
    orders.look("12m")
    assert "permission denied" in orders.trouble
    assert "rows compared again" in [check.name for check in check_tap_rows(tap_engine)]
    shop.grant()
    orders.look("9m")
    assert orders.lost() == {}
    orders.look_twice("1m")
    assert (orders.lost(), orders.trouble) == ({"a": "deleted"}, "")


def test_rows_of_a_table_that_was_truncated_or_created_again_are_gone_and_it_is_said_how(
    shop: TappedDatabase, watch: Watch
) -> None:
    orders = watch(ids="abc")
    shop.owner.execute("TRUNCATE orders")
    insert(shop, "a", "d")
    orders.read()
    orders.look_twice()
    assert orders.lost() == {"b": "rewritten", "c": "rewritten"}
    shop.owner.execute("DROP TABLE orders")
    shop.table("sequence")
    insert(shop, "b")
    orders.read()
    orders.look_twice("1h")
    assert orders.lost() == {"a": "recreated", "c": "rewritten", "d": "recreated"}


def test_a_row_in_another_partition_is_still_there(shop: TappedDatabase, watch: Watch) -> None:
    shop.owner.execute("DROP TABLE IF EXISTS orders")
    shop.owner.execute(
        "CREATE TABLE orders (id text, at timestamptz DEFAULT now(), state text DEFAULT 'new', n xid8 NOT NULL"
        " DEFAULT pg_current_xact_id()) PARTITION BY LIST (state);"
        " CREATE TABLE orders_new PARTITION OF orders FOR VALUES IN ('new');"
        " CREATE TABLE orders_old PARTITION OF orders FOR VALUES IN ('old'); CREATE INDEX ON orders (n)"
    )
    shop.grant()
    shop.table = lambda kind: spec  # type: ignore[method-assign,assignment]
    from lagloss_server.model.tables import TableSpec

    spec = TableSpec(database="shop", table="public.orders", id="id", event_time="at", cursor="n")
    orders = watch()
    shop.owner.execute("UPDATE orders SET state = 'old' WHERE id = 'a'")
    delete(shop, "c")
    orders.look_twice()
    assert orders.lost() == {"c": "deleted"}
    shop.owner.execute("ALTER TABLE orders DETACH PARTITION orders_old")
    orders.look_twice("1h")
    assert orders.lost() == {"a": "deleted", "c": "deleted"}


@pytest.mark.parametrize("kind", ["text", "uuid", "bigint", "smallint", "char(40)", "varchar(40)"])
def test_ids_of_each_type_are_known_again(shop: TappedDatabase, watch: Watch, kind: str) -> None:
    orders = watch(ids="")
    shop.owner.execute(f"ALTER TABLE orders ALTER id TYPE {kind} USING NULL")  # type: ignore[call-overload]
    values = "gen_random_uuid()" if kind == "uuid" else "i"
    shop.owner.execute(f"INSERT INTO orders (id) SELECT {values} FROM generate_series(1, 4) i")  # type: ignore[call-overload]
    orders.read()
    orders.look_twice()
    assert orders.lost() == {}
    shop.owner.execute("DELETE FROM orders WHERE n = 2")
    orders.look_twice("1h")
    assert len(orders.lost()) == 1
    assert orders.trouble == ""


def test_looks_come_at_growing_ages_and_end_with_recheck(
    shop: TappedDatabase, watch: Watch, tap_engine: Engine
) -> None:
    orders = watch(recheck="2h")
    assert [orders.look(after) for after in ("9m", "3m", "40m", "20m", "40m", "12m", "1d")] == [0, 1, 0, 1, 0, 1, 0]
    row = RememberedRowsRow
    with tap_engine.connect() as connection:
        assert connection.execute(select(row.number).where(row.emitter == orders.running.emitter)).all() == []


def test_of_many_rows_a_sample_by_hash_is_compared_and_its_share_is_stated(
    shop: TappedDatabase, watch: Watch, tap_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taps.tables.remembered.MAX_ROWS", 50)
    wait_for_room_in_the_minute()
    orders = watch(ids="")
    for batch in "abcd":
        shop.owner.execute("INSERT INTO orders (id) SELECT %s || i FROM generate_series(1, 100) i", (batch,))
        orders.read()
    shop.owner.execute("DELETE FROM orders")
    orders.look_twice()
    row = LostAfterwardsRow
    with tap_engine.connect() as connection:
        of_tap = row.emitter == orders.running.emitter
        (stated,) = connection.execute(select(row.lost, row.compared, row.sample).where(of_tap))
    assert (stated.lost, stated.compared) == (50, 50)
    assert 0.07 < stated.sample / 2**32 < 0.2
    assert len(orders.lost()) == 50


def wait_for_room_in_the_minute() -> None:
    """Rows that are written within some seconds are to be of one minute."""
    while time.time() % 60 > 50:
        time.sleep(0.2)


def test_what_is_remembered_goes_with_the_tap_and_what_is_stated_stays(
    shop: TappedDatabase, watch: Watch, tap_engine: Engine
) -> None:
    orders = watch()
    delete(shop, "a")
    orders.look_twice()
    orders.store.forget(orders.running.emitter)
    assert orders.lost() == {"a": "deleted"}
    remembered, stated = RememberedRowsRow, LostAfterwardsRow
    with tap_engine.connect() as connection:
        of_tap = remembered.emitter == orders.running.emitter
        assert connection.execute(select(remembered.number).where(of_tap)).all() == []
        until = connection.execute(select(stated.until).where(stated.emitter == orders.running.emitter)).scalar_one()
    assert until <= time.time() * 1_000
    assert orders.recheck.step()  # another one owns it, or no one
