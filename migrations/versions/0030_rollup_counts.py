"""what objectives are judged by as columns of roll-ups, so that PostgreSQL sums them up for many pipelines at once"""

import json
import zlib

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0030"
down_revision = "0029"

_READ = 1_000
_VERDICTS = ("ok", "loss", "unknown", "idle")
_COUNTS = ("delivered", "pending")
_COLUMNS = (*_COUNTS, *(f"{verdict}_windows" for verdict in _VERDICTS))
_PREFIX = 1_024
"""Bytes of what is packed that hold all counts, which come first."""


def upgrade() -> None:
    for name in _COLUMNS:
        kind, comment = (sa.BigInteger(), None) if name in _COUNTS else (sa.Integer(), "of windows, with this verdict")
        op.add_column("rollup", sa.Column(name, kind, server_default="0", nullable=False, comment=comment))
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """From what is packed in each row: windows of long ago are not there any more to be summed up again."""
    rollup = sa.table("rollup", *map(sa.column, ("pipeline", "period", "start", "packed", *_COLUMNS)))
    key = (rollup.c.pipeline, rollup.c.period, rollup.c.start)
    types = (sa.Text(), sa.Text(), sa.BigInteger(), *[sa.BigInteger()] * len(_COLUMNS))
    names = ("pipeline", "period", "start", *_COLUMNS)
    after: tuple[object, ...] | None = None
    while True:
        asked = sa.select(*key, sa.func.substring(rollup.c.packed, 1, _PREFIX)).order_by(*key).limit(_READ)
        if after is not None:
            asked = asked.where(sa.tuple_(*key) > sa.tuple_(*after))
        rows = connection.execute(asked).all()
        if not rows:
            return
        values = zip(*((*row[:3], *_counts(row[3])) for row in rows), strict=True)
        arrays = [sa.literal(list(each), ARRAY(kind)) for each, kind in zip(values, types, strict=True)]
        columns = [sa.column(name, kind) for name, kind in zip(names, types, strict=True)]
        found = sa.func.unnest(*arrays).table_valued(*columns, name="found").render_derived()
        connection.execute(
            sa.update(rollup)
            .where(*(column == found.c[column.name] for column in key))
            .values({name: found.c[name] for name in _COLUMNS})
        )
        after = tuple(rows[-1])[:3]


def _counts(beginning: bytes) -> tuple[int, ...]:
    text = zlib.decompressobj().decompress(beginning, _PREFIX).decode()
    sums = json.loads(text[: text.index(',"e2e_lags":')] + "}")
    return (*(sums[name] for name in _COUNTS), *(sums["verdicts"].get(verdict, 0) for verdict in _VERDICTS))


def downgrade() -> None:
    for name in reversed(_COLUMNS):
        op.drop_column("rollup", name)
