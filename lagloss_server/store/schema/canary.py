"""Tables of the canary: its secrets, and each of its minutes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class CanarySecretRow(Base):
    __tablename__ = "canary_secret"
    __table_args__ = ({"comment": "The canary's secrets, which no other service reads. Writer: prepare."},)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False, comment="1")
    secret: Mapped[bytes] = mapped_column(comment="key of the HMAC that its faults follow from")
    token: Mapped[str] = mapped_column(comment="of its pipeline, for the collector")


class CanaryMinuteRow(Base):
    __tablename__ = "canary_minute"
    __table_args__ = (
        {"comment": "Minutes of the canary: what was sent, and what lagloss made of it. Writer: canary."},
    )

    minute: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, comment="epoch s: its start")
    state: Mapped[str] = mapped_column(comment="sending, sent, or not due: it was not sent as planned")
    why: Mapped[str] = mapped_column(comment="it is not due; empty: it is")
    began_at: Mapped[datetime]
    verdict: Mapped[str | None] = mapped_column(
        comment="right, late: right after it was due, or wrong; null: not judged yet"
    )
    problems: Mapped[list[Any]] = mapped_column(JSONB, comment="what is wrong, as texts")
    judged_at: Mapped[datetime | None] = mapped_column(comment="when it was judged first")
    revision: Mapped[int | None] = mapped_column(
        Integer, comment="of the window when it was last judged; null: it had no result"
    )
    shown: Mapped[int] = mapped_column(Integer, comment="messages that it lost")
    named: Mapped[int] = mapped_column(Integer, comment="of them, those that were named at their place")
    invented: Mapped[int] = mapped_column(Integer, comment="messages reported as lost that were not")
    notice: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB, comment="the first notification of this minute that arrived"
    )
