"""The tables' side of ownership (store/ownership.py): the table of leases, and the columns of rows that are claimed."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import Integer, func
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class LeaseRow(Base):
    __tablename__ = "lease"
    __table_args__ = {
        "comment": "Work that one process does at a time, and its owner. Writers: aggregator, alerting and canary."
    }

    work: Mapped[str] = mapped_column(primary_key=True, comment="aggregator, alerting or canary")
    owner: Mapped[str] = mapped_column(comment="session that does it while its name is locked: host, process, number")
    since: Mapped[datetime]
    well_at: Mapped[datetime] = mapped_column(comment="last heartbeat of the owner, for people")


class ClaimColumns:
    """Columns of a row that stands for a piece of work: tried until it is done, by one process at a time."""

    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    attempts: Mapped[int] = mapped_column(Integer, server_default="0")
    next_attempt_at: Mapped[datetime] = mapped_column(
        server_default=func.clock_timestamp(), comment="while it is claimed: when the claim expires"
    )
    claim: Mapped[uuid.UUID | None] = mapped_column(
        comment="id of the claim that can record the attempt; null: none is running"
    )
    done_at: Mapped[datetime | None]
    last_error: Mapped[str | None]
