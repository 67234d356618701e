"""Tapped tables of Iceberg: their catalogs, by pyiceberg, and whether their columns can be read.

pyiceberg is an extra: importing this raises IcebergMissing without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from lagloss.errors import BadSetting, LaglossError
from lagloss_server.base.database_url import PATIENCE
from lagloss_server.base.errors import IcebergMissing, TableUnreadable
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.http_answers import AnswerBody
from lagloss_server.net.table_urls import refuse_cursor, unreadable, url_of, variable_of

try:
    from pyiceberg import types
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyiceberg.manifest import ManifestContent
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.utils.config import Config
except ModuleNotFoundError as error:
    raise IcebergMissing from error

TIMEOUT_S: Final = 30.0
"""Of each request to a REST catalog."""
MAX_CATALOG_BYTES: Final = 64 * 1024 * 1024
"""Of an answer of a REST catalog: that with a table has all snapshots of it, about 1,000 bytes each."""
_PIECE_BYTES: Final = 64 * 1024
SCHEMES: Final = ("http", "https", "thrift", "postgresql", "sqlite")
_PREFIX: Final = "iceberg+"

TIMESTAMPS: Final = (types.TimestampType, types.TimestamptzType, types.TimestampNanoType, types.TimestamptzNanoType)
_IDS: Final = (types.StringType, types.IntegerType, types.LongType, types.UUIDType)
_TIMES: Final = (*TIMESTAMPS, types.IntegerType, types.LongType, types.DoubleType, types.StringType)


class PatientRestCatalog(RestCatalog):
    """A REST catalog whose requests end, and whose answers have a limit: pyiceberg's own have none."""

    def _config_headers(self, session: Any) -> None:
        super()._config_headers(session)
        session.request = partial(session.request, timeout=TIMEOUT_S)
        session.hooks["response"].append(_keep_answer)


def _keep_answer(answer: Any, **_options: Any) -> None:
    """Read an answer as a hook of its session, which would read it without a limit. Raises httpx2.HTTPError."""
    body = AnswerBody(math.inf, MAX_CATALOG_BYTES)
    with answer:
        for piece in answer.iter_content(_PIECE_BYTES):
            body.add(piece)
    answer._content = bytes(body)


def catalog_properties(url: str, variable: str) -> dict[str, str]:
    """Return pyiceberg's properties of a catalog, `name` among them if the URL has it.

    The URL is `iceberg+` and the catalog's own URI, whose scheme says which kind it is; its query holds properties, and
    options of the connection if the catalog is in PostgreSQL.

    Raises:
        BadSetting: it is not such a URL; `variable` names the setting.
    """
    parts = urlsplit(url.removeprefix(_PREFIX))
    if parts.scheme not in SCHEMES:
        expected = ", ".join(f"{_PREFIX}{scheme}://" for scheme in SCHEMES)
        raise BadSetting(variable=variable, problem=f"is not the URL of a catalog: expected one of {expected}")
    properties = dict(parse_qsl(parts.query, keep_blank_values=True))
    query: dict[str, str] = {}
    if parts.scheme == "postgresql":
        options = {*_libpq_options(), "user", "password"}
        query = {**{name: str(value) for name, value in PATIENCE.items()}}
        query |= {name: properties.pop(name) for name in list(properties) if name in options}
    uri = urlunsplit(parts._replace(query=urlencode(query), fragment=""))
    if parts.scheme == "sqlite":  # urlunsplit drops the slashes of an empty host
        uri = f"sqlite://{parts.path}"
    is_sql = parts.scheme in ("postgresql", "sqlite")
    own = {"pool_pre_ping": "true", "init_catalog_tables": "false"} if is_sql else {}  # a tap only reads
    return {**own, **properties, "uri": uri}


def open_catalog(database: str) -> Catalog:
    """Return the catalog of a named database.

    Raises:
        BadSetting: see `url_of` and `catalog_properties`.
        Exception: errors of catalogs have no base of their own: see `naming`.
    """
    properties = catalog_properties(url_of(database), variable_of(database))
    name = properties.pop("name", database)
    if properties["uri"].startswith("http"):  # as load_catalog, which knows no other class for it
        configured = cast("dict[str, str]", Config().get_catalog_config(name) or {})
        return PatientRestCatalog(name, **{**configured, **properties})
    return load_catalog(name, **properties)


def catalog_of(database: str) -> str:
    """Return which catalog the URL of a database leads to, without credentials. Raises BadSetting."""
    properties = catalog_properties(url_of(database), variable_of(database))
    uri = urlsplit(properties["uri"])
    parts = uri.scheme, uri.netloc.rpartition("@")[2], uri.path
    own = (properties.get(name, "") for name in ("name", "warehouse", "prefix"))
    return " ".join((f"{parts[0]}://{parts[1]}{parts[2]}", *own)).rstrip()


@contextmanager
def naming(spec: TableSpec) -> Iterator[None]:
    """Raise what goes wrong with a table as TableUnreadable."""
    try:
        yield
    except TableUnreadable:
        raise
    except NoSuchTableError as error:
        raise unreadable(spec, "the catalog does not have it") from error
    except LaglossError as error:
        raise unreadable(spec, str(error)) from error
    except Exception as error:  # of catalogs, their drivers and file systems: they have no base of their own
        detail = str(error).strip().partition("\n")[0]
        raise unreadable(spec, f"{type(error).__name__}: {detail}" if detail else type(error).__name__) from error


def load_table(catalog: Catalog, spec: TableSpec) -> Table:
    """Return a table as the catalog has it now. Raises TableUnreadable or, see `naming`, other errors."""
    refuse_cursor(spec)
    return catalog.load_table(spec.parts)


def columns_of(table: Table, spec: TableSpec) -> Schema:
    """Return the schema of id and event time.

    Raises:
        TableUnreadable: the table has no such column, or of no type that is an id or a time.
    """
    fields = {field.name: field for field in table.schema().fields}
    columns = []
    for name, expected, kinds in (
        (spec.id, "text, an integer or a uuid", _IDS),
        (spec.event_time, "a timestamp, a number or text", _TIMES),
    ):
        field = fields.get(name)
        if field is None:
            raise unreadable(spec, f"it has no column {name}; names of columns are as the table has them")
        if not isinstance(field.field_type, kinds):
            raise unreadable(spec, f"expected {name} to be {expected}, found {field.field_type}")
        columns.append(field)
    return Schema(*dict.fromkeys(columns))


def check_files(table: Table) -> None:
    """Read the begin of one data file: the catalog can answer whom the store of the files refuses. Raises what the
    store does."""
    snapshot = table.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and (entries := manifest.fetch_manifest_entry(table.io)):
            with table.io.new_input(entries[0].data_file.file_path).open() as file:
                file.read(1)
            return


def _libpq_options() -> frozenset[str]:
    from psycopg.pq import Conninfo

    return frozenset(option.keyword.decode() for option in Conninfo.get_defaults())
