"""rules that were off by default are on, also of definitions that were stored with the old default"""

from alembic import op

revision = "0022"
down_revision = "0021"

# What a definition leaves out was stored as the default of its time. An `off` that repeats the default is rare, and
# cannot be distinguished from it.
_TURNED_ON = ("duplicates", "deadLetters")
_NEW = ("uncertainLoss", "filtered", "volume", "corruption")
_CHANGES = "opened, updated, {}acknowledged, withheld, released, escalated, reopened or resolved"


def upgrade() -> None:
    for rule in _TURNED_ON:
        op.execute(
            f"UPDATE pipeline SET definition = definition #- '{{spec,alerts,{rule}}}' "
            f"WHERE definition #> '{{spec,alerts,{rule}}}' = 'false'"
        )
    op.alter_column("incident_change", "change", comment=_CHANGES.format("raised, "))


def downgrade() -> None:
    """Drop what the older model does not read: rules that are new, and lists of rules for single places."""
    for rule in _NEW:
        op.execute(
            f"UPDATE pipeline SET definition = definition #- '{{spec,alerts,{rule}}}' "
            "WHERE jsonb_typeof(definition #> '{spec,alerts}') = 'object'"
        )
    # the older model has its own defaults for what is not there
    for rule in (*_TURNED_ON, "loss", "lag", "onTime", "staleness", "pendingAge", "negativeLag"):
        op.execute(
            f"UPDATE pipeline SET definition = definition #- '{{spec,alerts,{rule}}}' "
            f"WHERE jsonb_typeof(definition #> '{{spec,alerts,{rule}}}') IN ('array', 'object')"
        )
    op.execute(
        "UPDATE pipeline SET definition = definition #- '{spec,sla,staleness,checkpoints}' "
        "WHERE jsonb_typeof(definition #> '{spec,sla,staleness}') = 'object'"
    )
    op.alter_column("incident_change", "change", comment=_CHANGES.format(""))
