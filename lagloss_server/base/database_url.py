"""PostgreSQL's addresses: whatever libpq takes for one, read, and shown without its password."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from lagloss.errors import BadSetting

PATIENCE: Final[Mapping[str, Any]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""libpq's options by which a vanished host is noticed within half a minute, whether or not something was sent to it."""
SECRET_OPTIONS: Final = frozenset({"password", "sslpassword", "oauth_client_secret"})
_EXPECTED: Final = (
    "is neither a postgresql:// URL nor libpq key=value pairs; percent-encode / and @ in user and password"
)
_PLAIN_HOST: Final = re.compile(r"[A-Za-z0-9._-]*")


def connection_options(database_url: str, /, variable: str = "LAGLOSS_DATABASE_URL", **defaults: Any) -> dict[str, Any]:
    """Return libpq's options of a database: those of the URL (or of `key=value …`), else these defaults.

    Of several hosts, one that can be written to is wanted: after a failover another one is.

    Raises:
        BadSetting: it is neither; `variable` names the setting.
    """
    try:
        options: dict[str, Any] = {**conninfo_to_dict(database_url)}
    except psycopg.ProgrammingError:  # which may quote the password
        raise BadSetting(variable=variable, problem=_EXPECTED) from None
    hosts = str(options.get("host", "")).split(",")
    if not str(options.get("port", ",")).strip(","):
        options.pop("port", None)  # how libpq says that no host of several has one
    if len(hosts) > 1:
        defaults = {"target_session_attrs": "read-write", **defaults}
        if "port" in options and "," not in str(options["port"]):
            options["port"] = ",".join([str(options["port"])] * len(hosts))  # SQLAlchemy wants one for each
    return {**defaults, **options}


def without_password(database_url: str) -> str:
    """Return a database's URL without its password, for a log or a message; `***` for what is none."""
    try:
        options = connection_options(database_url)
    except BadSetting:
        return "***"
    return _as_url({name: value for name, value in options.items() if name not in SECRET_OPTIONS})


def as_url(database_url: str) -> str:
    """Return a database's URL, its password in the query, whatever libpq takes for an address. Raises BadSetting."""
    return _as_url(connection_options(database_url))


def _as_url(options: Mapping[str, Any]) -> str:
    hosts = str(options.get("host", "")).split(",")
    ports = str(options["port"]).split(",") if "port" in options else [""] * len(hosts)
    is_plain = all(map(_PLAIN_HOST.fullmatch, hosts)) and len(ports) == len(hosts)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    in_front = {"user", "dbname", *(("host", "port") if is_plain else ())}
    query = {name: value for name, value in options.items() if name not in in_front}
    user = f"{quote(options['user'], safe='')}@" if "user" in options else ""
    path = f"{user}{','.join(places) if is_plain else ''}/{quote(options.get('dbname', ''), safe='')}"
    return f"postgresql://{path}{'?' if query else ''}{urlencode(query, quote_via=quote)}"
