"""traces of missing messages"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column(
        "missing_message",
        sa.Column(
            "trace_id", sa.Text(), nullable=True, comment="of W3C's traceparent, hex; null where it is not known"
        ),
    )
    op.add_column(
        "missing_message", sa.Column("span_id", sa.Text(), nullable=True, comment="of W3C's traceparent, hex")
    )


def downgrade() -> None:
    op.drop_column("missing_message", "span_id")
    op.drop_column("missing_message", "trace_id")
