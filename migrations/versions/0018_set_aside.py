"""work that failed for good: windows, roll-ups and consumer groups that were set aside alone

Names of missing messages are escaped from here on; one that could be taken for an escape becomes one.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "set_aside",
        sa.Column("kind", sa.Text(), nullable=False, comment="window, rollup or group"),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("item", sa.Text(), nullable=False, comment="the window's start, PERIOD/START, or the group"),
        sa.Column("error", sa.Text(), nullable=False, comment="the first line of it"),
        sa.Column("failed_at", sa.BigInteger(), nullable=False, comment="epoch ms, of the last try"),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "pipeline", "item"),
        comment="Work that failed for a reason that waiting does not mend. Writer: aggregator.",
    )
    op.execute(
        r"UPDATE missing_message SET message_id = regexp_replace(message_id, '\\(?=[xuU])', '\\x5c', 'g')"
        r" WHERE message_id ~ '\\[xuU]'"
    )


def downgrade() -> None:
    op.drop_table("set_aside")
