"""what withholds an incident by kind and name, no sentence to be taken apart"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

_COLUMNS = {
    "withheld_kind": "why nobody is told now: silence, maintenance, rule or upstream; null: its receivers are",
    "withheld_ref": "the silence's id, or the name of the maintenance, the open rule, the blind pipeline",
    "withheld_by": "author of the silence",
    "withheld_reason": "of the silence or the maintenance",
}


def upgrade() -> None:
    for name, comment in _COLUMNS.items():
        op.add_column("incident", sa.Column(name, sa.Text(), nullable=True, comment=comment))
    op.execute(
        """
        UPDATE incident SET withheld_kind = 'silence', withheld_ref = silence.id, withheld_by = silence.author,
            withheld_reason = silence.reason
        FROM silence
        WHERE withheld = concat('silence ', silence.id, ' by ', silence.author, ': ', silence.reason)
        """
    )
    for kind, pattern in (
        ("maintenance", "^maintenance ([^:]*): (.*)$"),
        ("rule", "^inhibited: (.*) is open and tells of it()$"),
        ("upstream", "^inhibited: (.*), which this pipeline follows, is blind()$"),
    ):
        op.execute(
            sa.text(
                """
                UPDATE incident SET withheld_kind = :kind, withheld_ref = found[1],
                    withheld_reason = nullif(found[2], '')
                FROM (SELECT id AS of, regexp_match(withheld, :pattern) AS found FROM incident) AS stored
                WHERE incident.id = stored.of AND found IS NOT NULL
                """
            ).bindparams(kind=kind, pattern=pattern)
        )
    op.drop_column("incident", "withheld")


def downgrade() -> None:
    op.add_column(
        "incident",
        sa.Column("withheld", sa.Text(), nullable=True, comment="why nobody is told now; null: its receivers are"),
    )
    op.execute(
        """
        UPDATE incident SET withheld = CASE withheld_kind
            WHEN 'silence' THEN concat('silence ', withheld_ref, ' by ', withheld_by, ': ', withheld_reason)
            WHEN 'maintenance' THEN concat('maintenance ', withheld_ref, ': ', withheld_reason)
            WHEN 'rule' THEN concat('inhibited: ', withheld_ref, ' is open and tells of it')
            WHEN 'upstream' THEN concat('inhibited: ', withheld_ref, ', which this pipeline follows, is blind')
        END
        """
    )
    for name in _COLUMNS:
        op.drop_column("incident", name)
