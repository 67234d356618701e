"""Tapped tables of PostgreSQL: connections to their databases, and whether their columns can be cursors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.rows import namedtuple_row

from lagloss.errors import LaglossError
from lagloss_server.base.database_url import PATIENCE, connection_options
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.model.tables import TableSpec
from lagloss_server.net.table_urls import unreadable, url_of, variable_of

TIMEOUT: Final = "30s"
"""Of each statement. A statement that takes longer has no index to go by."""

CursorKind = Literal["xid8", "sequence", "clock"]
_XID_DEFAULT: Final = "pg_current_xact_id()"
_NO_IDS: Final = frozenset({"bytea", "json", "jsonb", "real", "double precision"})
"""Types whose JSON is not the text that a topic has."""
_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})

_FACTS: Final = """
    SELECT c.oid::bigint AS oid, c.relkind, pg_relation_filenode(c.oid)::bigint AS file,
        row_security_active(c.oid) AS hides_rows, pg_is_in_recovery() AS is_standby,
        coalesce((SELECT jsonb_object_agg(attname, format_type(coalesce(nullif(typbasetype, 0), atttypid), -1))
            FROM pg_attribute JOIN pg_type t ON t.oid = atttypid
            WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attname = ANY(%(names)s)), '{}') AS types,
        EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = c.oid
            OR srrelid IN (SELECT relid FROM pg_partition_tree(c.oid))) AS is_subscribed,
        a.attnotnull AS is_not_null, pg_get_expr(d.adbin, d.adrelid) AS default_,
        EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisvalid AND indpred IS NULL AND indkey[0] = a.attnum)
            AS is_indexed,
        EXISTS (SELECT FROM pg_index JOIN pg_attribute i ON i.attrelid = indrelid AND i.attnum = indkey[0]
            WHERE indrelid = c.oid AND indisvalid AND indpred IS NULL AND i.attname = %(id)s) AS is_id_indexed
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = %(cursor)s AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE n.nspname = %(schema)s AND c.relname = %(table)s"""
_SEQUENCE: Final = """
    SELECT seqrelid::regclass::text AS name, seqcache AS cached, seqincrement AS step,
        seqcycle AS is_cycle, has_sequence_privilege(seqrelid, 'SELECT') AS is_readable
    FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence(%(quoted)s, %(cursor)s)::regclass"""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table that can be read so that no row is missed.

    Attributes:
        oid, file: of the table, another one once it is created again; of its file, another one once it is rewritten.
        kind: of its cursor: ids of transactions, numbers of a sequence, or times.
        sequence: of such a cursor, its name as SQL has it; else empty.
        is_indexed, is_id_indexed: an index begins with the cursor; with the id.
    """

    oid: int
    file: int | None
    kind: CursorKind
    sequence: str
    is_indexed: bool
    is_id_indexed: bool
    is_standby: bool
    id: str
    event_time: str
    """Types of these columns, as SQL has them."""


def connect(database: str) -> psycopg.Connection[Any]:
    """Return a connection whose transactions are read-only and see one snapshot each.

    Raises:
        BadSetting: see `url_of`.
        psycopg.Error: the database does not answer, or refuses.
    """
    variable = variable_of(database)
    options = connection_options(url_of(database), variable, **PATIENCE, target_session_attrs="any")
    connection = psycopg.connect(
        **{"application_name": "lagloss", **options}, row_factory=namedtuple_row, prepare_threshold=None
    )
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    return connection


@contextmanager
def naming(spec: TableSpec) -> Iterator[None]:
    """Raise what goes wrong with a table as TableUnreadable."""
    try:
        yield
    except TableUnreadable:
        raise
    except psycopg.Error as error:
        raise unreadable(spec, error.diag.message_primary or str(error) or type(error).__name__) from error
    except LaglossError as error:
        raise unreadable(spec, str(error)) from error


def read_facts(connection: psycopg.Connection[Any], spec: TableSpec) -> TableFacts:
    """Return what the catalog says of a table.

    Raises:
        TableUnreadable: it is not there, or its rows cannot be read so that none is missed.
    """
    if spec.cursor is None:
        raise unreadable(spec, "a table of PostgreSQL needs a `cursor`")
    if len(spec.parts) != 2:
        raise unreadable(spec, "expected a table of PostgreSQL as SCHEMA.TABLE")
    schema, table = spec.parts
    names = [spec.id, spec.event_time, spec.cursor]
    wanted = {"schema": schema, "table": table, "cursor": spec.cursor, "id": spec.id, "names": names}
    row = connection.execute(_FACTS, wanted).fetchone()
    if row is None or row.relkind not in ("r", "p"):
        problem = "it does not exist" if row is None else "it is a view or a foreign table"
        raise unreadable(spec, f"{problem}; names are as the catalog has them, in small letters by default")
    missing = [name for name in names if name not in row.types]
    if missing:
        raise unreadable(spec, f"it has no column {missing[0]}")
    if row.hides_rows:
        raise unreadable(spec, "row security hides rows of it from this role; grant BYPASSRLS or a policy for all rows")
    if row.is_subscribed:
        raise unreadable(spec, "logical replication fills it, with cursors of another server; tap the table there")
    if (kind := row.types[spec.id]) in _NO_IDS:
        raise unreadable(spec, f"expected {spec.id} to be text, an integer or a uuid, found {kind}")
    if not row.is_not_null:
        raise unreadable(spec, f"{spec.cursor} can be null, and such rows would be missed; SET NOT NULL")
    kind, sequence = _cursor(connection, spec, row.types[spec.cursor], row.default_)
    if row.is_standby and kind != "xid8":
        expected = f"an xid8 with DEFAULT {_XID_DEFAULT}, since a stand-by shows no other open transactions"
        raise unreadable(spec, f"expected {expected}, found {spec.cursor} of type {row.types[spec.cursor]}")
    types = row.types[spec.id], row.types[spec.event_time]
    indexed = row.is_indexed, row.is_id_indexed
    return TableFacts(row.oid, row.file, kind, sequence, *indexed, row.is_standby, *types)


def _cursor(
    connection: psycopg.Connection[Any], spec: TableSpec, column_type: str, default: str | None
) -> tuple[CursorKind, str]:
    """Return the kind of a cursor, and its sequence. Raises TableUnreadable."""
    if column_type == "xid8" and default == _XID_DEFAULT:
        return "xid8", ""
    if column_type == "timestamp with time zone":
        return "clock", ""
    if column_type not in _INTEGERS:
        expected = f"a sequence's number, a timestamptz, or an xid8 with DEFAULT {_XID_DEFAULT}"
        raise unreadable(spec, f"expected a cursor that is {expected}, found {spec.cursor} of type {column_type}")
    quoted = sql.Identifier(*spec.parts).as_string(connection)
    sequence = connection.execute(_SEQUENCE, {"quoted": quoted, "cursor": spec.cursor}).fetchone()
    if sequence is None:
        problem = f"no sequence fills {spec.cursor}, so that a row can come with any number"
        raise unreadable(spec, f"{problem}; use an identity column, or ALTER SEQUENCE … OWNED BY")
    if sequence.cached > 1 or sequence.step != 1 or sequence.is_cycle:
        problem = f"the sequence {sequence.name} lets sessions keep numbers for later"
        raise unreadable(spec, f"{problem}; it needs CACHE 1, INCREMENT 1 and NO CYCLE")
    if not sequence.is_readable:
        raise unreadable(spec, f"GRANT SELECT ON SEQUENCE {sequence.name} is missing, by which a restart of it shows")
    return "sequence", sequence.name
