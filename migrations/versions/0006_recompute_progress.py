"""how far a recompute has come"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column(
        "recompute_request",
        sa.Column(
            "progress", postgresql.JSONB(astext_type=sa.Text()), nullable=True, comment="how far the closer has come"
        ),
    )


def downgrade() -> None:
    op.drop_column("recompute_request", "progress")
