"""messages of queues that are in flight, beside those that wait"""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column(
        "consumer_lag",
        sa.Column(
            "in_flight",
            sa.BigInteger(),
            nullable=True,
            comment="of a queue: messages received and not deleted",
        ),
    )
    op.add_column(
        "consumer_lag",
        sa.Column("in_flight_max", sa.BigInteger(), nullable=True, comment="highest in the minute"),
    )


def downgrade() -> None:
    op.drop_column("consumer_lag", "in_flight_max")
    op.drop_column("consumer_lag", "in_flight")
