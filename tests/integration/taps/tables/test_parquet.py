"""A folder of Parquet on S3 is read by its files: each new row once, whichever process reads it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableTap
from lagloss_server.net import parquet_folders
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.table_checks import check_tables
from taps.tables import parquet
from taps.tables.parquet import ParquetFolder
from tests.support.lakes import now_us, orders
from tests.support.landings import HOUR_MS, Landing, landing_on
from tests.support.tapped_tables import Reading

WHOLE_BYTES = (0, parquet_folders.WHOLE_BYTES)
"""Files are read by ranges, or by one request."""


@pytest.fixture
def landing(localstack: EmbeddedLocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landing]:
    with landing_on(localstack, monkeypatch) as opened:
        yield opened


def test_each_file_is_read_once_and_the_horizon_is_the_moment_before_it_was_listed(landing: Landing) -> None:
    rows = landing.reading()
    before_ms = now_us() // 1_000
    assert rows.read() == []
    assert before_ms <= rows.until_ms <= now_us() // 1_000
    landing.put("a.parquet", orders("ab"))
    landing.put("dt=2026-11-29/part-0.snappy.parquet", orders("c"))
    assert rows.read() == ["a", "b", "c"]
    rows.table = ParquetFolder(landing.spec)
    assert rows.read() == []
    landing.put("b.parquet", orders("d"))
    assert rows.read() == ["d"]
    assert rows.last is not None
    assert json.loads(rows.last.rows[0].document)["id"] == "d"


def test_what_is_no_file_of_the_table_is_left_out(landing: Landing) -> None:
    landing.put("_temporary/0/part-0.parquet", orders("a"))
    landing.put("_SUCCESS", b"")
    landing.put(".hidden.parquet", b"")
    landing.put("notes.txt", b"hello")
    landing.put("other.parquet", orders("b"), folder="landing/raw/orders2")
    landing.put("part-0.parquet", orders("c"))
    assert landing.reading().read() == ["c"]


def test_an_upload_in_parts_shows_once_it_is_complete(landing: Landing) -> None:
    rows = landing.reading()
    rows.read()
    upload = landing.begin("late.parquet", orders("a"))
    time.sleep(1.1)  # LastModified has seconds
    landing.put("b.parquet", orders("b"))
    assert rows.read() == ["b"]
    assert rows.read() == []
    landing.complete(upload)
    assert rows.read() == ["a"]
    assert not rows.break_


def test_a_key_that_is_overwritten_is_read_again_unless_its_content_is_the_same(landing: Landing) -> None:
    rows, first = landing.reading(), orders("ab")
    landing.put("a.parquet", first)
    assert rows.read() == ["a", "b"]
    landing.put("a.parquet", first)
    assert rows.read() == []
    landing.put("a.parquet", orders("bc"))
    assert rows.read() == ["b", "c"]


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("whole_bytes", WHOLE_BYTES)
def test_a_file_is_read_in_parts_by_whichever_process_goes_on(
    landing: Landing, kills: bool, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_folders, "WHOLE_BYTES", whole_bytes)
    rows = landing.reading(3)
    landing.put("a.parquet", orders(f"a{row}" for row in range(11)))
    landing.put("b.parquet", orders("b"))
    ids = rows.read()
    assert not rows.is_complete
    assert rows.until_ms == 0
    while not rows.is_complete:
        if kills:
            rows.table = ParquetFolder(landing.spec, 3)
        ids += rows.read()
    assert sorted(ids) == sorted([*(f"a{row}" for row in range(11)), "b"])
    assert rows.position["reading"] is None


def test_a_file_that_goes_while_it_is_read_leaves_windows_incomplete(landing: Landing) -> None:
    rows = landing.reading(3)
    landing.put("a.parquet", orders(f"a{row}" for row in range(11)))
    rows.read()
    landing.delete("a.parquet")
    rows.table = ParquetFolder(landing.spec)
    assert rows.read() == []
    assert rows.break_ == "landing/raw/orders/a.parquet was deleted or overwritten while it was read"
    assert rows.read() == []
    assert not rows.break_


@pytest.mark.parametrize("whole_bytes", WHOLE_BYTES)
def test_an_overwritten_file_is_never_read_as_a_mixture(
    landing: Landing, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_folders, "WHOLE_BYTES", whole_bytes)
    rows = landing.reading(3)
    landing.put("a.parquet", orders(f"a{row}" for row in range(11)))
    ids = rows.read()
    landing.put("a.parquet", orders(f"b{row}" for row in range(5)))
    breaks: set[str] = set()
    while "b4" not in ids:
        with suppress(TableUnreadable):  # of the version that is gone
            ids += rows.read()
            breaks.add(rows.break_)
    if whole_bytes:
        assert {f"a{row}" for row in range(11)} <= {*ids}
    else:
        assert "landing/raw/orders/a.parquet was deleted or overwritten while it was read" in breaks
    assert sorted({message_id for message_id in ids if message_id.startswith("b")}) == [f"b{row}" for row in range(5)]


def test_older_files_are_known_by_their_number_and_sum(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "NEWEST", 1)
    rows = landing.reading()
    for name in "abcd":
        landing.put(f"{name}.parquet", orders(name))
        time.sleep(1.1)
    assert rows.read() == ["a", "b", "c", "d"]
    assert rows.position["older"] == 3
    assert rows.read() == []
    rows.table = ParquetFolder(landing.spec)
    assert rows.read() == []
    assert not rows.break_
    landing.delete("a.parquet")
    assert rows.read() == []  # the process knows that it is the only change
    assert not rows.break_
    assert rows.position["older"] == 2
    landing.delete("b.parquet")
    rows.table = ParquetFolder(landing.spec)
    assert rows.read() == []
    assert rows.break_ == "older files came or went while no process was looking"
    rows.read()
    assert not rows.break_


def test_the_first_read_leaves_out_old_files_and_old_rows(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.put("old.parquet", orders("a", now_us() - 3 * HOUR_MS * 1_000))
    landing.put("new.parquet", pa.concat_tables([orders("bcde"), orders("f")]))
    assert landing.reading().read() == ["b", "c", "d", "e", "f"]
    time.sleep(1.1)
    landing.put("newest.parquet", orders("g"))
    monkeypatch.setattr(parquet, "FIRST", 1)
    rows = landing.reading()
    assert rows.read() == ["g"]
    assert rows.break_ == "it begins with its newest 1 files"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"number": [1], "at": [1]}), "landing/raw/orders/x.parquet has no column id; remove the file"),
        (pa.table({"id": [1.5], "at": [1]}), "expected id to be text, an integer or a uuid, found double in"),
        (pa.table({"id": [1], "at": [True]}), "expected at to be a timestamp, a number or text, found bool in"),
        (b"PAR1 and nothing else", "landing/raw/orders/x.parquet is not a file of Parquet"),
        (b"", "landing/raw/orders/x.parquet is not a file of Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_until_it_is_gone(
    landing: Landing, rows: pa.Table | bytes, problem: str
) -> None:
    reading = landing.reading()
    landing.put("x.parquet", rows)
    with pytest.raises(TableUnreadable, match=problem) as refused:
        reading.read()
    assert "x.parquet" in str(refused.value)
    landing.delete("x.parquet")
    landing.put("y.parquet", orders("a"))
    assert reading.read() == ["a"]


def test_a_bucket_that_is_not_there_and_a_server_that_is_away_are_outages(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAGLOSS_TABLES_LANDING_URL", "s3://nowhere-at-all")
    with pytest.raises(TableUnreadable, match=r"raw\.orders of landing: .*NoSuchBucket"):
        landing.reading().read()
    monkeypatch.setenv("LAGLOSS_TABLES_LANDING_URL", "s3://a/b?endpoint=c")
    with pytest.raises(TableUnreadable, match="credentials, region and endpoint are those of boto3's environment"):
        landing.reading().read()
    monkeypatch.setenv("LAGLOSS_TABLES_LANDING_URL", f"s3://{landing.bucket}/landing")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(TableUnreadable, match="Could not connect"):
        landing.reading().read()


def test_the_first_name_is_the_bucket_where_the_url_has_none(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAGLOSS_TABLES_LANDING_URL", "s3://")
    landing.put("a.parquet", orders("a"), folder="orders")
    spec = landing.spec.model_copy(update={"table": f"{landing.bucket}.orders"})
    assert Reading(ParquetFolder(spec)).read() == ["a"]


def test_doctor_says_what_a_folder_lacks(landing: Landing) -> None:
    def finding() -> tuple[str, str]:
        (check,) = check_tables([TableTap("p", "sink", landing.spec, ("out",), first=False)])
        return check.verdict, check.finding

    assert finding() == ("warn", f"s3://{landing.bucket}/landing/raw/orders/ has no *.parquet")
    landing.put("a.parquet", orders("a"))
    assert finding() == ("ok", "read by its files, 1 of them")
    landing.put("b.parquet", pa.table({"id": ["a"]}))
    time.sleep(1.1)
    landing.put("c.parquet", pa.table({"id": ["a"]}))
    assert finding() == (
        "fail",
        "landing/raw/orders/c.parquet has no column at; remove the file, or tap another folder",
    )
    landing.spec = landing.spec.model_copy(update={"cursor": "n"})
    assert finding()[1].startswith("its files say what is new: remove `cursor: n`")
