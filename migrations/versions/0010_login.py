"""people who log in to the dashboard, and their sessions"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "login_user",
        sa.Column("name", sa.Text(), nullable=False, comment="in lower case"),
        sa.Column("role", sa.Text(), nullable=False, comment="viewer or operator"),
        sa.Column("password_hash", sa.Text(), nullable=False, comment="argon2id with its parameters and salt"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        comment="People who log in by a password kept here. Writers: lagloss users; dashboard hashes anew.",
    )
    op.create_table(
        "login_session",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False, comment="SHA-256 of the cookie's token"),
        sa.Column("login", sa.Text(), nullable=False, comment="how they logged in: local or oidc"),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False, comment="viewer or operator"),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, comment="when they logged in"),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, comment="their last request, to the minute"),
        sa.PrimaryKeyConstraint("token_hash"),
        comment="Who is logged in to the dashboard. Writers: dashboard; lagloss users ends them.",
    )


def downgrade() -> None:
    op.drop_table("login_session")
    op.drop_table("login_user")
