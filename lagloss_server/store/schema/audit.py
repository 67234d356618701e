"""The audit trail's table, which every part adds to."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, Index, func
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class AuditTrailRow(Base):
    __tablename__ = "audit_trail"
    __table_args__ = (
        Index("audit_trail_at", "at"),
        {
            "comment": "Audit trail of actions and views of message ids. Append-only; kept for at least 30 days. "
            "Writers: dashboard, collector and commands add, aggregator prunes."
        },
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    actor: Mapped[str] = mapped_column(comment="their name; of a client of the collector, the id of its token")
    known_by: Mapped[str] = mapped_column(
        comment="how the actor was identified: local, oidc, proxy, token, machine, command, none"
    )
    address: Mapped[str | None] = mapped_column(comment="source of the request; of a command, the machine's name")
    action: Mapped[str]
    object: Mapped[str] = mapped_column(comment="object of the action; of a message, the hash of its id in hex")
    pipelines: Mapped[list[Any]] = mapped_column(comment="names of affected pipelines; empty: none in particular")
    detail: Mapped[dict[str, Any]]
