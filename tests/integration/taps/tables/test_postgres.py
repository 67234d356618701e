"""Rows of tables of PostgreSQL show once each, whenever their transaction commits, and the horizon passes no open
transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec
from taps.tables import postgres
from tests.support.tapped_tables import CURSORS, TappedDatabase, tapped_database

KINDS = pytest.mark.parametrize("kind", CURSORS)


@pytest.fixture
def shop(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TappedDatabase]:
    with tapped_database(database_url, monkeypatch) as database:
        yield database


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def insert(message_id: str) -> str:
    return f"INSERT INTO orders (id) VALUES ('{message_id}')"


@KINDS
def test_a_row_shows_once_its_transaction_is_over_and_once_only(shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table(kind))
    assert orders.read() == []
    shop.owner.execute(insert("before"))
    with shop.transaction() as slow:
        slow.execute(insert("slow"))
        shop.owner.execute(insert("fast"))
        assert orders.read() == ["before", "fast"]
        shop.owner.execute(insert("faster"))
        assert orders.read() == ["faster"]
        assert orders.read() == []
    assert orders.read() == ["slow"]
    shop.owner.execute("UPDATE orders SET state = 'paid'")
    shop.owner.execute("VACUUM (FREEZE) orders")
    assert [orders.read(), orders.read(), orders.read()] == [[], [], []]


@KINDS
def test_the_horizon_passes_no_open_transaction_and_passes_all_once_they_are_over(
    shop: TappedDatabase, kind: str
) -> None:
    orders = shop.reading(shop.table(kind))
    slow = shop.transaction()
    begun_ms = now_ms()
    slow.execute(insert("slow"))  # of which the snapshot of an idle server shows nothing
    for _ in range(3):
        orders.read()
        assert orders.until_ms <= begun_ms
    shop.owner.execute(insert("fast"))
    orders.read()
    assert orders.until_ms <= begun_ms
    slow.commit()
    committed_ms = now_ms()
    while orders.until_ms < committed_ms:
        orders.read()
        assert now_ms() < committed_ms + 10_000


@KINDS
def test_rows_of_savepoints_and_of_prepared_transactions_are_not_missed(shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table(kind))
    orders.read()
    outer = shop.transaction()
    outer.execute(insert("outer"))
    outer.execute("SAVEPOINT a")
    outer.execute(insert("inner"))
    outer.execute("RELEASE a")
    outer.execute("SAVEPOINT b")
    outer.execute(insert("undone"))
    outer.execute("ROLLBACK TO b")
    outer.execute(insert("after"))
    shop.owner.execute(insert("later"))  # a higher transaction id than that of the savepoint
    assert [orders.read(), orders.read(), orders.read()] == [["later"], [], []]
    outer.execute("PREPARE TRANSACTION 'two-phase'")
    outer.close()
    shop.owner.execute(insert("last"))
    assert [orders.read(), orders.read(), orders.read()] == [["last"], [], []]
    prepared_ms = now_ms()
    orders.read()
    assert orders.until_ms < prepared_ms
    shop.owner.execute("COMMIT PREPARED 'two-phase'")
    assert orders.read() == ["after", "inner", "outer"]


@KINDS
def test_a_transaction_that_draws_its_cursor_long_before_it_writes_is_waited_for(
    shop: TappedDatabase, kind: str
) -> None:
    orders = shop.reading(shop.table(kind))
    orders.read()
    with shop.transaction() as slow:
        slow.execute("SELECT now()")
        number = slow.execute("SELECT nextval('orders_n_seq')").fetchone() if kind == "sequence" else None
        for name in "abc":
            shop.owner.execute(insert(name))
            orders.read()
        if number:
            slow.execute("INSERT INTO orders (id, n) VALUES ('slow', %s)", number)
        else:
            slow.execute(insert("slow"))
    assert orders.read() == ["slow"]


@KINDS
def test_more_rows_than_a_read_holds_are_read_in_pieces_while_others_commit(shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table(kind), limit=10)
    orders.read()
    names = [f"{number:03}" for number in range(35)]
    with shop.transaction() as slow:
        slow.execute(insert("slow"))
        for name in names:
            shop.owner.execute(insert(name))
        found = [name for _ in range(6) for name in orders.read()]
        assert kind == "clock" or not (orders.last and orders.last.is_complete)
    found += [name for _ in range(12) for name in orders.read()]
    assert sorted(found) == [*names, "slow"]
    assert orders.last
    assert orders.last.is_complete


def test_one_transaction_of_more_rows_than_a_read_holds_is_read_as_a_whole(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("xid8"), limit=10)
    shop.owner.execute("INSERT INTO orders (id) SELECT i::text FROM generate_series(1, 35) i")
    assert len(orders.read()) == 35
    assert [orders.read(), orders.read()] == [[], []]


def test_a_transaction_of_more_rows_than_a_plan_takes_stops_the_tap_until_it_is_split(
    shop: TappedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "MAX_TIES", 20)
    orders = shop.reading(shop.table("xid8"), limit=10)
    shop.owner.execute("INSERT INTO orders (id) SELECT i::text FROM generate_series(1, 31) i")
    with pytest.raises(TableUnreadable, match="more than 20 rows have the same n; insert fewer rows per transaction"):
        orders.read()
    shop.owner.execute("UPDATE orders SET n = DEFAULT WHERE id::int > 15")
    assert len(orders.read_all()) == 31


def test_a_cursor_that_is_called_id_is_read_in_its_order(shop: TappedDatabase) -> None:
    shop.owner.execute("CREATE TABLE orders (id bigserial PRIMARY KEY, key text, at timestamptz DEFAULT now())")
    shop.owner.execute(
        f"GRANT SELECT ON orders TO {shop.role}; GRANT SELECT ON SEQUENCE orders_id_seq TO {shop.role}"  # type: ignore[call-overload]
    )
    spec = TableSpec(database="shop", table="public.orders", id="key", event_time="at", cursor="id")
    orders = shop.reading(spec, limit=3)
    shop.owner.execute("INSERT INTO orders (key) SELECT (50 - i)::text FROM generate_series(1, 40) i")
    assert [orders.read(), sorted(orders.read_all() + orders.read())] == [
        ["47", "48", "49"], [str(key) for key in range(10, 47)]
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["text", "varchar", "char(100000)", "name"])
def test_of_a_text_as_much_is_read_as_shows_that_it_is_no_id_and_no_time(shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table("sequence"))
    shop.owner.execute(f"ALTER TABLE orders ALTER id TYPE {kind}, ALTER at DROP DEFAULT, ALTER at TYPE text")  # type: ignore[call-overload]
    shop.owner.execute(
        "INSERT INTO orders (id, at) SELECT repeat('x', size), repeat('9', size)"
        " FROM unnest('{1, 63, 256, 257, 100000}'::int[]) size; INSERT INTO orders (id, at) VALUES (NULL, NULL)"
    )
    orders.read()
    assert orders.last
    *texts, nothing = [json.loads(row.document) for row in orders.last.rows]
    longest = 63 if kind == "name" else 256
    assert [len(row["id"]) for row in texts] == [1, 63, longest, longest, longest]
    assert [len(row["eventTime"]) for row in texts] == [1, 63, 256, 256, 256]
    assert nothing == {"id": None, "eventTime": None}


def test_each_of_several_rows_with_one_id_or_without_any_shows(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("xid8"), limit=2)
    shop.owner.execute("INSERT INTO orders (id) VALUES ('a'), ('a'), (NULL), (NULL)")
    orders.read()
    assert orders.last
    assert [row.document[:11] for row in orders.last.rows] == ['{"id" : "a"'] * 2 + ['{"id" : nul'] * 2


def test_rows_of_earlier_windows_are_left_where_they_are(shop: TappedDatabase) -> None:
    spec = shop.table("sequence")
    shop.owner.execute("INSERT INTO orders (id, at) VALUES ('old', now() - interval '1 day'), ('new', now())")
    assert shop.reading(spec, since_ms=now_ms() - 60_000).read() == ["new"]


def test_times_behind_the_database_s_clock_are_read_and_said_to_be_late(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("clock"))
    for _ in range(3):
        orders.read()
    shop.owner.execute("INSERT INTO orders (id, n) VALUES ('late', now() - interval '5 s')")
    assert orders.read() == ["late"]
    assert "older times" in orders.break_


@pytest.mark.parametrize("kind", ["xid8", "sequence"])
def test_a_server_that_was_restored_in_place_is_read_on_from_where_it_is(shop: TappedDatabase, kind: str) -> None:
    orders = shop.reading(shop.table(kind))
    shop.owner.execute("INSERT INTO orders (id) VALUES ('before')")
    assert orders.read() == ["before"]
    orders.position = {**orders.position, "flushed": 1 << 60, "passed": 1 << 40}
    shop.owner.execute("INSERT INTO orders (id) VALUES ('while it was away')")
    orders.read()
    assert orders.break_ == "its server was restored to an earlier state"
    assert orders.last is not None
    assert orders.last.late_ms == 3_600_000
    shop.owner.execute("INSERT INTO orders (id) VALUES ('after')")
    assert "after" in orders.read()
    assert not orders.break_


def test_rows_with_transaction_ids_of_another_server_are_named(shop: TappedDatabase) -> None:
    spec = shop.table("xid8")
    shop.owner.execute(
        "INSERT INTO orders (id, n) SELECT i, (1::bigint << 40 | i)::text::xid8 FROM generate_series(1, 9) i"
    )
    orders = shop.reading(spec, limit=9)
    with pytest.raises(TableUnreadable, match="transaction ids of another server; UPDATE them to SET n = DEFAULT"):
        orders.read_all()
    shop.owner.execute("UPDATE orders SET n = DEFAULT")
    orders.position = {}
    assert len(orders.read_all()) == 9


def test_more_rows_than_a_read_has_may_come_with_one_time(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("clock"), limit=10)
    orders.read()
    shop.owner.execute("INSERT INTO orders (id) SELECT i FROM generate_series(1, 95) i")
    ids: set[str] = set()
    for _ in range(30):
        ids.update(orders.read())
    shop.owner.execute("INSERT INTO orders (id) VALUES ('later')")
    assert ids | set(orders.read()) == {*(str(number) for number in range(1, 96)), "later"}


def test_a_row_whose_time_was_never_set_is_read(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("sequence"))
    orders.since_ms = time.time_ns() // 1_000_000
    orders.read()
    shop.owner.execute("INSERT INTO orders (id, at) VALUES ('unset', '0001-01-01Z'), ('old', now() - interval '1 day')")
    assert orders.read() == ["unset"]


BROKEN = {
    "DROP TABLE orders": "does not exist",
    "ALTER TABLE orders RENAME TO gone": "does not exist",
    "ALTER TABLE orders RENAME id TO key": "no column id",
    "ALTER TABLE orders ALTER id TYPE bytea USING id::bytea": "to be text, an integer or a uuid, found bytea",
    "ALTER TABLE orders ALTER n TYPE text": "found n of type text",
    "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ALTER n DROP NOT NULL": "SET NOT NULL",
    "ALTER SEQUENCE orders_n_seq OWNED BY NONE": "no sequence fills n",
    "ALTER SEQUENCE orders_n_seq CACHE 20": "needs CACHE 1",
    "ALTER TABLE orders ENABLE ROW LEVEL SECURITY": "row security",
    "REVOKE SELECT ON orders FROM {role}": "permission denied",
    "REVOKE SELECT ON SEQUENCE orders_n_seq FROM {role}": "GRANT SELECT ON SEQUENCE",
    "DROP TABLE orders; CREATE VIEW orders AS SELECT 1": "a view",
}


@pytest.mark.parametrize("statement", BROKEN)
def test_a_table_that_cannot_be_read_so_that_no_row_is_missed_is_not_read(shop: TappedDatabase, statement: str) -> None:
    orders = shop.reading(shop.table("sequence"))
    orders.read()
    shop.owner.execute(statement.format(role=shop.role))  # type: ignore[call-overload]
    with pytest.raises(TableUnreadable, match=r"table public\.orders of shop: .*" + BROKEN[statement]):
        orders.read()


def test_a_database_that_is_not_there_is_waited_for(monkeypatch: pytest.MonkeyPatch, shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("xid8"))
    monkeypatch.setenv("LAGLOSS_TABLES_SHOP_URL", "postgresql://nobody@127.0.0.1:1/nowhere")
    with pytest.raises(TableUnreadable, match=r"127\.0\.0\.1"):
        orders.read()
    monkeypatch.delenv("LAGLOSS_TABLES_SHOP_URL")
    with pytest.raises(TableUnreadable, match="LAGLOSS_TABLES_SHOP_URL is not set"):
        orders.read()


def test_reading_goes_on_once_a_right_is_there_again(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("sequence"))
    orders.read()
    shop.owner.execute(f"REVOKE SELECT ON orders FROM {shop.role}")  # type: ignore[call-overload]
    shop.owner.execute(insert("meanwhile"))
    with pytest.raises(TableUnreadable):
        orders.read()
    shop.grant()
    assert orders.read() == ["meanwhile"]
    assert orders.break_ == ""


def test_a_table_that_is_created_again_or_truncated_says_that_rows_can_be_missing(shop: TappedDatabase) -> None:
    orders = shop.reading(shop.table("sequence"))
    shop.owner.execute(insert("first"))
    assert orders.read() == ["first"]
    shop.owner.execute("TRUNCATE orders")
    shop.owner.execute(insert("second"))
    assert (orders.read(), orders.break_) == (["second"], "it was truncated or rewritten")
    shop.owner.execute("TRUNCATE orders RESTART IDENTITY")
    shop.owner.execute(insert("third"))
    assert (orders.read(), orders.break_) == (["third"], "its cursor went back from 2 to 1")
    shop.owner.execute("DROP TABLE orders")
    shop.table("sequence")
    shop.owner.execute(insert("fourth"))
    assert (orders.read(), orders.break_) == (["fourth"], "it was created again")
    assert (orders.read(), orders.break_) == ([], "")


def test_a_sequence_that_is_set_back_is_noticed_and_rows_that_were_there_do_not_show_again(
    shop: TappedDatabase,
) -> None:
    orders = shop.reading(shop.table("sequence"), limit=5)
    shop.owner.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    for name in "abcd":
        shop.owner.execute(insert(name))
    assert orders.read() == ["a", "b", "c", "d"]
    orders.read()
    shop.owner.execute("SELECT setval('orders_n_seq', 1)")
    assert (orders.read(), orders.break_) == ([], "its cursor went back from 4 to 1")
    shop.owner.execute(insert("e"))
    assert (orders.read(), orders.break_) == (["e"], "")
    for name in "fghi":
        shop.owner.execute(insert(name))
        orders.read()
    shop.owner.execute("SELECT setval('orders_n_seq', 1)")
    orders.read()
    assert "below rows" in str(orders.position["blocked"])
    with pytest.raises(TableUnreadable, match="went back"):
        orders.read()
