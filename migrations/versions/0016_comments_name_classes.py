"""comments name classes, not the modules that they lie in"""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.alter_column("emitter", "skew", comment="Skew: [[minute, ms], ...]")
    op.alter_column("window", "facts", comment="WindowFacts, packed")
    op.alter_column("rollup", "packed", comment="Rollup: all sums and sketches")
    op.create_table_comment(
        "window", "The newest result of each closed window. Writer: closer. Result columns: see WindowResult."
    )


def downgrade() -> None:
    op.alter_column("emitter", "skew", comment="lagloss.skew.Skew: [[minute, ms], ...]")
    op.alter_column("window", "facts", comment="lagloss.facts.WindowFacts, packed")
    op.alter_column("rollup", "packed", comment="lagloss.rollup.Rollup: all sums and sketches")
    op.create_table_comment(
        "window",
        "The newest result of each closed window. Writer: closer. Result columns: see lagloss.result.WindowResult.",
    )
