"""rules that have begun to breach; the dashboard acknowledges, silences and tests, too"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

_COMMENTS = {
    "incident": (
        "Breaches of rules, one row each. Writers: alerting; lagloss alerts acknowledges.",
        "Breaches of rules, one row each. Writers: alerting; lagloss alerts and dashboard acknowledge.",
    ),
    "outbox": (
        "Notifications, in the commit of the change they tell. Writers: alerting; lagloss alerts test.",
        "Notifications, in the commit of the change they tell. Writers: as incident.",
    ),
    "silence": (
        "Incidents nobody is to be told of for a while. Writer: lagloss alerts silence.",
        "Incidents nobody is to be told of for a while. Writers: lagloss alerts, dashboard.",
    ),
}


def upgrade() -> None:
    op.create_table(
        "pending_breach",
        sa.Column("pipeline", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column(
            "breaches", sa.Integer(), nullable=False, comment="windows that breach, of the last `of` closed ones"
        ),
        sa.Column("needed", sa.Integer(), nullable=False, comment="so many of them open an incident"),
        sa.Column("of", sa.Integer(), nullable=False),
        sa.Column("first_window", sa.BigInteger(), nullable=False, comment="the oldest that breaches, epoch s"),
        sa.Column("last_window", sa.BigInteger(), nullable=False, comment="the newest that breaches, epoch s"),
        sa.Column("text", sa.Text(), nullable=False, comment="the newest one's value against the target, for people"),
        sa.PrimaryKeyConstraint("pipeline", "rule"),
        comment="Rules that breach, in too few windows yet for an incident. Writer: alerting.",
    )
    for table, (_, after) in _COMMENTS.items():
        op.create_table_comment(table, after)


def downgrade() -> None:
    for table, (before, _) in _COMMENTS.items():
        op.create_table_comment(table, before)
    op.drop_table("pending_breach")
