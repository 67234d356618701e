"""who did what, or looked at message ids; and the groups of people, by which teams know them

The trigger holds for every role, the tables' owner included: rows are added, and none goes before it is 30 days old.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0020"
down_revision = "0019"

JSONB = postgresql.JSONB(astext_type=sa.Text())
KEPT = """
CREATE FUNCTION audit_trail_is_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF OLD.at < clock_timestamp() - interval '30 days' THEN
      RETURN OLD;
    END IF;
  END IF;
  RAISE EXCEPTION 'rows of audit_trail are never changed, and deleted after 30 days at the soonest'
    USING ERRCODE = 'insufficient_privilege';
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "audit_trail",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("clock_timestamp()"), nullable=False),
        sa.Column(
            "actor", sa.Text(), nullable=False, comment="their name; of a client of the collector, the id of its token"
        ),
        sa.Column(
            "known_by",
            sa.Text(),
            nullable=False,
            comment="how it is known: local, oidc, proxy, token, machine, command, none",
        ),
        sa.Column(
            "address",
            sa.Text(),
            nullable=True,
            comment="that the request came from; of a command, the machine's name",
        ),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column(
            "object",
            sa.Text(),
            nullable=False,
            comment="what it was done to; of a message, its id's hash in hex",
        ),
        sa.Column(
            "pipelines",
            JSONB,
            nullable=False,
            comment="names of those that it concerns; empty: of none by itself",
        ),
        sa.Column("detail", JSONB, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        comment="Who did what, or looked at message ids. Rows are never changed, nor deleted within 30 days. "
        "Writers: dashboard, collector and commands add, aggregator prunes.",
    )
    op.create_index("audit_trail_at", "audit_trail", ["at"])
    op.execute(KEPT)
    for event, each in (("UPDATE OR DELETE", "ROW"), ("TRUNCATE", "STATEMENT")):
        op.execute(
            f"CREATE TRIGGER audit_trail_{each.lower()}_is_kept BEFORE {event} ON audit_trail "
            f"FOR EACH {each} EXECUTE FUNCTION audit_trail_is_kept()"
        )
    for table in ("login_user", "login_session"):
        op.add_column(
            table,
            sa.Column(
                "groups",
                JSONB,
                server_default="[]",
                nullable=False,
                comment="names of groups, by which teams know them",
            ),
        )


def downgrade() -> None:
    for table in ("login_session", "login_user"):
        op.drop_column(table, "groups")
    op.drop_table("audit_trail")
    op.execute("DROP FUNCTION audit_trail_is_kept")
