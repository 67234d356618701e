"""taps: their plans and accounts, and the records that they could not read"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0028"
down_revision = "0027"


def _emitter(comment: str | None = None) -> sa.Column[bytes]:
    return sa.Column("emitter", sa.LargeBinary(), nullable=False, comment=comment)


def _number(name: str, comment: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False, comment=comment)


def _text(name: str, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=False, comment=comment)


def upgrade() -> None:
    op.create_table(
        "tap",
        _emitter("its id as an emitter, 16 bytes"),
        _text("pipeline"),
        _text("node"),
        sa.Column(
            "tap", postgresql.JSONB(), nullable=False, comment="topic, consumer group, places and how ids are read"
        ),
        _number("since", "epoch ms: start of its first window"),
        _number("number", "of the newest plan"),
        sa.Column("plan", postgresql.JSONB(), nullable=False),
        _text("owner", "process that carries it out; empty: none"),
        _number("owned_until", "epoch ms on the server's clock, after which another takes over"),
        _number("seen", "records read"),
        _number("left_out", "of them, records that its filter leaves out"),
        _number("early", "of them, records of windows before its first"),
        _number("gone", "offsets deleted before they were read"),
        _text("commits", "log or polled: how a group's commits are learned; empty: no group"),
        _text("trouble", "why it waits; empty: it does not"),
        sa.PrimaryKeyConstraint("emitter"),
        comment="Taps, the newest plan of each, and which process carries it out. Writer: taps.",
    )
    op.create_table(
        "tap_tally",
        _emitter(),
        _text("place"),
        _number("window_start", "epoch s"),
        sa.Column("packed", sa.LargeBinary(), nullable=False, comment="the tally, as a report has it"),
        sa.PrimaryKeyConstraint("emitter", "place", "window_start"),
        comment="Accounts of taps, as far as their plans before the newest. Writer: taps.",
    )
    op.create_table(
        "tap_unreadable",
        _emitter(),
        _text("reason"),
        _number("count"),
        _number("partition", "of the newest example"),
        _number("offset", "of the newest example"),
        _number("at", "epoch ms: timestamp of the newest example"),
        sa.PrimaryKeyConstraint("emitter", "reason"),
        comment="Records that taps could not read, by reason. Writer: taps.",
    )


def downgrade() -> None:
    """Drop what the older model does not read, too."""
    op.execute(
        "UPDATE pipeline SET definition = jsonb_set(definition #- '{spec,lookback}', '{spec,nodes}',"
        " (SELECT jsonb_agg(node - 'taps') FROM jsonb_array_elements(definition #> '{spec,nodes}') node))"
        " WHERE jsonb_path_exists(definition, 'strict $.spec.nodes[*]', silent => true)"
        " AND NOT jsonb_path_exists(definition, '$.spec.nodes[*] ? (@.type() != \"object\")')"
    )
    for table in ("tap_unreadable", "tap_tally", "tap"):
        op.drop_table(table)
