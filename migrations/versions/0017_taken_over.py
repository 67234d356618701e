"""who reported a lane, and which lanes an emitter takes in: what says that a dead emitter's work was taken over"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column(
        "progress",
        sa.Column("reporter", sa.LargeBinary(), server_default="", nullable=False, comment="emitter that reported it"),
    )
    op.add_column(
        "emitter",
        sa.Column(
            "resumes",
            sa.Boolean(),
            server_default="false",
            nullable=False,
            comment="it observes again what it had in hand",
        ),
    )
    op.add_column(
        "emitter",
        sa.Column("labels", postgresql.JSONB(), server_default="{}", nullable=False, comment="of its deployment"),
    )
    op.add_column(
        "emitter",
        sa.Column(
            "inputs",
            postgresql.JSONB(),
            server_default="[]",
            nullable=False,
            comment="lanes of its node's input that it reported",
        ),
    )


def downgrade() -> None:
    op.drop_column("emitter", "inputs")
    op.drop_column("emitter", "labels")
    op.drop_column("emitter", "resumes")
    op.drop_column("progress", "reporter")
