"""Databases of tapped tables: the variables with their URLs, and the kind of table that a URL leads to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final, Literal

from lagloss.environment import secret
from lagloss.errors import BadSetting
from lagloss_server.base.database_url import as_url
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.base.settings import Settings
from lagloss_server.model.tables import TableSpec

TableKind = Literal["postgresql", "iceberg", "parquet"]
KINDS: Final[Mapping[str, TableKind]] = {
    "postgresql://": "postgresql",
    "postgres://": "postgresql",
    "iceberg+": "iceberg",
    "s3://": "parquet",
}
"""By how their URLs begin. What reads and checks each kind is listed by it in `taps.tables.readers` and
`lagloss_server.ops.table_checks`."""

OWN_DATABASE: Final = "lagloss"
"""How definitions name the database that `lagloss up` runs with. Elsewhere only the environment can name one so."""
_VARIABLE: Final = re.compile(r"LAGLOSS_TABLES_([A-Z0-9][A-Z0-9_]*)_URL(_FILE)?")


def variable_of(database: str) -> str:
    """Return the variable with the URL of a database that definitions name."""
    return f"LAGLOSS_TABLES_{re.sub('[^A-Z0-9]', '_', database.upper())}_URL"


def is_named(database: str, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether the environment has the URL of a database."""
    return bool(secret(os.environ if environ is None else environ, variable_of(database)))


def databases_of(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the databases that the environment has, as definitions can write them, in order."""
    named = (_VARIABLE.fullmatch(variable) for variable, value in environ.items() if value)
    return sorted({match[1].lower().replace("_", "-") for match in named if match})


def url_of(database: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the URL of a named database.

    Raises:
        BadSetting: the environment does not have it, or no kind of table has such a URL.
    """
    variable = variable_of(database)
    url = secret(os.environ if environ is None else environ, variable)
    if not url:
        problem = f"is not set, but the definition of a pipeline uses the database {database}"
        raise BadSetting(variable=variable, problem=problem)
    if not url.startswith(tuple(KINDS)):
        problem = "is not a postgresql:// URL, an iceberg+ URL or an s3:// URL: other tables cannot be tapped"
        raise BadSetting(variable=variable, problem=problem)
    return url


def own_database(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """Return what names the database of `lagloss up` in its taps' environment: nothing if that names another one so, or
    if there are teams, whose definitions could read each other's rows.

    Raises:
        BadSetting: the file of the variable, or of a password, cannot be read.
    """
    if settings.access_file or is_named(OWN_DATABASE, environ):
        return {}
    return {variable_of(OWN_DATABASE): as_url(settings.require_database())}


def kind_of(database: str, environ: Mapping[str, str] | None = None) -> TableKind:
    """Return the kind of the tables of a named database. Raises BadSetting, as `url_of` does."""
    url = url_of(database, environ)
    return next(kind for scheme, kind in KINDS.items() if url.startswith(scheme))


def unreadable(spec: TableSpec, detail: str) -> TableUnreadable:
    """Return the error of a table that cannot be read."""
    return TableUnreadable(table=f"{spec.table} of {spec.database}", detail=detail)


def refuse_cursor(spec: TableSpec) -> None:
    """Raise TableUnreadable if a table that is read by its files has a `cursor`."""
    if spec.cursor is not None:
        problem = f"its files say what is new: remove `cursor: {spec.cursor}`, which is for tables of PostgreSQL"
        raise unreadable(spec, problem)
