"""The login's tables: people with a password, and the sessions of those logged in to the dashboard."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class UserRow(Base):
    __tablename__ = "login_user"
    __table_args__ = {
        "comment": "People who log in by a password kept here. Writers: lagloss users; dashboard hashes anew."
    }

    name: Mapped[str] = mapped_column(primary_key=True, comment="in lower case")
    role: Mapped[str] = mapped_column(comment="viewer or operator")
    password_hash: Mapped[str] = mapped_column(comment="argon2id with its parameters and salt")
    created_at: Mapped[datetime]


class SessionRow(Base):
    __tablename__ = "login_session"
    __table_args__ = {"comment": "Who is logged in to the dashboard. Writers: dashboard; lagloss users ends them."}

    token_hash: Mapped[bytes] = mapped_column(primary_key=True, comment="SHA-256 of the cookie's token")
    login: Mapped[str] = mapped_column(comment="how they logged in: local or oidc")
    name: Mapped[str]
    role: Mapped[str] = mapped_column(comment="viewer or operator")
    created_at: Mapped[datetime] = mapped_column(comment="when they logged in")
    seen_at: Mapped[datetime] = mapped_column(comment="their last request, to the minute")
