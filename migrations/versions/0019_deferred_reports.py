"""pipelines whose reports are followed later, since they crowd those of the others"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "deferred_reports",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("topic_partition", sa.Integer(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False, comment="of the first that is not followed yet"),
        sa.PrimaryKeyConstraint("pipeline", "topic_partition"),
        comment="Reports of a pipeline that are followed later, up to reports_position. Writer: follower.",
    )


def downgrade() -> None:
    op.drop_table("deferred_reports")
