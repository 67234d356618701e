"""consumer lag by group and partition"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "consumer_lag",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False, comment="epoch s: the minute in which it was asked"),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("consumer_group", sa.Text(), nullable=False),
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("topic_partition", sa.Integer(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False, comment="epoch ms: newest time that it was asked"),
        sa.Column("offsets", sa.BigInteger(), nullable=True, comment="log end - committed then; null: not known"),
        sa.Column("offsets_max", sa.BigInteger(), nullable=True, comment="highest in the minute"),
        sa.Column(
            "behind_ms",
            sa.BigInteger(),
            nullable=True,
            comment="asked_at - event time at the committed offset; 0: nothing waits; null: not known",
        ),
        sa.Column("behind_max_ms", sa.BigInteger(), nullable=True, comment="highest in the minute"),
        sa.PrimaryKeyConstraint("pipeline", "window_start", "node", "consumer_group", "topic", "topic_partition"),
        comment="How far consumer groups were behind, by minute of wall-clock time. Writer: consumer lag watch.",
        postgresql_partition_by="RANGE (window_start)",
    )


def downgrade() -> None:
    op.drop_table("consumer_lag")
