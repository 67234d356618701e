"""plans of taps say by which looks their records were appended, and which commits were beyond the end"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0033"
down_revision = "0032"

_TAP = sa.table("tap", sa.column("emitter", sa.LargeBinary()), sa.column("tap", JSONB()), sa.column("plan", JSONB()))


def upgrade() -> None:
    for emitter, tap, plan in op.get_bind().execute(sa.select(_TAP)):
        for span in plan["spans"]:
            marks = span.pop("marks")
            is_group = tap["group"] is not None
            span |= {
                "ends": [] if is_group else [[offset, at_ms, at_ms] for offset, at_ms in marks],
                "commits": marks if is_group else [],
                "is_read": False,
            }
        _store(emitter, {**plan, "void": {}})


def downgrade() -> None:
    for emitter, _, plan in op.get_bind().execute(sa.select(_TAP)):
        for span in plan["spans"]:
            ends, commits, _ = (span.pop(name) for name in ("ends", "commits", "is_read"))
            span["marks"] = commits or [[offset, at_ms] for offset, at_ms, _ in ends]
        del plan["void"]
        _store(emitter, plan)


def _store(emitter: bytes, plan: dict[str, object]) -> None:
    op.get_bind().execute(_TAP.update().where(_TAP.c.emitter == emitter).values(plan=plan))
