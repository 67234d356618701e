"""windows: results packed, a tenth of the bytes; rows that exist keep them as JSON, which goes with their days

Roll-ups are packed in another form from here on, too; only the way back has to change any."""

import json
import zlib
from base64 import b85decode
from typing import Any

import sqlalchemy as sa
from alembic import op

from lagloss.wire.avro import decode_bytes
from lagloss_server.packed_json import unpack_json
from lagloss_server.rules.packed_sketches import unpack_sketches

revision = "0031"
down_revision = "0030"

_READ = 1_000
_KEYS = {"window": ("pipeline", "window_start"), "window_history": ("pipeline", "window_start", "revision")}
_COMMENTS = {
    "window": (
        "the result as windows --json prints it, packed; null: see document_json",
        "the same, of rows of before 0031",
    ),
    "window_history": ("as in window", "as in window"),
}
_AS_JSON = "the result as windows --json prints it"


def upgrade() -> None:
    for table, (packed, as_json) in _COMMENTS.items():
        op.alter_column(
            table,
            "document",
            new_column_name="document_json",
            existing_type=sa.JSON(),
            nullable=True,
            comment=as_json,
            existing_comment=_AS_JSON if table == "window" else None,
        )
        op.add_column(table, sa.Column("document", sa.LargeBinary(), comment=packed))
        _store(table, "document", "EXTERNAL")
    stale = sa.Column("stale_ms", sa.Double(), comment="largest staleness of a checkpoint; null: not known")
    op.add_column("window", stale)
    _store("window", "facts", "EXTERNAL")


def _store(table: str, column: str, kind: str) -> None:
    """EXTERNAL: what is packed already is not compressed again."""
    op.execute(f'ALTER TABLE "{table}" ALTER COLUMN {column} SET STORAGE {kind}')


def downgrade() -> None:
    _unpack_rollups(op.get_bind())
    for table in _COMMENTS:
        _unpack(op.get_bind(), table)
        op.drop_column(table, "document")
        op.alter_column(
            table,
            "document_json",
            new_column_name="document",
            existing_type=sa.JSON(),
            nullable=False,
            comment=_AS_JSON if table == "window" else None,
            existing_comment=_COMMENTS[table][1],
        )
    op.drop_column("window", "stale_ms")
    _store("window", "facts", "EXTENDED")


def _unpack(connection: sa.Connection, name: str) -> None:
    names = _KEYS[name]
    facts = ("facts",) if name == "window" else ()
    packed = (sa.column(each, sa.LargeBinary()) for each in ("document", *facts))
    table = sa.table(name, *map(sa.column, names), *packed, sa.column("document_json", sa.JSON()))
    key = [table.c[each] for each in names]
    after: tuple[object, ...] | None = None
    while True:
        asked = sa.select(*key, table.c.document, *(table.c[each] for each in facts)).order_by(*key).limit(_READ)
        if after is not None:
            asked = asked.where(sa.tuple_(*key) > sa.tuple_(*after))
        rows = connection.execute(asked).all()
        for row in rows:
            values: dict[str, Any] = {"facts": _with_sketches(row.facts)} if facts else {}
            if row.document is not None:
                values["document_json"] = unpack_json(row.document)
            if values:
                here = (column == row[at] for at, column in enumerate(key))
                connection.execute(sa.update(table).where(*here).values(values))
        if not rows:
            return
        after = tuple(rows[-1])[: len(key)]


def _with_sketches(packed: bytes) -> bytes:
    """Return facts as they were packed before: JSON that holds the sketches, and emitters as hex."""
    if packed[:1] != b"\1":  # of before
        return packed
    raw, sketches = _document(packed)
    for found in raw["checkpoints"].values():
        found[4] = sketches[found[4]]
    for name in {"arrivals", "source_arrivals"} & raw.keys():
        raw[name] = [sketches[number] for number in raw[name]]
    raw["read"] = [[b85decode(emitter).hex(), *more] for emitter, *more in raw["read"]]
    raw["durations"] = {label: sketches[number] for label, number in raw["durations"].items()}
    return zlib.compress(json.dumps(raw, separators=(",", ":")).encode(), 6)


def _document(packed: bytes) -> tuple[dict[str, Any], list[Any]]:
    value, rest = decode_bytes(packed[1:])
    return unpack_json(value), [sketch.pack() for sketch in unpack_sketches(rest)]


def _unpack_rollups(connection: sa.Connection) -> None:
    names = ("pipeline", "period", "start")
    table = sa.table("rollup", *map(sa.column, names), sa.column("packed", sa.LargeBinary()))
    key = [table.c[each] for each in names]
    after: tuple[object, ...] = ("", "", 0)
    while rows := connection.execute(
        sa.select(*key, table.c.packed).where(sa.tuple_(*key) > sa.tuple_(*after)).order_by(*key).limit(_READ)
    ).all():
        for row in rows:
            here = (column == row[at] for at, column in enumerate(key))
            connection.execute(sa.update(table).where(*here).values(packed=_rollup_with_sketches(row.packed)))
        after = tuple(rows[-1])[: len(key)]


def _rollup_with_sketches(packed: bytes) -> bytes:
    """Return a roll-up as it was packed before: JSON that holds the sketches, behind the counts."""
    if packed[:1] != b"\1":  # of before
        return packed
    counts, parts = decode_bytes(packed[1:])
    raw, sketches = _document(parts)
    raw["e2e_lags"] = sketches[raw["e2e_lags"]]
    for name in {"checkpoints", "destinations", "sources", "sides"} & raw.keys():
        raw[name] = {part: [sketches[number], *more] for part, (number, *more) in raw[name].items()}
    raw["durations"] = {label: sketches[number] for label, number in raw["durations"].items()}
    return zlib.compress(json.dumps(unpack_json(counts) | raw, separators=(",", ":")).encode(), 6)
