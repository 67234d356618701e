"""A survey of databases: samples of their tables' newest rows, and by which column each can be tapped.

Of a database its catalog is read, and of a table at most `ROWS` rows: by an index, or from the end of its file. Nothing
waits for more than `TIMEOUT`, and nothing is written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg
from psycopg import errors, sql
from pydantic import TypeAdapter, ValidationError

from lagloss.errors import LaglossError
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.extraction import Records
from lagloss_server.model.expressions import RecordPart, write_part
from lagloss_server.model.tables import TableName, TableSpec
from lagloss_server.net.postgres_tables import TableFacts, connect, read_facts
from lagloss_server.net.table_urls import kind_of
from taps.discovery.guessing import TopicGuess
from taps.discovery.survey import DENIED, EMPTY, MISSING, SILENT
from taps.discovery.tables import NO_IDS, TableGuess
from taps.sample import Sample

TABLES: Final = 1_000
"""Tables of a database that are looked at, the largest."""
ROWS: Final = 2_000
PAGES: Final = 64
"""At the end of a table's file, where the newest rows of a table without an index on numbers or times are."""
COLUMNS: Final = 50
TIMEOUT: Final = "5s"
NOT_LISTED: Final = "not allowed in a definition"
NO_INDEX: Final = "no index on numbers or times"

_NO_ID_HASHES: Final = np.empty(0, np.uint64)
_TABLE_NAME: Final = TypeAdapter[str](TableName)
_REASONS: Final[Mapping[type[psycopg.Error], str]] = {
    errors.InsufficientPrivilege: DENIED,
    errors.QueryCanceled: SILENT,
}
_TEXTS: Final = frozenset({"text", "character varying"})
_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
_STAMPS: Final = frozenset({"timestamp with time zone", "timestamp without time zone"})
_READ: Final = _TEXTS | _INTEGERS | _STAMPS | {"character", "uuid", "numeric", "double precision"}
_CURSORS: Final = ("xid8", "sequence", "clock")
_MAX_TEXT: Final = 300
"""Characters of a text that are read: an id has at most 255 bytes."""
_NOW: Final = re.compile(r"now\(\)|CURRENT_TIMESTAMP|(clock|statement|transaction)_timestamp\(\)")
"""Defaults by which the database's clock sets a column."""
_TABLES: Final = """
    SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
        AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
    ORDER BY c.reltuples DESC, 2, 3 LIMIT %(limit)s"""
_DETAILS: Final = """
    SELECT CASE WHEN c.relkind = 'r' THEN pg_relation_size(c.oid) / current_setting('block_size')::bigint END AS pages,
        (SELECT jsonb_agg(jsonb_build_object('name', attname, 'type', format_type(atttypid, NULL),
                'default', pg_get_expr(adbin, adrelid),
                'is_numbered', pg_get_serial_sequence(c.oid::regclass::text, attname) IS NOT NULL) ORDER BY attnum)
            FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
            WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
                AND has_column_privilege(c.oid, attnum, 'SELECT')) AS columns,
        (SELECT jsonb_agg(DISTINCT attname)
            FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
            WHERE indrelid = c.oid AND indisvalid AND indpred IS NULL) AS indexed
    FROM pg_class c WHERE c.oid = %(oid)s::oid"""
"""Of one table alone: both functions wait for a lock of it."""


class TableSurvey:
    """Samples tables, and guesses.

    Args:
        topics: with ids that tables can have; of other tables nothing is kept.

    Attributes:
        names: of all tables, `public.orders of shop`.
        guesses: of those that have ids of topics.
        reasons: by name, why there is no guess.
        problems: by database, why it could not be read.
    """

    def __init__(self, topics: Iterable[TopicGuess]) -> None:
        self._ids = np.concatenate([_NO_ID_HASHES, *map(_hashes, topics)])
        self.names: list[str] = []
        self.guesses: list[TableGuess] = []
        self.reasons: dict[str, str] = {}
        self.problems: dict[str, str] = {}

    def run(self, databases: Iterable[str]) -> None:
        """Look at the tables of these databases; raise nothing: what cannot be read has a reason."""
        for database in databases:
            try:
                if kind_of(database) != "postgresql":
                    self.problems[database] = "only tables of PostgreSQL are compared"
                    continue
                with closing(connect(database)) as connection:
                    self._look(database, connection)
            except (psycopg.Error, LaglossError) as error:
                self.problems[database] = str(error).strip().partition("\n")[0] or type(error).__name__

    def _look(self, database: str, connection: psycopg.Connection[Any]) -> None:
        for listed in _query(connection, _TABLES, {"limit": TABLES}):
            table = f"{listed.schema}.{listed.name}"
            name = f"{table} of {database}"
            self.names.append(name)
            try:
                _TABLE_NAME.validate_python(table)
                sample = _Sampled(database, table, connection, listed)
                if np.intersect1d(_hashes(sample.rows), self._ids).size:
                    self.guesses.append(sample.guess())
                else:
                    self.reasons[name] = NO_IDS
            except ValidationError:
                self.reasons[name] = NOT_LISTED
            except _NotSampled as reason:
                self.reasons[name] = str(reason)
            except psycopg.Error as error:
                if connection.broken:
                    raise
                self.reasons[name] = _REASONS.get(type(error), MISSING)


class _NotSampled(Exception):
    """A table has no sample; the message is the reason."""


class _Sampled:
    """A table with a sample of its newest rows."""

    def __init__(self, database: str, table: str, connection: psycopg.Connection[Any], listed: Any) -> None:
        self._database, self._table, self._connection = database, table, connection
        details = _query(connection, _DETAILS, {"oid": listed.oid})
        self._columns: list[Mapping[str, Any]] = [column for row in details for column in row.columns or ()][:COLUMNS]
        self._indexed = frozenset(name for row in details for name in row.indexed or ())
        self._pages = next((row.pages for row in details), None)
        if not self._columns:
            raise _NotSampled(DENIED)
        self._dated = next((column["name"] for column in self._columns if _is_now(column)), "")
        rows = _query(connection, self._statement(sql.Identifier(listed.schema, listed.name)))
        if not rows:
            raise _NotSampled(EMPTY)
        now_ms = time.time_ns() // 1_000_000
        stamps = np.array([now_ms if row.written_ms is None else row.written_ms for row in rows], np.int64)
        documents = [row.document.encode() for row in rows]
        nothing, places = [None] * len(rows), np.arange(len(rows))
        records = Records(stamps, nothing, documents, nothing, np.zeros_like(places), places)
        self.rows = TopicGuess.of(Sample(table, records.partitions, places, records, False))

    def guess(self) -> TableGuess:
        """Return the guess, with the columns that can be cursors."""
        columns = {write_part(RecordPart("value", (column["name"],))): column["name"] for column in self._columns}
        cursors, problem = self._cursors(columns[self.rows.candidates[0]])
        return TableGuess(self._database, self._table, columns, self.rows, self._dated, cursors, problem)

    def _statement(self, table: sql.Identifier) -> sql.Composed:
        """Return the query of the newest rows: their columns as JSON, and when they were written, if that is known."""
        read = [column for column in self._columns if column["type"] in _READ]
        order = self._order(read)
        if order:
            newest = sql.SQL("WHERE {0} IS NOT NULL ORDER BY {0} DESC").format(sql.Identifier(order))
        elif self._pages is not None:
            first = sql.Literal(f"({max(0, self._pages - PAGES)},0)")
            newest = sql.SQL("WHERE ctid >= {}::tid ORDER BY ctid DESC").format(first)
        else:
            raise _NotSampled(NO_INDEX)
        written = "CASE WHEN isfinite({0}) THEN extract(epoch FROM {0}) * 1000 END" if self._dated else "NULL::numeric"
        return sql.SQL(
            "SELECT to_json(r)::text AS document, {written}::bigint AS written_ms"
            " FROM (SELECT {columns} FROM {table} {newest} LIMIT {limit}) r"
        ).format(
            written=sql.SQL(written).format(sql.Identifier(self._dated)),
            columns=sql.SQL(", ").join(map(_read_column, read)),
            table=table,
            newest=newest,
            limit=sql.Literal(ROWS),
        )

    def _order(self, read: Sequence[Mapping[str, Any]]) -> str:
        """Return the column whose index has the newest rows at its end; empty without one. Numbers that no sequence
        gives come last: they can be those of a customer."""
        indexed = [column for column in read if column["name"] in self._indexed]
        ranks: tuple[Callable[[Mapping[str, Any]], bool], ...] = (
            lambda column: column["name"] == self._dated,
            lambda column: column["is_numbered"],
            lambda column: column["type"] in _STAMPS,
            lambda column: column["type"] in _INTEGERS,
        )
        return next((column["name"] for is_likely in ranks for column in indexed if is_likely(column)), "")

    def _cursors(self, id_column: str) -> tuple[Mapping[str, str], str]:
        """Return the columns that can be a cursor, the best first, each with what it lacks; and why another cannot."""
        usable: list[tuple[bool, int, str]] = []
        problems: list[str] = []
        for column in self._columns:
            if column["type"] not in _INTEGERS | {"xid8"} and not _is_now(column):
                continue
            try:
                facts = self._facts(id_column, column["name"])
            except TableUnreadable as error:
                problems.append(f"{column['name']}: {error.facts['detail']}")
            else:
                usable.append((not facts.is_indexed, _CURSORS.index(facts.kind), column["name"]))
        advice = {name: f"no index begins with {name}" if unindexed else "" for unindexed, _, name in sorted(usable)}
        return advice, "; ".join(problems[:1])

    def _facts(self, id_column: str, cursor: str) -> TableFacts:
        names = {"database": self._database, "table": self._table, "id": id_column, "event_time": id_column}
        with _bounded(self._connection):
            return read_facts(self._connection, TableSpec(**names, cursor=cursor))


def _hashes(guess: TopicGuess) -> npt.NDArray[np.uint64]:
    return np.concatenate([_NO_ID_HASHES, *(hashes for _, hashes in guess.ids.values())])


def _is_now(column: Mapping[str, Any]) -> bool:
    """Return whether the database's clock sets a column, if nothing else does."""
    return column["type"] == "timestamp with time zone" and bool(_NOW.fullmatch(column["default"] or ""))


def _read_column(column: Mapping[str, Any]) -> sql.Composed:
    name = sql.Identifier(column["name"])
    return sql.SQL("left({0}, {1}) AS {0}" if column["type"] in _TEXTS else "{0}").format(name, sql.Literal(_MAX_TEXT))


@contextmanager
def _bounded(connection: psycopg.Connection[Any]) -> Iterator[None]:
    with connection.transaction():
        connection.execute(f"SET LOCAL statement_timeout = '{TIMEOUT}'; SET LOCAL timezone = 'UTC'")
        yield


def _query(
    connection: psycopg.Connection[Any], query: str | sql.Composed, values: Mapping[str, int] | None = None
) -> Sequence[Any]:
    with _bounded(connection):
        return connection.execute(query, values).fetchall()
