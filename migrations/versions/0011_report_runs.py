"""reports that are mailed by a schedule"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"

NOW = sa.text("clock_timestamp()")


def upgrade() -> None:
    op.create_table(
        "report_run",
        sa.Column("report", sa.Text(), nullable=False, comment="its name in the reports file"),
        sa.Column("schedule", sa.Text(), nullable=False, comment="rule and zone: with another one it begins anew"),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=NOW, nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "next_attempt_at",
            sa.DateTime(timezone=True),
            server_default=NOW,
            nullable=False,
            comment="while it is made and sent: when the claim runs out",
        ),
        sa.Column("claim", sa.Uuid(), nullable=True, comment="who may record the last attempt"),
        sa.Column(
            "reached",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default="[]",
            nullable=False,
            comment="addresses that have it",
        ),
        sa.Column("outcome", sa.Text(), nullable=True, comment="sent, failed or skipped; null: not done yet"),
        sa.Column("done_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("report", "schedule", "due_at"),
        comment="Scheduled reports, one row for each time one was due. Writer: dashboard (scheduler).",
    )


def downgrade() -> None:
    op.drop_table("report_run")
