"""reports go to receivers by the outbox: comments say so"""

from alembic import op

revision = "0024"
down_revision = "0023"

_COMMENTS = (
    ("outbox", "incident_id", "null: a test or a report", "null: a test"),
    (
        "outbox",
        "action",
        "trigger, update, refresh, acknowledge, resolve, test or report",
        "trigger, update, refresh, acknowledge, resolve or test",
    ),
    (
        "outbox",
        "change",
        "why: a change of the incident, reminder, refresh, fallback, test or report",
        "why: a change of the incident, reminder, refresh, fallback or test",
    ),
    ("report_run", "reached", "addresses that have it, receivers that it is queued for", "addresses that have it"),
)


def upgrade() -> None:
    for table, column, comment, before in _COMMENTS:
        op.alter_column(table, column, comment=comment, existing_comment=before)


def downgrade() -> None:
    for table, column, comment, before in _COMMENTS:
        op.alter_column(table, column, comment=before, existing_comment=comment)
