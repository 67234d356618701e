"""roll-ups by hour and day, and up to where tables were pruned"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "rollup",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False, comment="hour or day"),
        sa.Column("start", sa.BigInteger(), nullable=False, comment="epoch s, UTC"),
        sa.Column("windows", sa.Integer(), nullable=False, comment="minutes of it that are closed"),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("lost_min", sa.BigInteger(), nullable=False),
        sa.Column("lost_max", sa.BigInteger(), nullable=False),
        sa.Column("computed_at", sa.BigInteger(), nullable=False, comment="epoch ms: when these sums came to be"),
        sa.Column("packed", sa.LargeBinary(), nullable=False, comment="lagloss.rollup.Rollup: all sums and sketches"),
        sa.PrimaryKeyConstraint("pipeline", "period", "start"),
        comment="What the closed windows of each hour and day come to. Writer: closer (upkeep).",
    )
    op.create_index("rollup_start", "rollup", ["start"])
    op.create_table(
        "rollup_dirty",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("period", sa.Text(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False, comment="epoch s, UTC"),
        sa.Column(
            "dirty_since",
            sa.BigInteger(),
            nullable=False,
            comment="epoch ms: the first change that the roll-up does not know of",
        ),
        sa.PrimaryKeyConstraint("pipeline", "period", "start"),
        comment="Roll-ups to compute anew, marked in the commit that changed them. Writer: closer.",
    )
    op.create_table(
        "pruned",
        sa.Column("table_name", sa.Text(), nullable=False),
        sa.Column(
            "before_s",
            sa.BigInteger(),
            nullable=False,
            comment="epoch s: rows of windows that start before it are gone for good",
        ),
        sa.PrimaryKeyConstraint("table_name"),
        comment="Up to where tables were dropped by day; windows before are gone. Writer: retention.",
    )
    op.create_index("window_unsealed", "window", ["window_start"], postgresql_where=sa.text("state = 'closed'"))
    # the hours of windows that were closed before there were roll-ups
    op.execute(
        "INSERT INTO rollup_dirty (pipeline, period, start, dirty_since) "
        "SELECT DISTINCT pipeline, 'hour', window_start / 3600 * 3600, 0 FROM \"window\""
    )


def downgrade() -> None:
    op.drop_index("window_unsealed", table_name="window", postgresql_where=sa.text("state = 'closed'"))
    op.drop_table("pruned")
    op.drop_table("rollup_dirty")
    op.drop_index("rollup_start", table_name="rollup")
    op.drop_table("rollup")
