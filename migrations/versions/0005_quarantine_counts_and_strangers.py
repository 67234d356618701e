"""counts of bad records, and names that no definition has"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "quarantine_count",
        sa.Column("topic", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False, comment="epoch s: the hour in which they were appended"),
        sa.Column("bucket", sa.Text(), nullable=False, comment="what is replaced as a whole; empty: added up"),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic", "reason", "hour", "bucket"),
        comment="How many bad records there were, kept or not. Writer: aggregator.",
    )
    op.create_table(
        "stranger",
        sa.Column("kind", sa.Text(), nullable=False, comment="pipeline, checkpoint, replay or lane"),
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("checkpoint", sa.Text(), nullable=False, comment="of a checkpoint or lane, else empty"),
        sa.Column("name", sa.Text(), nullable=False, comment="of a replay or lane, else empty"),
        sa.Column("emitter", sa.LargeBinary(), nullable=False, comment="who named it first"),
        sa.Column(
            "since", sa.BigInteger(), nullable=False, comment="epoch ms: append time of the report that named it first"
        ),
        sa.PrimaryKeyConstraint("kind", "pipeline", "checkpoint", "name"),
        comment="Names in reports that no definition has, kept up to a limit. Writer: follower.",
    )
    op.create_index("quarantine_found", "quarantine", ["topic", "reason", "found_at"])
    op.create_table_comment(
        "quarantine", "Bad records of both topics, 1,000 a topic, reason and hour at most. Writer: aggregator."
    )
    # what was set aside so far was kept in full
    op.execute(
        "INSERT INTO quarantine_count (topic, reason, hour, bucket, count) "
        "SELECT topic, reason, floor(extract(epoch FROM found_at) / 3600)::bigint * 3600, '', count(*) "
        "FROM quarantine GROUP BY 1, 2, 3"
    )


def downgrade() -> None:
    op.create_table_comment("quarantine", "Bad records of both topics. Writer: aggregator.")
    op.drop_index("quarantine_found", table_name="quarantine")
    op.drop_table("stranger")
    op.drop_table("quarantine_count")
