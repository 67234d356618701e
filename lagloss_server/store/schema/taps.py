"""Tables of taps: the plan of each, its account, and the records that it could not read. Times are epoch ms."""

from __future__ import annotations

from typing import Any

from sqlalchemy import LargeBinary
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class TapRow(Base):
    __tablename__ = "tap"
    __table_args__ = ({"comment": "Taps, the newest plan of each, and the process that runs it. Writer: taps."},)

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True, comment="its id as an emitter, 16 bytes")
    pipeline: Mapped[str] = mapped_column()
    node: Mapped[str] = mapped_column()
    tap: Mapped[dict[str, Any]] = mapped_column(JSONB, comment="topic, consumer group, places and extraction of ids")
    since: Mapped[int] = mapped_column(comment="epoch ms: start of its first window")
    number: Mapped[int] = mapped_column(comment="of the newest plan")
    plan: Mapped[dict[str, Any]] = mapped_column(JSONB)
    owner: Mapped[str] = mapped_column(comment="session that runs it while its name is locked; empty: none")
    seen: Mapped[int] = mapped_column(comment="records read")
    left_out: Mapped[int] = mapped_column(comment="of them, records excluded by its filter")
    early: Mapped[int] = mapped_column(comment="of them, records of windows before its first")
    gone: Mapped[int] = mapped_column(comment="offsets deleted before they were read")
    commits: Mapped[str] = mapped_column(comment="log or polled: source of the group's commits; empty: no group")
    trouble: Mapped[str] = mapped_column(comment="why it is waiting; empty: it is not")


class TapTallyRow(Base):
    __tablename__ = "tap_tally"
    __table_args__ = ({"comment": "Tallies of taps, up to the plan before the newest. Writer: taps."},)

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    place: Mapped[str] = mapped_column(primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    replay: Mapped[str] = mapped_column(primary_key=True, comment="empty for live traffic")
    packed: Mapped[bytes] = mapped_column(LargeBinary, comment="the tally, as a report has it")


class TapUnreadableRow(Base):
    __tablename__ = "tap_unreadable"
    __table_args__ = ({"comment": "Records that taps could not read, by reason. Writer: taps."},)

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    reason: Mapped[str] = mapped_column(primary_key=True)
    count: Mapped[int] = mapped_column()
    partition: Mapped[int] = mapped_column(comment="of the newest example")
    offset: Mapped[int] = mapped_column(comment="of the newest example")
    at: Mapped[int] = mapped_column(comment="epoch ms: timestamp of the newest example")
