"""Tables to tap, in a database of their own, read by a role that may SELECT them and nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, Final, TypeVar

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import variable_of
from taps.tables.postgres import LIMIT, PostgresTable
from taps.tables.reading import TableRead, TableReader

T = TypeVar("T")
SHOP: Final = "shop"
CURSORS: Final[Mapping[str, str]] = {
    "sequence": "n bigserial PRIMARY KEY",
    "xid8": "n xid8 NOT NULL DEFAULT pg_current_xact_id()",
    "clock": "n timestamptz NOT NULL DEFAULT now()",
}
"""A cursor of each kind."""


class TappedDatabase:
    """A database whose tables are tapped. `owner`: a connection of those who write it, which commits at once."""

    def __init__(self, url: str, role: str) -> None:
        self.url, self.role = url, role
        self.owner = psycopg.connect(url, autocommit=True)
        self._hold = ExitStack()
        self.owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")

    @property
    def role_url(self) -> str:
        options = {**conninfo_to_dict(self.url), "user": self.role, "password": "secret", "passfile": "/dev/null"}
        return make_conninfo(**options)

    def table(self, kind: str, name: str = "orders") -> TableSpec:
        """Create a table with a cursor of this kind."""
        self.owner.execute(f"CREATE TABLE {name} (id text, at timestamptz DEFAULT now(), state text, {CURSORS[kind]})")
        if kind != "sequence":
            self.owner.execute(f"CREATE INDEX ON {name} (n)")
        self.grant(name)
        return TableSpec(database=SHOP, table=f"public.{name}", id="id", event_time="at", cursor="n")

    def grant(self, name: str = "orders") -> None:
        self.owner.execute(f"GRANT SELECT (id, at, n) ON {name} TO {self.role}")
        if self.owner.execute("SELECT to_regclass(%s)", (f"{name}_n_seq",)).fetchone() != (None,):
            self.owner.execute(f"GRANT SELECT ON SEQUENCE {name}_n_seq TO {self.role}")

    def transaction(self) -> psycopg.Connection[Any]:
        """Return a connection that is not in autocommit."""
        return self._hold.enter_context(closing(psycopg.connect(self.url)))

    def reading(self, spec: TableSpec, since_ms: int = 0, limit: int = LIMIT) -> Reading:
        """Return a table that is read on and on."""
        reading = Reading(PostgresTable(spec, limit), since_ms)
        self._hold.callback(reading.table.close)
        return reading

    def hold(self, context: AbstractContextManager[T]) -> T:
        """Enter a context until this is closed."""
        return self._hold.enter_context(context)

    def close(self) -> None:
        self._hold.close()
        self.owner.execute(f"DROP OWNED BY {self.role}; DROP ROLE {self.role}")
        self.owner.close()


@contextmanager
def tapped_database(url: str, patch: pytest.MonkeyPatch) -> Iterator[TappedDatabase]:
    database = TappedDatabase(url, f"tap_{uuid.uuid4().hex[:8]}")
    options = conninfo_to_dict(database.role_url)
    url = "postgresql://{user}:{password}@{host}:{port}/{dbname}?passfile=/dev/null".format(**options)
    patch.setenv(variable_of(SHOP), url)
    try:
        yield database
    finally:
        database.close()


class Reading:
    """A table that is read on and on."""

    def __init__(self, table: TableReader, since_ms: int = 0) -> None:
        self.table, self.since_ms = table, since_ms
        self.position: Mapping[str, Any] = {}
        self.last: TableRead | None = None

    def read(self) -> list[str]:
        """Return the ids of the rows that are new."""
        self.last = self.table.read(self.position, self.since_ms)
        self.position = json.loads(json.dumps(self.last.position))
        return sorted(json.loads(row.document)["id"] or "" for row in self.last.rows)

    def read_all(self) -> list[str]:
        """Return the ids of the rows that are new, of as many reads as there is something left to read."""
        ids = self.read()
        while not self.is_complete:
            ids += self.read()
        return sorted(ids)

    @property
    def is_complete(self) -> bool:
        assert self.last is not None
        return self.last.is_complete

    @property
    def until_ms(self) -> int:
        assert self.last is not None
        return self.last.until_ms

    @property
    def break_(self) -> str:
        assert self.last is not None
        return self.last.break_
