"""Messages whose rows are gone from a table of Iceberg are named, whatever form their deletion has, and no others."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType, StringType

from lagloss_server.base.errors import TableUnreadable
from taps.tables import iceberg, iceberg_rows
from taps.tables.iceberg import IcebergTable
from taps.tables.reading import MissingRows, SeenRow, TableVersion
from tests.support.lakes import SCHEMA, Lake, LakeTable, lake_on_disk, now_us, orders

AT_MS = now_us() // 1_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with lake_on_disk(tmp_path, monkeypatch) as opened:
        yield opened


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table(**{"format-version": "2"})


def look(table: LakeTable, ids: Iterable[str], at_ms: int = AT_MS) -> MissingRows:
    reader = IcebergTable(table.spec)
    try:
        return reader.missing([SeenRow(0, message_id, at_ms) for message_id in ids])
    finally:
        reader.close()


def missing(table: LakeTable, ids: Iterable[str], at_ms: int = AT_MS) -> str:
    return "".join(sorted(look(table, ids, at_ms).ids))


def version(table: LakeTable) -> TableVersion:
    return look(table, "").version


def append(table: LakeTable, ids: Iterable[str]) -> None:
    table.append(*ids, at_us=AT_MS * 1_000)


def test_rows_that_are_deleted_overwritten_or_never_committed_are_missing(table: LakeTable) -> None:
    assert missing(table, "ab") == "ab"
    append(table, "abc")
    append(table, "de")
    assert missing(table, "abcde") == ""
    table.remove("b")
    assert missing(table, "abcde") == "b"
    table.table.overwrite(orders("cf"), overwrite_filter="id in ('d', 'e')")
    table.write(orders("x"))
    assert missing(table, "abcdefx") == "bdex"


def test_rows_that_are_compacted_moved_in_time_or_written_again_are_there(table: LakeTable) -> None:
    for ids in ("a", "b", "c"):
        append(table, ids)
    table.compact()
    table.remove("b")
    table.append("b", at_us=1)
    table.table.overwrite(orders("c", 1), overwrite_filter="id = 'c'")
    assert missing(table, "abcd") == "d"


def test_rows_are_missing_after_a_rollback_and_back_after_another(table: LakeTable) -> None:
    append(table, "a")
    append(table, "b")
    newest = table.table.metadata.current_snapshot_id
    before = version(table)
    table.roll_back(1)
    assert missing(table, "ab") == "b"
    assert version(table).at > before.at
    assert newest is not None
    table.table.manage_snapshots().set_current_snapshot(newest).commit()
    assert missing(table, "ab") == ""


def test_marks_of_positions_and_deletes_by_equality_are_applied_as_the_format_says(table: LakeTable) -> None:
    append(table, "abc")
    (file,) = table.files()
    table.commit_delta([], [table.write_position_deletes(file, 0)])
    assert missing(table, "abc") == "a"
    table.upsert("b", at_us=AT_MS * 1_000)
    assert missing(table, "abc") == "a"  # of the same commit, it does not mark its own row
    table.commit_delta([], [table.write_equality_deletes(pa.table({"id": ["b", "z"]}))])
    assert missing(table, "abc") == "ab"
    append(table, "b")
    assert missing(table, "abc") == "a"
    table.commit([file])  # by another coordinator: newer than the mark of its row
    assert missing(table, "abc") == ""


def test_deletes_by_equality_of_several_columns_mark_rows_that_have_them_all(table: LakeTable) -> None:
    append(table, "abc")
    deletes = pa.table({"id": ["a", "b", None], "state": ["new", "paid", None]})
    table.commit_delta([], [table.write_equality_deletes(deletes)])
    assert missing(table, "abc") == "a"
    table.commit_delta([], [table.write_equality_deletes(pa.table({"state": ["new"]}))])
    assert missing(table, "abc") == "abc"


def test_deletes_by_equality_of_a_partition_mark_no_row_of_another(table: LakeTable) -> None:
    append(table, "ab")
    with table.table.update_spec() as update:
        update.add_identity("state")
    append(table, "cd")
    deletes = table.write_equality_deletes(pa.table({"id": ["a", "c"]}))
    (file,) = [file for file in table.files() if file.spec_id == deletes.spec_id]
    deletes._data[3] = file.partition
    table.commit_delta([], [deletes])
    assert missing(table, "abcd") == "c"


def test_too_many_deletes_by_equality_are_not_compared(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, "a")
    table.upsert("a", "b")
    monkeypatch.setattr(iceberg_rows, "MAX_DELETES", 1)
    with pytest.raises(TableUnreadable, match=r"more than 1 deletes by equality: compact it \(rewrite_data_files\)"):
        missing(table, "a")


def test_a_look_that_takes_too_long_says_nothing(table: LakeTable, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, "a")
    monkeypatch.setattr(iceberg_rows, "SCAN_S", -1)
    with pytest.raises(TableUnreadable, match="looking for rows that are not where they were takes more than"):
        missing(table, "a")


def test_a_file_that_is_away_says_nothing(table: LakeTable, tmp_path: Path) -> None:
    append(table, "a")
    append(table, "b")
    path = Path(table.files()[0].file_path.removeprefix("file://"))
    path.rename(tmp_path / "away")
    with pytest.raises(TableUnreadable, match="FileNotFoundError"):
        missing(table, "abc")
    (tmp_path / "away").rename(path)
    table.commit_delta([], [table.write_position_deletes(table.files()[0], 0)])
    for marks in (tmp_path / "warehouse").rglob("*-deletes.parquet"):
        marks.unlink()
    with pytest.raises(TableUnreadable, match="FileNotFoundError"):
        missing(table, "abc")


def test_partitions_and_bounds_of_files_hide_no_row(lake: Lake) -> None:
    table = lake.table()
    ids = [f"{number:04}" for number in range(300)]
    append(table, ids[:100])
    append(table, ids[100:250])
    append(table, ids[280:])
    assert look(table, ids).ids == {*ids[250:280]}
    assert look(table, [*ids[240:], "é", "🎈"]).ids == {*ids[250:280], "é", "🎈"}
    with table.table.update_spec() as update:
        update.add_identity("id")
    append(table, ["é", "🎈"])
    assert look(table, ["é", "🎈", "z"]).ids == {"z"}


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64()])
def test_integers_are_compared_as_they_are_written(lake: Lake, kind: pa.DataType) -> None:
    schema = pa.schema([("id", kind), ("at", SCHEMA.types[1]), ("state", pa.string())])
    table = lake.table("ints", schema)
    table.commit(table.write(orders([0, -7, 12], AT_MS * 1_000, schema)))  # type: ignore[list-item]
    ids = ["0", "-7", "12", "13", "007", "+12", "12.0", "x", "9999999999", "9" * 30]
    assert look(table, ids).ids == {*ids[3:]}
    before = version(table).columns
    if kind == pa.int32():
        with table.table.update_schema() as update:
            update.update_column("id", LongType())
        large = pa.schema([("id", pa.int64()), ("at", SCHEMA.types[1]), ("state", pa.string())])
        table.commit(table.write(orders([9999999999], AT_MS * 1_000, large)))  # type: ignore[list-item]
        assert look(table, ids).ids == {*ids[3:8], ids[9]}
    assert version(table).columns == before


def test_uuids_are_compared_as_they_are_written(lake: Lake) -> None:
    schema = pa.schema([("id", pa.uuid()), ("at", pa.int64())])
    table = lake.table("uuids", schema)
    column = pa.array([b"0123456789abcdef"], pa.binary(16)).cast(pa.uuid())
    table.commit(table.write(pa.table({"id": column, "at": pa.array([AT_MS])}, schema=schema)))
    there, gone = "30313233-3435-3637-3839-616263646566", "30313233-3435-3637-3839-616263646567"
    assert look(table, [there, gone, there.upper(), "x"]).ids == {gone, there.upper(), "x"} - {there}


def test_versions_ascend_and_belong_to_a_catalog_a_table_and_a_column(
    lake: Lake, table: LakeTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = version(table)
    append(table, "a")
    second = version(table)
    table.expire()
    append(table, "b")
    table.expire()
    third = version(table)
    assert first.at < second.at < third.at
    assert (first.store, first.columns, first.table) == (third.store, third.columns, third.table)
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    with table.table.update_schema() as update:
        update.add_column("id", StringType())
    assert version(table).columns != first.columns
    with monkeypatch.context() as patch:
        patch.setenv("LAGLOSS_TABLES_LAKE_URL", f"iceberg+sqlite:///{tmp_path}/catalog.db?name=other&warehouse=x")
        with pytest.raises(TableUnreadable, match="the catalog does not have it"):
            version(table)
    lake.catalog.drop_table("raw.orders")
    assert version(lake.table()).table != first.table


def test_a_read_s_version_is_never_behind_one_that_was_read_before(
    table: LakeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "BEHIND_S", 0)  # restored, not behind
    append(table, "a")
    reader = IcebergTable(table.spec)
    read = reader.read({}, 0)
    assert read.version is not None
    assert read.version == version(table)
    ahead = {**read.position, "at": [1 << 60]}
    reader.close()
    behind = reader.read(ahead, 0)
    assert behind.version is not None
    assert behind.version.at == (1 << 60,)
    assert behind.position["at"] == ((1 << 60),)
    reader.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_is_missing_is_what_a_model_of_the_table_does_not_hold(lake: Lake, seed: int) -> None:
    choose = random.Random(seed)
    table = lake.table(**{"format-version": "2"})
    wanted = [f"{number:02}" for number in range(20)]
    present: set[str] = set()
    rows: dict[str, list[str]] = {}
    for _ in range(12):
        ids = choose.sample(wanted, choose.randint(1, 5))
        match choose.choice(["append", "upsert", "delete", "mark"]):
            case "append":
                append(table, ids)
                present |= {*ids}
            case "upsert":
                table.upsert(*ids, at_us=choose.choice([AT_MS * 1_000, 1]))
                present |= {*ids}
            case "delete":
                table.commit_delta([], [table.write_equality_deletes(pa.table({"id": ids}))])
                present -= {*ids}
            case "mark" if table.files():
                _mark_all(table, ids)
                present -= {*ids}
        rows[str(len(rows))] = sorted(present)
        assert look(table, wanted).ids == {*wanted} - present, rows


def _mark_all(table: LakeTable, ids: Collection[str]) -> None:
    """Mark all rows with these ids by their positions."""
    positions: Mapping[int, list[int]] = {
        index: [row for row, message_id in enumerate(table.rows_of(file)["id"].to_pylist()) if message_id in ids]
        for index, file in enumerate(table.files())
    }
    files = table.files()
    marks = [table.write_position_deletes(files[index], *rows) for index, rows in positions.items() if rows]
    if marks:
        table.commit_delta([], marks)
