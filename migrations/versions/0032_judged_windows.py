"""how far alerting has judged windows, so that the next alerter need not read them"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.create_table(
        "judged_windows",
        sa.Column("pipeline", sa.Text(), primary_key=True),
        sa.Column("version", sa.Integer(), nullable=False, comment="of the definition by whose rules they were judged"),
        sa.Column("judged_to", sa.BigInteger(), nullable=False, comment="those that start before; epoch s, full hour"),
        sa.Column(
            "digests",
            sa.LargeBinary(),
            nullable=False,
            comment="of each hour, five int64: hour, windows, sums of revision and closed_at, how many are history",
        ),
        sa.Column(
            "live",
            JSONB(),
            nullable=False,
            comment="newest window with live beacons (epoch s) before those that are read, by checkpoint",
        ),
        comment="Windows in which alerting has found all there is to find. Writer: alerting.",
    )


def downgrade() -> None:
    op.drop_table("judged_windows")
