"""Day partitions are created beside readers and writers, by one or several at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from sqlalchemy import select, text

from lagloss_server.store.partitions import DAY_S, ensure_days
from lagloss_server.store.schema import core as tables
from lagloss_server.store.store import Store

DAY = 20_000  # since the epoch: 2024-10-04


def days_of(store: Store, table: str) -> list[str]:
    with store.engine.connect() as connection:
        names = text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = CAST(:table AS regclass)")
        return sorted(connection.execute(names, {"table": f'"{table}"'}).scalars())


def test_a_reader_of_all_tables_goes_on_while_a_day_is_created(store: Store) -> None:
    with store.engine.connect() as reader, store.engine.begin() as writer:
        writer.execute(text("SET LOCAL lock_timeout = '5s'"))
        reader.execute(text("SET LOCAL lock_timeout = '5s'"))
        for table in tables.PARTITIONED:  # holds what a reader holds to the end of its transaction
            reader.execute(select(table).limit(1)).all()
        ensure_days(writer, [DAY * DAY_S])
        for table in reversed(tables.PARTITIONED):
            reader.execute(select(table).limit(1)).all()
    for table in tables.PARTITIONED:
        assert days_of(store, table.name) == [f"{table.name}_20241004"]


def test_several_create_the_same_days_at_the_same_time(store: Store) -> None:
    together = Barrier(4)

    def create(first: int) -> None:
        with store.engine.begin() as connection:
            together.wait(10)
            ensure_days(connection, [(DAY + first + ahead) * DAY_S for ahead in range(3)])

    with ThreadPoolExecutor(4) as creators:
        list(creators.map(create, (0, 1, 0, 1)))
    for table in tables.PARTITIONED:
        assert len(days_of(store, table.name)) == 4


def test_a_partition_is_stored_and_indexed_as_its_table_asks(store: Store) -> None:
    with store.engine.begin() as connection:
        ensure_days(connection, [DAY * DAY_S])
        for table in tables.PARTITIONED:
            indexes = text("SELECT count(*) FROM pg_index WHERE indrelid = CAST(:name AS regclass)")
            counts = [
                connection.execute(indexes, {"name": f'"{name}"'}).scalar_one()
                for name in (table.name, f"{table.name}_20241004")
            ]
            assert counts[0] == counts[1] > 0
            storage = text(
                "SELECT attname, attstorage, attnotnull FROM pg_attribute"
                " WHERE attrelid = CAST(:name AS regclass) AND attnum > 0 ORDER BY attname"
            )
            both = [
                connection.execute(storage, {"name": f'"{name}"'}).all()
                for name in (table.name, f"{table.name}_20241004")
            ]
            assert both[0] == both[1]
        options = text("SELECT reloptions FROM pg_class WHERE relname = 'window_20241004'")
        asked = tables.table_of(tables.WindowRow).info
        assert connection.execute(options).scalar_one() == ([asked["days_with"].replace(" ", "")] if asked else None)
