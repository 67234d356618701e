"""the settle time of a window is not kept: it starts anew after a calm minute, and so after a restart"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.drop_column("window", "settle_ms")


def downgrade() -> None:
    op.add_column("window", sa.Column("settle_ms", sa.BigInteger(), nullable=False, server_default="5000"))
