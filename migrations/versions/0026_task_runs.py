"""runs of DAGs and the tries of their tasks"""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"

_RULES = ("deadline", "runFailed", "outputStale", "runLate")


def _key() -> list[sa.Column[str]]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in ("pipeline", "dag", "run_id")]


def _moment(name: str, comment: str, *, nullable: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable, comment=comment)


def upgrade() -> None:
    op.create_table(
        "dag_run",
        *_key(),
        _moment("due_at", "epoch ms: end of its data interval, or when it was to run"),
        _moment("interval_start", "epoch ms: data interval; null: it has none", nullable=True),
        _moment("interval_end", "epoch ms", nullable=True),
        sa.Column("state", sa.Text(), nullable=False, comment="queued, running, success or failed"),
        _moment("started_at", "epoch ms: of its newest attempt", nullable=True),
        _moment("ended_at", "epoch ms; null: not yet", nullable=True),
        _moment("failed_at", "epoch ms: when it first failed, though it succeeded later", nullable=True),
        _moment("reported_at", "epoch ms on the scheduler's clock; 0: known by its tasks alone"),
        sa.PrimaryKeyConstraint("pipeline", "dag", "run_id"),
        comment="Runs of the DAGs that definitions name, as last reported. Writer: collector.",
    )
    op.create_index("dag_run_due", "dag_run", ["pipeline", "dag", "due_at"])
    op.create_table(
        "task_try",
        *_key(),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("map_index", sa.Integer(), nullable=False, comment="of a mapped task, else -1"),
        sa.Column("try_number", sa.Integer(), nullable=False, comment="from 1; 0: it never began"),
        _moment("due_at", "epoch ms: of its run"),
        sa.Column("state", sa.Text(), nullable=False, comment="running, success, failed, skipped or upstream_failed"),
        _moment("started_at", "epoch ms", nullable=True),
        _moment("ended_at", "epoch ms; null: not yet", nullable=True),
        _moment("reported_at", "epoch ms on the worker's clock"),
        sa.PrimaryKeyConstraint("pipeline", "dag", "run_id", "task", "map_index", "try_number"),
        comment="Tries of the tasks of these runs, as last reported. Writer: collector.",
    )
    op.create_index("task_try_due", "task_try", ["due_at"])


def downgrade() -> None:
    """Drop what the older model does not read, too."""
    for path in ("jobs", *(f"alerts,{rule}" for rule in _RULES)):
        holder = f"spec,{path}".rpartition(",")[0]
        op.execute(
            f"UPDATE pipeline SET definition = definition #- '{{spec,{path}}}' "
            f"WHERE jsonb_typeof(definition #> '{{{holder}}}') = 'object'"
        )
    op.drop_table("task_try")
    op.drop_table("dag_run")
