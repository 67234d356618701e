"""tokens of pipelines, and pipelines that were deleted"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "token",
        sa.Column("id", sa.Text(), nullable=False, comment="public part of the token"),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False, comment="intake, or admin: also the definition"),
        sa.Column("rate", sa.BigInteger(), nullable=True, comment="beacons a second; null: no limit"),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the secret's text"),
        sa.Column("created_at", sa.BigInteger(), nullable=False, comment="epoch ms"),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True, comment="epoch ms"),
        sa.PrimaryKeyConstraint("id"),
        comment="Tokens that let clients of the collector in. Writer: lagloss token.",
    )
    op.add_column(
        "pipeline",
        sa.Column(
            "deleted_at", sa.BigInteger(), nullable=True, comment="epoch ms; set in the newest version: it is deleted"
        ),
    )
    op.create_table_comment("pipeline", "Versions of definitions. Writers: lagloss apply, collector.")


def downgrade() -> None:
    op.create_table_comment("pipeline", "Versions of definitions. Writer: lagloss apply.")
    op.drop_column("pipeline", "deleted_at")
    op.drop_table("token")
