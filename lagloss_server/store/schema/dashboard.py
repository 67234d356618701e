"""The dashboard's tables: people with a password, sessions, and reports that are mailed by a schedule."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base
from lagloss_server.store.schema.ownership import ClaimColumns


class UserRow(Base):
    __tablename__ = "login_user"
    __table_args__ = {
        "comment": "Users who log in with a password. Writers: lagloss users; dashboard rehashes passwords."
    }

    name: Mapped[str] = mapped_column(primary_key=True, comment="in lower case")
    role: Mapped[str] = mapped_column(comment="viewer or operator")
    password_hash: Mapped[str] = mapped_column(comment="argon2id with its parameters and salt")
    created_at: Mapped[datetime]
    groups: Mapped[list[Any]] = mapped_column(server_default="[]", comment="names of groups, which teams refer to")


class SessionRow(Base):
    __tablename__ = "login_session"
    __table_args__ = {"comment": "Sessions of the dashboard. Writers: dashboard; lagloss users ends them."}

    token_hash: Mapped[bytes] = mapped_column(primary_key=True, comment="SHA-256 of the cookie's token")
    login: Mapped[str] = mapped_column(comment="how they logged in: local or oidc")
    name: Mapped[str]
    role: Mapped[str] = mapped_column(comment="viewer or operator")
    created_at: Mapped[datetime] = mapped_column(comment="when they logged in")
    seen_at: Mapped[datetime] = mapped_column(comment="their last request, to the minute")
    groups: Mapped[list[Any]] = mapped_column(server_default="[]", comment="names of groups, which teams refer to")


class ReportRunRow(ClaimColumns, Base):
    __tablename__ = "report_run"
    __table_args__ = {"comment": "Scheduled reports, one row for each time one was due. Writer: dashboard (scheduler)."}

    report: Mapped[str] = mapped_column(primary_key=True, comment="its name in the reports file")
    schedule: Mapped[str] = mapped_column(primary_key=True, comment="rule and zone: a change restarts the schedule")
    due_at: Mapped[datetime] = mapped_column(primary_key=True)
    reached: Mapped[list[Any]] = mapped_column(
        server_default="[]", comment="addresses that received it, receivers that it is queued for"
    )
    outcome: Mapped[str | None] = mapped_column(comment="sent, failed or skipped; null: not done yet")
