"""Tables of Iceberg in catalogs of each kind, with their files on S3 or on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import boto3
import pytest
from pyiceberg.catalog import load_catalog

from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.ops.checks import Check
from lagloss_server.ops.embedded.localstack import EmbeddedLocalStack
from lagloss_server.ops.embedded.postgres import EmbeddedPostgres
from lagloss_server.ops.table_checks import check_tables
from taps.tables.iceberg import IcebergTable
from taps.tables.readers import TableOfUrl
from tests.conftest import fresh_database
from tests.fakes.iceberg_rest import CREDENTIAL, RestCatalogServer
from tests.support.hive_metastore import HiveMetastore, WritingHiveCatalog
from tests.support.lakes import Lake, LakeTable, lake_at
from tests.support.tapped_tables import Reading

VARIABLE = "LAGLOSS_TABLES_LAKE_URL"


@pytest.fixture
def reading() -> Iterator[Callable[[LakeTable], Reading]]:
    with ExitStack() as hold:

        def read(table: LakeTable) -> Reading:
            reader = TableOfUrl(table.spec)
            hold.callback(reader.close)
            return Reading(reader, time.time_ns() // 1_000_000 - 600_000)

        yield read


def check(spec: TableSpec) -> Check:
    (finding,) = check_tables([TableTap("p", "sink", spec, ("out",), first=False)])
    return finding


@pytest.fixture
def bucket(localstack: EmbeddedLocalStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in localstack.variables.items():
        monkeypatch.setenv(name, value)
    name = f"warehouse-{time.time_ns()}"
    s3 = boto3.client("s3")
    s3.create_bucket(Bucket=name)
    yield name
    s3.close()


@pytest.fixture
def lake(
    bucket: str, localstack: EmbeddedLocalStack, postgres: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Lake]:
    """A catalog in PostgreSQL, with its files on S3."""
    with (
        fresh_database(postgres) as url,
        lake_at(
            url,
            f"s3://{bucket}/warehouse",
            monkeypatch,
            **{"s3.endpoint": localstack.url, "s3.region": "us-east-1"},
        ) as opened,
    ):
        yield opened


def test_a_catalog_in_postgresql_with_files_on_s3(
    lake: Lake, bucket: str, monkeypatch: pytest.MonkeyPatch, reading: Callable[[LakeTable], Reading]
) -> None:
    table = lake.table()
    rows = reading(table)
    assert rows.read() == []
    table.append("a", "b")
    table.append("c")
    assert rows.read() == ["a", "b", "c"]
    table.merge(table.files()[0], "d")
    assert rows.read() == ["d"]
    assert check(table.spec).finding == "read by its snapshots, 3 of them"
    assert check(table.spec).verdict == "ok"
    files = boto3.client("s3")
    table.append("e")
    (added,) = [file for file in table.files() if table.rows_of(file)["id"].to_pylist() == ["e"]]
    key = added.file_path.removeprefix(f"s3://{bucket}/")
    content = files.get_object(Bucket=bucket, Key=key)["Body"].read()
    files.delete_object(Bucket=bucket, Key=key)
    with pytest.raises(TableUnreadable, match=r"raw\.orders of lake: FileNotFoundError"):
        rows.read()
    files.put_object(Bucket=bucket, Key=key, Body=content)
    assert rows.read() == ["e"]
    monkeypatch.setenv(VARIABLE, "iceberg+postgresql://nobody@127.0.0.1:1/x?warehouse=s3://w")
    rows.table.close()
    with pytest.raises(TableUnreadable, match="OperationalError"):
        rows.read()


def test_doctor_says_what_a_table_of_iceberg_lacks(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lake.table()
    spec = table.spec
    assert check(spec).finding == "read by its snapshots, 0 of them"
    table.append("a")
    assert check(spec.model_copy(update={"id": "number"})).finding.startswith("it has no column number")
    assert check(spec.model_copy(update={"table": "raw.x"})).finding == "the catalog does not have it"
    assert check(spec.model_copy(update={"cursor": "n"})).finding.startswith("its files say what is new")
    with monkeypatch.context() as patch:
        patch.setenv(VARIABLE, "iceberg+ftp://x")
        assert "expected one of iceberg+http://" in check(spec).finding
        patch.setenv(VARIABLE, "mysql://x")
        assert "is not a postgresql:// URL, an iceberg+ URL or an s3:// URL" in check(spec).finding
        patch.delenv(VARIABLE)
        assert "is not set" in check(spec).finding


def test_a_rest_catalog_is_logged_in_to_and_has_one_request_a_look(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, reading: Callable[[LakeTable], Reading]
) -> None:
    table = lake.table()
    properties = {name: str(table.table.io.properties[name]) for name in ("s3.endpoint", "s3.region")}
    with RestCatalogServer(lake.catalog, properties) as server:
        login = f"oauth2-server-uri={server.url}/v1/oauth/tokens"
        monkeypatch.setenv(VARIABLE, f"iceberg+{server.url}?{login}&credential={CREDENTIAL}")
        rows = reading(table)
        assert rows.read() == []
        table.append("a")
        assert rows.read() == ["a"]
        assert rows.read() == []
        assert server.loads == 3
        assert len(server.requests) == 3 + 3  # and of pyiceberg, once: its configuration, by a session of its own
        assert check(table.spec).verdict == "ok"
        lost = Reading(IcebergTable(table.spec.model_copy(update={"table": "raw.nothing"})))
        with pytest.raises(TableUnreadable, match="the catalog does not have it"):
            lost.read()
        monkeypatch.setenv(VARIABLE, f"iceberg+{server.url}?{login}&credential=tap:wrong")
        with pytest.raises(TableUnreadable, match="OAuthError") as refused:
            reading(table).read()
        assert "wrong" not in str(refused.value)
    with pytest.raises(TableUnreadable, match="ConnectionError"):
        rows.read()


@pytest.mark.slow
def test_a_metastore_of_hive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: Callable[[LakeTable], Reading]
) -> None:
    warehouse = f"file://{tmp_path}/warehouse"
    with HiveMetastore(tmp_path) as metastore:
        properties = {"uri": metastore.uri, "warehouse": warehouse, "hive.hive2-compatible": "true"}
        table = Lake(WritingHiveCatalog("lake", **properties)).table()
        monkeypatch.setenv(VARIABLE, f"iceberg+{metastore.uri}?warehouse={warehouse}")
        rows = reading(table)
        assert rows.read() == []
        table.append("a")
        assert rows.read() == ["a"]
        table.append("b")
        assert rows.read() == ["b"]
        assert check(table.spec).verdict == "ok"
    with pytest.raises(TableUnreadable, match="TTransportException"):
        rows.read()


def test_properties_of_a_catalog_come_from_pyiceberg_s_environment_too(
    lake: Lake, localstack: EmbeddedLocalStack, monkeypatch: pytest.MonkeyPatch, reading: Callable[[LakeTable], Reading]
) -> None:
    table = lake.table()
    table.append("a")
    uri = str(lake.catalog.properties["uri"])
    monkeypatch.setenv(VARIABLE, f"iceberg+{uri}")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__S3__ENDPOINT", localstack.url)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", type(load_catalog.__globals__["_ENV_CONFIG"])())
    assert reading(table).read() == ["a"]
