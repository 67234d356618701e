"""A row that was in a table of Iceberg, or in a folder of Parquet, and is not any more is lost afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.types import StringType
from sqlalchemy import Engine

from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from taps.tables import iceberg, parquet
from tests.support.lakes import Lake, LakeTable, lake_on_disk, now_us, orders
from tests.support.landings import Landing, landing_on
from tests.support.rechecked_tables import RecheckedTable, rechecked

Watch = Callable[[], RecheckedTable]


@pytest.fixture
def at_us() -> int:
    """When the rows of a test are of: all of one minute."""
    return now_us() // 60_000_000 * 60_000_000


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    with lake_on_disk(tmp_path, monkeypatch) as opened:
        yield opened


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table(**{"format-version": "2"})


@pytest.fixture
def watched(table: LakeTable, at_us: int, tap_engine: Engine, tap_database: str) -> Iterator[RecheckedTable]:
    """A tap of a table that has the rows a, b and c."""
    table.append("a", "b", at_us=at_us)
    table.append("c", at_us=at_us)
    with rechecked(table.spec, tap_engine, tap_database) as opened:
        opened.read()
        yield opened


@pytest.fixture
def landing(localstack: EmbeddedLocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landing]:
    with landing_on(localstack, monkeypatch) as opened:
        yield opened


def test_a_row_that_is_deleted_in_any_way_is_lost_until_it_is_there_again(
    table: LakeTable, at_us: int, watched: RecheckedTable
) -> None:
    watched.look_twice()
    assert watched.lost() == {}
    table.commit_delta([], [table.write_equality_deletes(orders("b").select(["id"]))])
    (file,) = [file for file in table.files() if table.rows_of(file)["id"].to_pylist() == ["c"]]
    table.commit_delta([], [table.write_position_deletes(file, 0)])
    watched.look("1h")
    assert watched.lost() == {}
    watched.look("10m")
    assert watched.lost() == {"b": "deleted", "c": "deleted"}
    table.append("c", at_us=at_us)  # right after the delete: no new row, as this can be an overwrite
    watched.read()
    watched.look("10m")
    assert watched.lost() == {"b": "deleted"}
    table.append("b", at_us=at_us)
    watched.read()
    watched.look()
    assert watched.lost() == {}


def test_rows_that_are_rewritten_upserted_or_compacted_are_not_lost(table: LakeTable, watched: RecheckedTable) -> None:
    table.merge(table.files()[0], "d")
    table.compact()
    table.upsert("a", at_us=1)
    table.expire()
    watched.look_twice()
    watched.look_twice("7d")
    assert watched.lost() == {}
    assert watched.trouble == ""


def test_rows_of_a_table_that_is_created_again_are_gone_once_its_commits_are_later(
    lake: Lake, at_us: int, watched: RecheckedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.catalog.drop_table("raw.orders")
    again = lake.table()
    again.append("a", at_us=at_us)
    watched.look_twice()
    assert watched.lost() == {}  # of the same minute: which one was before the other is not known
    assert "behind what was read before" in watched.trouble
    monkeypatch.setattr(iceberg, "_MINUTE_MS", 1)
    watched.look_twice("1h")
    assert watched.lost() == {"b": "recreated", "c": "recreated"}
    assert watched.trouble == ""


def test_what_cannot_be_read_or_compared_is_not_lost(
    lake: Lake, table: LakeTable, watched: RecheckedTable, tmp_path: Path
) -> None:
    table.remove("a")
    path = Path(table.files()[0].file_path.removeprefix("file://"))
    path.rename(tmp_path / "away")
    watched.look_twice()
    assert "FileNotFoundError" in watched.trouble
    (tmp_path / "away").rename(path)
    lake.catalog.rename_table("raw.orders", "raw.gone")
    watched.look_twice("1h")
    assert "the catalog does not have it" in watched.trouble
    lake.catalog.rename_table("raw.gone", "raw.orders")
    with table.table.refresh().update_schema() as update:
        update.rename_column("id", "number")
    with table.table.update_schema() as update:
        update.add_column("id", StringType())
    watched.look_twice("1h")
    assert "its id was read as string 1, and is string 4 now" in watched.trouble
    assert watched.lost() == {}


def test_a_row_of_a_folder_is_lost_once_no_file_has_it(
    landing: Landing, at_us: int, tap_engine: Engine, tap_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.put("ab.parquet", orders("ab", at_us))
    landing.put("cd.parquet", orders("cd", at_us))
    with rechecked(landing.spec, tap_engine, tap_database) as watched:
        watched.read()
        landing.put("abd.parquet", orders("abd", 1))  # as a compaction, and of other event times
        landing.delete("ab.parquet")
        landing.delete("cd.parquet")
        landing.put("bad.parquet", b"PAR1")
        watched.look_twice()
        assert watched.lost() == {}
        assert "landing/raw/orders/bad.parquet is not a file of Parquet" in watched.trouble
        landing.delete("bad.parquet")
        with monkeypatch.context() as patch:
            patch.setattr(parquet, "SCAN_S", -1)
            watched.look_twice("1h")
            assert "takes more than -1 s" in watched.trouble
        with monkeypatch.context() as patch:
            patch.setenv("LAGLOSS_TABLES_LANDING_URL", f"s3://{landing.bucket}/nothing")
            watched.look_twice("1h")
            assert "its rows were seen on another server" in watched.trouble
        watched.look_twice("1h")
        assert watched.lost() == {"c": "deleted"}
        landing.put("c.parquet", orders("c", at_us))
        watched.look("1h")
        assert watched.lost() == {}
