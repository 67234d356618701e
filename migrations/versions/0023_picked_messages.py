"""what is known of messages one by one: who saw the missing ones last, and what the good ones have"""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column(
        "missing_message",
        sa.Column(
            "emitter",
            sa.LargeBinary(),
            nullable=True,
            comment="of its beacon at last_checkpoint; null where not known",
        ),
    )
    op.create_table(
        "picked_messages",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False, comment="epoch s"),
        sa.Column("packed", sa.LargeBinary(), nullable=False, comment="PickedMessages"),
        sa.PrimaryKeyConstraint("pipeline", "window_start"),
        comment="What is known one by one of a window's messages, bad ones and some good. Writer: closer.",
        postgresql_partition_by="RANGE (window_start)",
    )


def downgrade() -> None:
    op.drop_table("picked_messages")
    op.drop_column("missing_message", "emitter")
