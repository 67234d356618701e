"""missing messages are found by their id, whatever their minute"""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_index("missing_message_hash", "missing_message", ["id_hash", "pipeline"])


def downgrade() -> None:
    op.drop_index("missing_message_hash", "missing_message")
