"""The URL of a database says which kind its tables are, and holds what a catalog of Iceberg needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lagloss.errors import BadSetting
from lagloss_server.base.database_url import connection_options
from lagloss_server.base.settings import Settings
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.iceberg_tables import catalog_properties
from lagloss_server.net.parquet_folders import folder_of
from lagloss_server.net.table_urls import OWN_DATABASE, kind_of, own_database, url_of, variable_of
from taps.tables.readers import READERS

VARIABLE = "LAGLOSS_TABLES_EU_LAKE_URL"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://a/b", "postgresql"),
        ("postgres://a/b", "postgresql"),
        ("iceberg+https://a", "iceberg"),
        ("iceberg+postgresql://a/b", "iceberg"),
        ("s3://a/b", "parquet"),
    ],
)
def test_the_scheme_names_the_kind(url: str, kind: str) -> None:
    assert kind_of("eu-lake", {VARIABLE: url}) == kind
    assert kind in READERS


@pytest.mark.parametrize("url", ["", "mysql://a/b", "gs://a", "/var/lake", "S3://a"])
def test_another_url_is_refused_with_its_variable_and_without_its_text(url: str) -> None:
    with pytest.raises(BadSetting, match=VARIABLE) as refused:
        url_of("eu-lake", {VARIABLE: url})
    assert not url or url not in str(refused.value)


def test_a_catalog_s_query_holds_its_properties() -> None:
    url = "iceberg+https://h:8181/api?warehouse=w&credential=id%3Asecret&s3.endpoint=http%3A%2F%2Fstore:9000"
    assert catalog_properties(url, VARIABLE) == {
        "uri": "https://h:8181/api",
        "warehouse": "w",
        "credential": "id:secret",
        "s3.endpoint": "http://store:9000",
    }
    assert catalog_properties("iceberg+thrift://h:9083", VARIABLE) == {"uri": "thrift://h:9083"}


def test_options_of_libpq_stay_with_the_database_of_a_catalog() -> None:
    url = "iceberg+postgresql://me:pw@h:5432/db?name=prod&warehouse=s3://b/w&sslmode=require&connect_timeout=3"
    properties = catalog_properties(url, VARIABLE)
    assert properties.pop("uri").startswith("postgresql://me:pw@h:5432/db?connect_timeout=3&")
    assert "sslmode=require" in catalog_properties(url, VARIABLE)["uri"]
    assert properties == {
        "name": "prod",
        "warehouse": "s3://b/w",
        "pool_pre_ping": "true",
        "init_catalog_tables": "false",
    }


def test_a_catalog_on_disk_keeps_its_path() -> None:
    assert catalog_properties("iceberg+sqlite:////var/c.db?warehouse=w", VARIABLE)["uri"] == "sqlite:////var/c.db"


@pytest.mark.parametrize("url", ["iceberg+", "iceberg+sql://h", "iceberg+ftp://h", "iceberg+glue://"])
def test_what_is_no_catalog_is_refused(url: str) -> None:
    with pytest.raises(BadSetting, match=r"expected one of iceberg\+http://"):
        catalog_properties(url, VARIABLE)


@pytest.mark.parametrize(
    ("url", "table", "folder"),
    [
        ("s3://b/p", "raw.orders", ("b", "p/raw/orders/")),
        ("s3://b/p/", "raw.eu.orders", ("b", "p/raw/eu/orders/")),
        ("s3://b", "raw.orders", ("b", "raw/orders/")),
        ("s3://", "b.orders", ("b", "orders/")),
    ],
)
def test_a_table_s_names_are_levels_below_the_url(
    url: str, table: str, folder: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, url)
    assert folder_of(TableSpec(database="eu-lake", table=table, id="id", event_time="at")) == folder


OWN = variable_of(OWN_DATABASE)
OWN_URL = "postgresql://lagloss@127.0.0.1:5432/lagloss?passfile=/data/pgpass"


def test_taps_of_up_name_its_database_by_a_url_that_leads_there() -> None:
    environ = own_database({}, Settings(database_url=OWN_URL))
    assert environ.keys() == {OWN} == {"LAGLOSS_TABLES_LAGLOSS_URL"}
    assert kind_of(OWN_DATABASE, environ) == "postgresql"
    assert connection_options(environ[OWN]) == connection_options(OWN_URL)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(database_url="postgresql://me@db/lagloss", database_password="p@ss word"),
        Settings(database_url="postgres://me:p%40ss%20word@db/lagloss"),
        Settings(database_url="host=db dbname=lagloss user=me password='p@ss word'"),
    ],
)
def test_the_password_of_the_own_database_is_in_its_url(settings: Settings) -> None:
    url = url_of(OWN_DATABASE, own_database({}, settings))
    assert connection_options(url) == {"host": "db", "dbname": "lagloss", "user": "me", "password": "p@ss word"}


def test_a_database_of_that_name_in_the_environment_is_that_one(tmp_path: Path) -> None:
    settings = Settings(database_url=OWN_URL)
    assert own_database({OWN: "s3://lake"}, settings) == {}
    (tmp_path / "url").write_text("s3://lake")
    assert own_database({f"{OWN}_FILE": str(tmp_path / "url")}, settings) == {}
    with pytest.raises(BadSetting, match=f"{OWN}_FILE"):
        own_database({f"{OWN}_FILE": str(tmp_path / "nowhere")}, settings)


def test_with_teams_no_definition_names_the_database_with_the_rows_of_all() -> None:
    assert own_database({}, Settings(database_url=OWN_URL, access_file=Path("access.yaml"))) == {}
    with pytest.raises(BadSetting, match=f"{OWN} is not set"):
        url_of(OWN_DATABASE, {"LAGLOSS_DATABASE_URL": OWN_URL})
