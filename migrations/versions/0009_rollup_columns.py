"""on-time counts and the lag of roll-ups as columns, for pages of many pipelines"""

import json
import zlib

import sqlalchemy as sa
from alembic import op

from lagloss.wire.sketch import Sketch

revision = "0009"
down_revision = "0008"

_READ = 1_000


def upgrade() -> None:
    for name in ("on_time", "on_time_of"):
        op.add_column(
            "rollup", sa.Column(name, sa.BigInteger(), server_default="0", nullable=False, comment="as in window")
        )
    op.add_column("rollup", sa.Column("e2e_p95_ms", sa.Double(), nullable=True))
    _fill(op.get_bind())


def _fill(connection: sa.Connection) -> None:
    """From what is packed in each row: windows of long ago are not there any more to be summed up again."""
    rollup = sa.table(
        "rollup", *map(sa.column, ("pipeline", "period", "start", "packed", "on_time", "on_time_of", "e2e_p95_ms"))
    )
    key = (rollup.c.pipeline, rollup.c.period, rollup.c.start)
    after: tuple[object, ...] | None = None
    while True:
        asked = sa.select(*key, rollup.c.packed).order_by(*key).limit(_READ)
        if after is not None:
            asked = asked.where(sa.tuple_(*key) > sa.tuple_(*after))
        rows = connection.execute(asked).all()
        for row in rows:
            sums = json.loads(zlib.decompress(row.packed))
            lags = Sketch.unpacked(sums["e2e_lags"])
            here = (key[0] == row.pipeline) & (key[1] == row.period) & (key[2] == row.start)
            connection.execute(
                sa.update(rollup)
                .where(here)
                .values(on_time=sums["on_time"], on_time_of=sums["on_time_of"], e2e_p95_ms=lags.quantile_ms(0.95))
            )
        if len(rows) < _READ:
            return
        after = tuple(rows[-1])[:3]


def downgrade() -> None:
    for name in ("e2e_p95_ms", "on_time_of", "on_time"):
        op.drop_column("rollup", name)
