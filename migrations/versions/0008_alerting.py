"""alerting: every rule, every change, several receivers, silences, a leader"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"

_CRITICAL = "critical or warning"


def upgrade() -> None:
    _windows()
    _incidents()
    _outbox()
    op.create_table(
        "incident_change",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("incident_id", sa.Uuid(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "change",
            sa.Text(),
            nullable=False,
            comment="opened, updated, acknowledged, withheld, released, escalated, reopened or resolved",
        ),
        sa.Column("by", sa.Text(), nullable=True, comment="who did it; null: the alerter"),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("worst", sa.Double(), nullable=False),
        sa.Column("first_window", sa.BigInteger(), nullable=False, comment="epoch s"),
        sa.Column("last_window", sa.BigInteger(), nullable=False, comment="epoch s"),
        sa.ForeignKeyConstraint(["incident_id"], ["incident.id"]),
        sa.PrimaryKeyConstraint("id"),
        comment="What happened to incidents, never changed. Writers: as incident.",
    )
    op.create_index("incident_change_of", "incident_change", ["incident_id", "id"])
    op.create_table(
        "silence",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column(
            "matchers", JSONB(), nullable=False, comment="texts such as pipeline=clicks, all of which must match"
        ),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.Column("starts_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_by", sa.Text(), nullable=True, comment="who ended it early; ends_at is when"),
        sa.PrimaryKeyConstraint("id"),
        comment="Incidents nobody is to be told of for a while. Writer: lagloss alerts silence.",
    )
    op.create_table(
        "receiver",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("is_fallback", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        comment="Receivers that the leading alerter knows, without secrets. Writer: alerting.",
    )
    op.create_table(
        "alerting_leader",
        sa.Column("only", sa.Boolean(), nullable=False, comment="true: there is one row"),
        sa.Column("backend", sa.Integer(), nullable=False, comment="PostgreSQL process that holds the lead's lock"),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("led_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("well_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("only"),
        comment="Which alerter leads, and when it was last well. Writer: alerting.",
    )


def _windows() -> None:
    for name, comment in (
        ("on_time", "of these, delivered within the lag target"),
        ("on_time_of", "messages - filtered - dead; 0 if not known"),
    ):
        op.add_column("window", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0", comment=comment))
    due = "(document->>'messages')::bigint - (document->>'filtered')::bigint - (document->>'dead')::bigint"
    op.execute(
        f"UPDATE \"window\" SET on_time = round((document->>'on_time_share')::float8 * ({due})), on_time_of = {due} "
        "WHERE document->>'on_time_share' IS NOT NULL"
    )


def _incidents() -> None:
    op.alter_column("incident", "worst_ratio", new_column_name="worst")
    op.add_column(
        "incident",
        sa.Column("kind", sa.Text(), nullable=True, comment="kind of the rule, which names its runbook"),
    )
    op.add_column("incident", sa.Column("severity", sa.Text(), nullable=True, comment=_CRITICAL))
    op.add_column(
        "incident", sa.Column("value", sa.Double(), nullable=True, comment="of its last window, in the rule's unit")
    )
    op.add_column("incident", sa.Column("target", sa.Double(), nullable=True))
    op.add_column("incident", sa.Column("acknowledged_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("incident", sa.Column("acknowledged_by", sa.Text(), nullable=True))
    op.add_column(
        "incident",
        sa.Column("withheld", sa.Text(), nullable=True, comment="why nobody is told now; null: its receivers are"),
    )
    op.alter_column("incident", "rule", comment="name of the rule: loss, lag/node/mid, budget/loss/1h, ...")
    op.alter_column("incident", "detail", comment="breaches as ranges of windows, where, examples, notes")
    op.execute(
        """
        UPDATE incident SET kind = 'loss', severity = 'critical', value = worst,
            target = coalesce((detail->>'target')::float8, 0.01),
            detail = detail || jsonb_build_object('notes', '[]'::jsonb, 'breaches', coalesce(
                (SELECT jsonb_agg(jsonb_build_array(start::bigint, start::bigint) ORDER BY start::bigint)
                 FROM jsonb_object_keys(detail->'breaches') AS start), '[]'))
        """
    )
    for name in ("kind", "severity", "value", "target"):
        op.alter_column("incident", name, nullable=False)
    op.create_index("incident_last_window", "incident", ["pipeline", "last_window"])
    op.create_table_comment(
        "incident", "Breaches of rules, one row each. Writers: alerting; lagloss alerts acknowledges."
    )


def _outbox() -> None:
    op.drop_index("outbox_due", table_name="outbox")
    op.add_column("outbox", sa.Column("receiver", sa.Text(), nullable=False, server_default="webhook"))
    op.add_column(
        "outbox",
        sa.Column(
            "action",
            sa.Text(),
            nullable=True,
            comment="trigger, update, refresh, acknowledge, resolve or test",
        ),
    )
    op.add_column(
        "outbox",
        sa.Column(
            "group_key",
            sa.Text(),
            nullable=True,
            comment="those of one receiver that are due together may go together",
        ),
    )
    op.add_column("outbox", sa.Column("claim", sa.Uuid(), nullable=True, comment="who may record the last attempt"))
    op.add_column(
        "outbox",
        sa.Column(
            "outcome", sa.Text(), nullable=True, comment="sent, failed or dropped (out of date before it was sent)"
        ),
    )
    op.add_column("outbox", sa.Column("done_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(
        """
        UPDATE outbox SET
            action = CASE change WHEN 'opened' THEN 'trigger' WHEN 'resolved' THEN 'resolve' ELSE 'update' END,
            group_key = body->'incident'->>'pipeline',
            body = jsonb_build_object('notes', '[]'::jsonb) || body,
            done_at = coalesce(sent_at, failed_at),
            outcome = CASE WHEN sent_at IS NOT NULL THEN 'sent' WHEN failed_at IS NOT NULL THEN 'failed' END
        """
    )
    op.drop_column("outbox", "sent_at")
    op.drop_column("outbox", "failed_at")
    op.alter_column("outbox", "receiver", server_default=None)
    op.alter_column("outbox", "action", nullable=False)
    op.alter_column("outbox", "group_key", nullable=False)
    op.alter_column("outbox", "incident_id", nullable=True, comment="null: a test")
    op.alter_column("outbox", "change", comment="why: a change of the incident, reminder, refresh, fallback or test")
    for name in ("created_at", "next_attempt_at"):
        op.alter_column("outbox", name, server_default=sa.text("clock_timestamp()"))
    op.create_index(
        "outbox_due", "outbox", ["receiver", "next_attempt_at"], postgresql_where=sa.text("done_at IS NULL")
    )
    op.create_index("outbox_of_incident", "outbox", ["incident_id", "receiver", "id"])
    op.create_index("outbox_done", "outbox", ["done_at"])
    op.create_table_comment(
        "outbox",
        "Notifications, in the commit of the change they tell. Writers: alerting; lagloss alerts test.",
    )


def downgrade() -> None:
    for table in ("alerting_leader", "receiver", "silence", "incident_change"):
        op.drop_table(table)
    for index in ("outbox_done", "outbox_of_incident", "outbox_due"):
        op.drop_index(index, table_name="outbox")
    op.execute("DELETE FROM outbox WHERE incident_id IS NULL")
    op.alter_column("outbox", "incident_id", nullable=False)
    op.add_column("outbox", sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("outbox", sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True))
    op.execute(
        """
        UPDATE outbox SET sent_at = CASE WHEN outcome = 'sent' THEN done_at END,
            failed_at = CASE WHEN outcome <> 'sent' THEN done_at END
        """
    )
    for name in ("receiver", "action", "group_key", "claim", "outcome", "done_at"):
        op.drop_column("outbox", name)
    for name in ("created_at", "next_attempt_at"):
        op.alter_column("outbox", name, server_default=sa.text("now()"))
    op.create_index(
        "outbox_due",
        "outbox",
        ["next_attempt_at"],
        postgresql_where=sa.text("sent_at IS NULL AND failed_at IS NULL"),
    )
    op.drop_index("incident_last_window", table_name="incident")
    for name in ("kind", "severity", "value", "target", "acknowledged_at", "acknowledged_by", "withheld"):
        op.drop_column("incident", name)
    op.alter_column("incident", "worst", new_column_name="worst_ratio")
    for name in ("on_time", "on_time_of"):
        op.drop_column("window", name)
