"""clock skew of emitters"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column(
        "emitter",
        sa.Column(
            "skew_ms",
            sa.BigInteger(),
            server_default="0",
            nullable=False,
            comment="smallest append time - sent_at in its last minute of reports",
        ),
    )
    op.add_column(
        "emitter",
        sa.Column(
            "skew",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="[]",
            nullable=False,
            comment="lagloss.skew.Skew: [[minute, ms], ...]",
        ),
    )


def downgrade() -> None:
    op.drop_column("emitter", "skew")
    op.drop_column("emitter", "skew_ms")
