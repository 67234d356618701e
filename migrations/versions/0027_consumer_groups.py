"""state, velocity and distance to retention of consumer groups"""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def _column(name: str, kind: type[sa.types.TypeEngine], comment: str | None, *, nullable: bool = True) -> sa.Column:
    return sa.Column(name, kind(), nullable=nullable, comment=comment)


def _progress() -> list[sa.Column]:
    number, rate, text = sa.BigInteger, sa.Double, sa.Text
    return [
        _column("committed", number, "offset at asked_at; null: none, or a queue"),
        _column("log_start", number, "first offset of the log at asked_at; null: not known"),
        _column("log_end", number, "offset after its last at asked_at; null: not known"),
        _column("commits_per_s", rate, "offsets per second, of 5 minutes; null: not known"),
        _column("appends_per_s", rate, "offsets per second, of 5 minutes; null: not known"),
        _column("status", text, "ok, warning, stalled or stopped; null: not known"),
        _column(
            "kept_by",
            text,
            "limit that deletes what waits first: time or size; none: there is no limit; null: not known",
        ),
        _column(
            "deletes_at",
            number,
            "epoch ms: earliest time at which the next record is deleted; null: nothing waits, or no limit known",
        ),
        _column(
            "loss_at",
            number,
            "epoch ms: earliest time at which a record is deleted unread, at these rates; null: none that waits",
        ),
        _column("at_risk", number, "offsets that wait from that record on; null: none"),
        _column(
            "deleted",
            number,
            "offsets deleted in the minute before the group had committed past them; null: not known",
        ),
    ]


def upgrade() -> None:
    for column in _progress():
        op.add_column("consumer_lag", column)
    op.create_table(
        "consumer_group",
        *(_column(name, sa.Text, None, nullable=False) for name in ("pipeline", "node", "consumer_group")),
        _column("asked_at", sa.BigInteger, "epoch ms", nullable=False),
        _column("state", sa.Text, "as Kafka names it: Stable, Empty, Dead, ...", nullable=False),
        _column("since", sa.BigInteger, "epoch ms: when it was first found in this state", nullable=False),
        _column("members", sa.Integer, "consumers in it", nullable=False),
        _column("assigned", sa.Integer, "partitions that its members have between them", nullable=False),
        _column("protocol", sa.Text, "classic, or consumer: KIP-848", nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "node", "consumer_group"),
        comment="Consumer groups as their coordinators describe them. Writer: consumer lag watch.",
    )


def downgrade() -> None:
    """Drop what the older model does not read, too."""
    op.execute(
        "UPDATE pipeline SET definition = definition #- '{spec,alerts,timeToLoss}' "
        "WHERE jsonb_typeof(definition #> '{spec,alerts}') = 'object'"
    )
    op.drop_table("consumer_group")
    for column in reversed(_progress()):
        op.drop_column("consumer_lag", column.name)
