"""A table of Iceberg is read by its snapshots: each new row once, whatever else commits do."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, StringType, TimestamptzType

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec
from taps.tables import iceberg, iceberg_files, row_groups
from taps.tables.iceberg import IcebergTable
from taps.tables.reading import SeenRow
from tests.support.lakes import SCHEMA, Lake, LakeTable, lake_on_disk, now_us, orders
from tests.support.tapped_tables import Reading

HOUR_MS = 3_600_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with lake_on_disk(tmp_path, monkeypatch) as opened:
        yield opened


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table()


def now_ms() -> int:
    return now_us() // 1_000


def reading(table: LakeTable, limit: int = 20_000) -> Reading:
    return Reading(IcebergTable(table.spec, limit), now_ms() - HOUR_MS)


def test_each_row_shows_once_and_the_horizon_is_the_moment_before_the_table_was_loaded(table: LakeTable) -> None:
    rows = reading(table)
    before_ms = now_ms()
    assert rows.read() == []
    assert before_ms <= rows.until_ms <= now_ms()
    table.append("a", "b")
    table.append("c")
    assert rows.read() == ["a", "b", "c"]
    assert rows.read() == []
    table.append("d")
    assert rows.read() == ["d"]
    assert len(json.dumps(rows.position)) < 300


def test_files_that_are_in_no_snapshot_are_not_read(table: LakeTable) -> None:
    rows = reading(table)
    files = table.write(orders("ab"))
    assert rows.read() == []
    table.commit(files)
    assert rows.read() == ["a", "b"]
    table.commit(files)  # by another coordinator, that knows nothing of the first
    assert rows.read() == ["a", "b"]


def test_a_row_s_event_time_and_snapshot_are_in_its_document(table: LakeTable) -> None:
    rows = reading(table)
    rows.read()
    table.append("a", None, at_us=1_732_178_400_123_456)
    rows.read()
    assert rows.last is not None
    (first, second) = rows.last.rows
    assert json.loads(first.document) == {"id": "a", "eventTime": "2024-11-21 08:40:00.123456Z"}
    assert json.loads(second.document)["id"] is None
    assert first.place == table.table.refresh().metadata.current_snapshot_id


def test_an_overwrite_shows_only_rows_that_were_not_there(table: LakeTable) -> None:
    rows, at_us = reading(table), now_us()
    table.append("a", "b", at_us=at_us)
    assert rows.read() == ["a", "b"]
    table.merge(table.files()[0], "c", "d")
    assert rows.read() == ["c", "d"]
    table.remove("a")
    assert rows.read() == []
    table.table.overwrite(orders(["b", "e"], at_us))  # a delete, and an append
    assert rows.read() == ["e"]


def test_a_row_with_the_id_of_another_and_a_later_event_time_is_a_message_of_its_own(lake: Lake) -> None:
    table = lake.table("updates", **{"format-version": "2"})
    rows, at_us = reading(table), now_us()
    table.append("5", "6", at_us=at_us)
    assert rows.read() == ["5", "6"]
    table.replace(table.files(), table.write(orders("56", at_us + 1_000_000)))  # as MERGE does
    assert rows.read() == ["5", "6"]
    table.remove("5")
    table.append("5", at_us=at_us + 2_000_000)
    assert rows.read_all() == ["5"]
    table.upsert("5", "7", at_us=at_us + 3_000_000)
    assert rows.read() == ["5", "7"]
    assert not rows.break_


def test_a_commit_that_overwrites_what_was_never_read_shows_all_of_it(table: LakeTable) -> None:
    rows = reading(table)
    rows.read()
    table.append("a", "b")
    table.merge(table.files()[0], "c")
    table.remove("b")
    assert rows.read() == ["a", "b", "c"]


@pytest.mark.parametrize("event_time", ["timestamp", "text"])
def test_an_upsert_that_deletes_by_equality_shows_only_rows_that_were_not_there(lake: Lake, event_time: str) -> None:
    kinds = {"timestamp": SCHEMA, "text": SCHEMA.set(1, pa.field("at", pa.string()))}
    table = lake.table("upserts", kinds[event_time], **{"format-version": "2"})
    moment = now_us()

    def upsert(*ids: str, before: bool = False) -> None:
        rows = orders(ids, moment - HOUR_MS * before, kinds[event_time])
        table.commit_delta(table.write(rows), [table.write_equality_deletes(pa.table({"id": ids}))])

    rows = reading(table)
    assert rows.read() == []
    upsert("a", "b")
    assert rows.read() == ["a", "b"]
    upsert("b", "c")
    upsert("a", "d")
    assert rows.read_all() == ["c", "d"]
    table.expire()  # the snapshot before is of no need
    upsert("a", "b", "c", "d", "e", before=True)
    assert rows.read() == ["a", "b", "c", "d", "e"]  # of other event times
    table.commit_delta([], [table.write_equality_deletes(pa.table({"id": ["a"]}))])
    assert rows.read() == []
    assert not rows.break_


def test_rows_that_a_commit_marks_as_deleted_itself_show_at_no_time(table: LakeTable) -> None:
    rows = reading(table, 2)
    rows.read()
    files = table.write(orders("abacad"))
    marks = table.write_position_deletes(files[0], 0, 2)
    table.commit_delta(files, [marks, table.write_equality_deletes(pa.table({"id": ["a", "b", "c", "d"]}))])
    ids = rows.read()
    while not rows.is_complete:
        rows.table = IcebergTable(table.spec, 2)
        ids += rows.read()
    assert sorted(ids) == ["a", "b", "c", "d"]


def test_an_upsert_of_too_many_rows_leaves_windows_incomplete(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = reading(table)
    table.append("a", "b")
    rows.read()
    monkeypatch.setattr(iceberg_files, "MAX_REPLACED", 1)
    table.upsert("b", "c")
    rows.read()
    assert rows.break_ == "a commit replaced more rows than can be compared"


def test_a_compaction_shows_nothing(table: LakeTable) -> None:
    rows = reading(table)
    table.append("a")
    table.append("b")
    assert rows.read() == ["a", "b"]
    table.append("c")
    table.compact()
    table.append("d")
    assert rows.read() == ["c", "d"]


@pytest.mark.parametrize("kills", [False, True])
def test_a_snapshot_is_read_in_parts_by_whichever_process_goes_on(table: LakeTable, kills: bool) -> None:
    rows = reading(table, 3)
    table.append(*(f"a{row}" for row in range(7)))
    ids, reads = [], 0
    for name in "bc":
        table.append(name)
    while not ids or not rows.is_complete:
        if kills:
            rows.table = IcebergTable(table.spec, 3)
        ids += rows.read()
        assert (rows.until_ms > 0) == rows.is_complete
        reads += 1
        table.append(f"later{reads}")
        assert reads < 20
        if reads == 5:
            kills = False
    assert sorted(ids + rows.read_all()) == sorted(
        [f"a{row}" for row in range(7)] + ["b", "c"] + [f"later{read}" for read in range(1, reads + 1)]
    )


def test_batches_of_a_file_are_bounded(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_files, "MAX_ROWS", 10)
    rows = reading(table, 10)
    rows.read()
    table.append(*(f"{row}" for row in range(95)))
    ids: list[str] = []
    for _ in range(4):
        ids += rows.read()
        rows.table = IcebergTable(table.spec, 10)
    assert len(ids) == 40
    table.merge(table.files()[0], "new")
    assert len(set(ids + rows.read_all())) == 96


def test_snapshots_that_expired_unread_leave_windows_incomplete_and_their_rows_are_read(table: LakeTable) -> None:
    rows = reading(table)
    table.append("a")
    assert rows.read() == ["a"]
    table.append("b")
    table.append("c")
    table.append("d")
    table.expire()
    assert rows.read() == ["b", "c", "d"]
    assert rows.break_ == "snapshots expired before they were read"
    assert rows.last is not None
    assert rows.last.late_ms == HOUR_MS
    table.append("e")
    table.expire()  # the one that was read, too: none is missing since
    assert rows.read() == ["e"]
    assert not rows.break_


def test_snapshots_of_format_1_that_expired_unread_leave_windows_incomplete(lake: Lake) -> None:
    table = lake.table("first", **{"format-version": "1"})
    rows = reading(table)
    table.append("a")
    assert rows.read() == ["a"]
    table.append("b")
    table.append("c")
    table.expire()
    assert set(rows.read()) >= {"b", "c"}
    assert rows.break_ == "snapshots expired before they were read"
    table.append("d")
    assert rows.read() == ["d"]
    assert not rows.break_


def test_rows_of_an_expired_snapshot_that_the_next_one_replaced_are_read(lake: Lake) -> None:
    table = lake.table("tagged", **{"format-version": "2"})
    rows = reading(table)
    table.append("a")
    assert rows.read() == ["a"]
    table.table.manage_snapshots().create_tag(table.table.refresh().metadata.current_snapshot_id or 0, "kept").commit()
    table.append("b", "c")
    unread = table.table.refresh().metadata.current_snapshot_id or 0
    table.merge(next(file for file in table.files() if file.record_count == 2), "d")
    table.table.refresh().maintenance.expire_snapshots().by_ids([unread]).commit()
    assert sorted(rows.read()) == ["b", "c", "d"]
    assert rows.break_ == "snapshots expired before they were read"


def test_a_catalog_that_is_behind_is_waited_for_and_a_restored_one_is_read(
    lake: Lake, table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = reading(table)
    table.append("a")
    table.append("b")
    before = table.table.refresh().metadata_location
    table.append("c")
    assert rows.read_all() == ["a", "b", "c"]
    newest, horizon_ms = table.table.refresh().metadata_location, rows.until_ms
    lake.catalog.drop_table("raw.orders")
    lake.catalog.register_table("raw.orders", before)
    assert rows.read() == []
    assert not rows.is_complete
    assert rows.until_ms in (0, horizon_ms)
    lake.catalog.drop_table("raw.orders")
    lake.catalog.register_table("raw.orders", newest)
    assert rows.read() == []
    assert rows.is_complete
    lake.catalog.drop_table("raw.orders")
    lake.catalog.register_table("raw.orders", before)
    monkeypatch.setattr(iceberg, "BEHIND_S", 0)
    rows.read()
    assert rows.is_complete


def test_a_compacted_file_is_not_read_again_after_snapshots_expired(table: LakeTable) -> None:
    rows = reading(table)
    for name in "ab":
        table.append(name)
    assert rows.read() == ["a", "b"]
    table.append("c")
    table.remove("c")
    table.append("d")
    table.expire()
    assert rows.read() == ["d"]
    assert rows.break_


def test_a_rollback_takes_back_no_delivery(table: LakeTable) -> None:
    rows = reading(table)
    for name in "abc":
        table.append(name)
    assert rows.read() == ["a", "b", "c"]
    table.roll_back(2)
    assert rows.read() == []
    assert not rows.break_
    assert rows.position["snapshot"] == table.table.refresh().metadata.current_snapshot_id
    table.append("d")
    assert rows.read() == ["d"]


def test_a_table_that_is_created_again_is_read_from_its_begin(lake: Lake, table: LakeTable) -> None:
    rows = reading(table)
    table.append("a")
    assert rows.read() == ["a"]
    lake.catalog.drop_table("raw.orders")
    with pytest.raises(TableUnreadable, match=r"raw.orders of lake: the catalog does not have it"):
        rows.read()
    lake.table().append("b")
    assert rows.read() == ["b"]
    assert rows.break_ == "it was created again"


def test_a_history_that_is_replaced_shows_only_new_rows(table: LakeTable) -> None:
    rows, at_us = reading(table), now_us()
    table.append("a", "b", at_us=at_us)
    assert rows.read() == ["a", "b"]
    before = table.table.current_snapshot()
    assert before is not None
    files = table.write(orders(["b", "c"], at_us))
    with table.table.transaction() as transaction:  # as CREATE OR REPLACE TABLE AS SELECT does
        append = transaction.update_snapshot().fast_append()
        append._parent_snapshot_id = None
        for file in files:
            append.append_data_file(file)
        append.commit()
    assert table.table.metadata.snapshots[-1].parent_snapshot_id is None
    assert rows.read() == ["c"]
    assert not rows.break_


def test_columns_may_be_renamed_added_and_promoted(lake: Lake) -> None:
    table = lake.table("ints", pa.schema([("id", pa.int32()), ("at", pa.timestamp("us", "UTC"))]))
    rows = reading(table)
    table.commit(table.write(pa.table({"id": pa.array([1], pa.int32()), "at": pa.array([now_us()], SCHEMA.types[1])})))
    with table.table.update_schema() as update:
        update.update_column("id", LongType())
        update.add_column("order_id", StringType())
    assert rows.read_all() == [1]
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    with pytest.raises(TableUnreadable, match="it has no column id"):
        rows.read()
    rows.table = IcebergTable(table.spec.model_copy(update={"id": "number"}))
    large = pa.table({"number": pa.array([1 << 40]), "at": pa.array([now_us()], SCHEMA.types[1])})
    table.commit(table.write(large))
    assert rows.read() == [1 << 40]
    old = Reading(IcebergTable(table.spec.model_copy(update={"id": "order_id"})), now_ms() - HOUR_MS)
    assert old.read() == ["", ""]  # files from before it was added


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"id": "nothing"}, "it has no column nothing"),
        ({"event_time": "nothing"}, "it has no column nothing"),
        ({"id": "at"}, "expected at to be text, an integer or a uuid, found timestamptz"),
        ({"cursor": "n"}, "remove `cursor: n`, which is for tables of PostgreSQL"),
        ({"table": "raw.others"}, "the catalog does not have it"),
        ({"database": "nowhere"}, "LAGLOSS_TABLES_NOWHERE_URL"),
    ],
)
def test_what_cannot_be_read_is_named(table: LakeTable, change: dict[str, str], problem: str) -> None:
    with pytest.raises(TableUnreadable, match=problem):
        Reading(IcebergTable(table.spec.model_copy(update=change))).read()


def test_a_partitioned_table_is_read_across_a_change_of_its_partitions(table: LakeTable) -> None:
    rows = reading(table)
    table.append("a")
    with table.table.update_spec() as update:
        update.add_identity("state")
    table.append("b")
    with table.table.update_spec() as update:
        update.remove_field("state")
        update.add_identity("id")
    table.append("c")
    assert rows.read() == ["a", "b", "c"]


def test_the_first_read_begins_with_snapshots_of_its_first_window(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append("old")
    monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() + 2 * HOUR_MS * 1_000_000)
    monkeypatch.setattr(time, "time", lambda real=time.time: real() + 2 * HOUR_MS / 1_000)
    table.append("new")
    rows = reading(table)
    assert rows.read() == ["new"]


def test_the_first_read_without_older_snapshots_leaves_old_rows_out(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.append("old", at_us=now_us() - 3 * HOUR_MS * 1_000)
    table.append("new")
    table.append("unset", at_us=1)
    table.expire()
    assert reading(table).read() == ["new", "unset"]
    monkeypatch.setattr(iceberg, "REACH_ROWS", 1)
    few = reading(table)
    assert few.read() == ["unset"]
    assert few.break_ == "it begins with the newest 1 rows of its files"


def test_a_commit_that_replaces_too_many_rows_leaves_windows_incomplete(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = reading(table)
    table.append("a", "b")
    rows.read()
    monkeypatch.setattr(iceberg_files, "MAX_REPLACED", 1)
    table.merge(table.files()[0], "c")
    table.append("d")
    rows.read()
    assert rows.break_ == "a commit replaced more rows than can be compared"
    monkeypatch.undo()


def test_replaced_files_that_are_gone_make_duplicates_and_no_gap(table: LakeTable) -> None:
    rows = reading(table)
    table.append("a", "b")
    assert rows.read() == ["a", "b"]
    (file,) = table.files()
    table.merge(file, "c")
    table.expire()
    Path(file.file_path.removeprefix("file://")).unlink()
    assert rows.read() == ["a", "b", "c"]
    assert not rows.break_


def test_a_missing_file_and_a_missing_catalog_are_outages(
    table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = reading(table)
    rows.read()
    table.append("a")
    path = Path(table.files()[0].file_path.removeprefix("file://"))
    path.rename(tmp_path / "away")
    with pytest.raises(TableUnreadable, match=r"raw.orders of lake: FileNotFoundError: "):
        rows.read()
    (tmp_path / "away").rename(path)
    with monkeypatch.context() as patch:
        patch.setenv("LAGLOSS_TABLES_LAKE_URL", f"iceberg+sqlite:///{tmp_path}/nowhere/catalog.db?warehouse=x")
        with pytest.raises(TableUnreadable, match="OperationalError"):
            rows.read()
    assert rows.read() == ["a"]


def test_ids_are_text_integers_and_uuids_and_times_of_any_kind(lake: Lake) -> None:
    schema = pa.schema([("id", pa.uuid()), ("at", pa.int64())])
    table = lake.table("uuids", schema)
    rows = reading(table)
    column = pa.array([b"0123456789abcdef"], pa.binary(16)).cast(pa.uuid())
    table.commit(table.write(pa.table({"id": column, "at": pa.array([now_ms()])}, schema=schema)))
    assert rows.read() == ["30313233-3435-3637-3839-616263646566"]
    assert isinstance(table.table.schema().find_field("at").field_type, LongType)
    assert not isinstance(table.table.schema().find_field("at").field_type, TimestamptzType)


def test_no_secret_of_the_url_is_in_an_error(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in (
        "iceberg+postgresql://me:hunter2@127.0.0.1:1/x?warehouse=s3://b&s3.secret-access-key=hunter3",
        "iceberg+http://127.0.0.1:1?credential=hunter2:hunter3",
        "iceberg+thrift://127.0.0.1:1?s3.secret-access-key=hunter2",
        "iceberg+mysql://me:hunter2@x",
        "iceberg+",
    ):
        monkeypatch.setenv("LAGLOSS_TABLES_LAKE_URL", url)
        with pytest.raises(TableUnreadable) as refused:
            Reading(IcebergTable(table.spec)).read()
        assert "hunter" not in str(refused.value)


def test_a_table_s_spec_has_three_names_where_a_namespace_has_two() -> None:
    spec = TableSpec(database="lake", table="raw.eu.orders", id="id", event_time="at")
    assert spec.parts == ("raw", "eu", "orders")


@pytest.mark.parametrize("id_", ["id", "key"], ids=["", "that was renamed"])
def test_a_column_that_unpacks_to_more_than_its_limit_is_not_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, id_: str
) -> None:
    table = lake.table(schema=SCHEMA.set(0, pa.field(id_, pa.string())), **{"format-version": "2"})
    rows = orders(["x" * 3_000]).rename_columns([id_, "at", "state"])
    table.commit(table.write(rows.set_column(2, "state", pa.array(["x" * 5_000]))))
    if id_ != "id":
        with table.table.update_schema() as schema:
            schema.rename_column(id_, "id")
    (file,) = table.files()
    size = pq.read_metadata(file.file_path.removeprefix("file://")).row_group(0).column(0).total_uncompressed_size
    gone = "x" * 2_999  # within the bounds of the ids
    lost = [SeenRow(0, gone, now_ms())]
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size)
    assert len(reading(table).read()) == 1
    assert IcebergTable(table.spec).missing(lost).ids == {gone}
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size - 1)
    problem = f"expected up to {size - 1:,} bytes of {id_} in a row group, found {size:,} in {file.file_path}"
    for look in (reading(table).read, lambda: IcebergTable(table.spec).missing(lost)):
        with pytest.raises(TableUnreadable, match=problem):
            look()


def test_marks_of_deleted_rows_that_unpack_to_more_than_their_limit_are_not_read(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = lake.table(**{"format-version": "2"})
    table.append("a", "b")
    (file,) = table.files()
    marks = table.write_position_deletes(file, 0)
    table.commit_delta([], [marks])
    group = pq.read_metadata(marks.file_path.removeprefix("file://")).row_group(0)
    size = max(group.column(index).total_uncompressed_size for index in (0, 1))
    seen = [SeenRow(0, id_, now_ms()) for id_ in "ab"]
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size)
    assert IcebergTable(table.spec).missing(seen).ids == {"a"}
    monkeypatch.setattr(row_groups, "MAX_COLUMN_BYTES", size - 1)
    with pytest.raises(
        TableUnreadable, match=f"bytes of file_path in a row group, found {size:,} in {marks.file_path}"
    ):
        IcebergTable(table.spec).missing(seen)
