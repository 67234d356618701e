"""The table of reports that are mailed by a schedule."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import Integer, func
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class ReportRunRow(Base):
    __tablename__ = "report_run"
    __table_args__ = {"comment": "Scheduled reports, one row for each time one was due. Writer: dashboard (scheduler)."}

    report: Mapped[str] = mapped_column(primary_key=True, comment="its name in the reports file")
    schedule: Mapped[str] = mapped_column(primary_key=True, comment="rule and zone: with another one it begins anew")
    due_at: Mapped[datetime] = mapped_column(primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    next_attempt_at: Mapped[datetime] = mapped_column(
        server_default=func.clock_timestamp(), comment="while it is made and sent: when the claim runs out"
    )
    claim: Mapped[uuid.UUID | None] = mapped_column(comment="who may record the last attempt")
    reached: Mapped[list[Any]] = mapped_column(server_default="[]", comment="addresses that have it")
    outcome: Mapped[str | None] = mapped_column(comment="sent, failed or skipped; null: not done yet")
    done_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
