"""Tables of Iceberg that Spark writes: marks of deleted rows, merges and compactions show no row twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from lagloss_server.model.tables import TableSpec
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.jars import ensure
from taps.tables.iceberg import IcebergTable
from taps.tables.reading import SeenRow
from tests.conftest import fresh_database
from tests.support.iceberg_writer import JARS, IcebergWriter
from tests.support.lakes import LAKE, lake_at
from tests.support.tapped_tables import Reading

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODES = {
    "copy-on-write": "'format-version'='2', 'write.delete.mode'='copy-on-write', 'write.update.mode'='copy-on-write', "
    "'write.merge.mode'='copy-on-write'",
    "marks": "'format-version'='2', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
    "'write.merge.mode'='merge-on-read'",
    "vectors": "'format-version'='3', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
    "'write.merge.mode'='merge-on-read'",
}


@pytest.fixture(scope="module")
def spark(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergWriter]:
    ensure(sets=(JARS,))
    folder = tmp_path_factory.mktemp("spark")
    with fresh_database(postgres) as url, pytest.MonkeyPatch.context() as patch:
        warehouse = f"file://{folder}/warehouse"
        with IcebergWriter(url, warehouse, folder) as writer, lake_at(url, warehouse, patch):
            yield writer


@pytest.fixture
def reading() -> Iterator[Callable[[str], Reading]]:
    with ExitStack() as hold:

        def read(name: str) -> Reading:
            table = IcebergTable(TableSpec(database=LAKE, table=name, id="id", event_time="at"))
            hold.enter_context(closing(table))
            return Reading(table, time.time_ns() // 1_000_000 - 3_600_000)

        yield read


def missing(table: str, ids: str) -> str:
    """Return those of these ids of now that a table has no row of."""
    with closing(IcebergTable(TableSpec(database=LAKE, table=table, id="id", event_time="at"))) as reader:
        at_ms = time.time_ns() // 1_000_000
        return "".join(sorted(reader.missing([SeenRow(0, message_id, at_ms) for message_id in ids]).ids))


def insert(spark: IcebergWriter, table: str, *ids: str) -> None:
    rows = ", ".join(f"('{message_id}', current_timestamp(), 'new')" for message_id in ids)
    spark.sql(f"INSERT INTO {table} VALUES {rows}")


@pytest.mark.parametrize("mode", list(MODES))
def test_what_spark_rewrites_deletes_and_compacts_shows_once(
    spark: IcebergWriter, reading: Callable[[str], Reading], mode: str
) -> None:
    name = f"raw.{mode.replace('-', '_')}"
    table = f"{LAKE}.{name}"
    spark.sql(
        f"CREATE TABLE {table} (id string, at timestamp, state string) USING iceberg"
        f" PARTITIONED BY (days(at), bucket(3, id)) TBLPROPERTIES ({MODES[mode]})"
    )
    rows = reading(name)
    assert rows.read() == []
    insert(spark, table, "a", "b", "c")
    insert(spark, table, "d")
    assert rows.read() == ["a", "b", "c", "d"]
    spark.sql(f"UPDATE {table} SET state = 'changed' WHERE id IN ('a', 'd')")
    assert rows.read() == []
    spark.sql(f"UPDATE {table} SET state = 'again' WHERE id = 'a'")
    assert rows.read() == []
    assert missing(name, "abcdx") == "x"
    spark.sql(f"DELETE FROM {table} WHERE id = 'b'")
    assert rows.read() == []
    assert missing(name, "abcdx") == "bx"
    spark.sql(
        f"MERGE INTO {table} t USING (SELECT explode(array('a', 'e', 'f')) AS id) s ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET state = 'merged'"
        " WHEN NOT MATCHED THEN INSERT (id, at, state) VALUES (s.id, current_timestamp(), 'new')"
    )
    assert rows.read() == ["e", "f"]
    insert(spark, table, "g")
    spark.sql(f"CALL {LAKE}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL {LAKE}.system.rewrite_manifests('{name}')")
    insert(spark, table, "h")
    assert rows.read() == ["g", "h"]
    assert missing(name, "abcdefgh") == "b"
    spark.sql(
        f"INSERT OVERWRITE {table} SELECT id, at, 'kept' FROM {table} WHERE id <> 'c' UNION ALL"
        " SELECT 'i', current_timestamp(), 'new'"
    )
    assert rows.read() == ["i"]
    assert missing(name, "abcdefghi") == "bc"
    operations = {row[0] for row in spark.sql(f"SELECT operation FROM {table}.snapshots")}
    assert operations >= {"append", "overwrite", "replace"}
    assert not rows.break_


def test_a_table_that_is_replaced_shows_only_new_rows(spark: IcebergWriter, reading: Callable[[str], Reading]) -> None:
    table = f"{LAKE}.raw.replaced"
    spark.sql(f"CREATE TABLE {table} (id string, at timestamp, state string) USING iceberg")
    rows = reading("raw.replaced")
    insert(spark, table, "a", "b")
    assert rows.read() == ["a", "b"]
    spark.sql(
        f"CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT id, at, 'kept' AS state FROM {table}"
        " UNION ALL SELECT 'c', current_timestamp(), 'new'"
    )
    assert rows.read() == ["c"]
    assert not rows.break_


def test_snapshots_that_spark_expires_unread_leave_windows_incomplete(
    spark: IcebergWriter, reading: Callable[[str], Reading]
) -> None:
    table = f"{LAKE}.raw.expired"
    spark.sql(f"CREATE TABLE {table} (id string, at timestamp, state string) USING iceberg")
    rows = reading("raw.expired")

    def expire() -> None:
        spark.sql(
            f"CALL {LAKE}.system.expire_snapshots(table => 'raw.expired', retain_last => 1,"
            " older_than => TIMESTAMP '2999-01-01 00:00:00')"
        )

    insert(spark, table, "a")
    assert rows.read() == ["a"]
    insert(spark, table, "b")
    expire()
    assert rows.read() == ["b"]
    assert not rows.break_  # its parent is the one that was read
    insert(spark, table, "c")
    insert(spark, table, "d")
    spark.sql(f"CALL {LAKE}.system.rewrite_data_files(table => 'raw.expired', options => map('rewrite-all', 'true'))")
    expire()
    assert set(rows.read()) >= {"c", "d"}
    assert rows.break_ == "snapshots expired before they were read"
