"""Tables of taps: the plan of each, its account, the records that it could not read, and the rows of tables that are
compared again. Times are epoch ms."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, LargeBinary, text
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
    recheck_trouble: Mapped[str] = mapped_column(comment="why rows are not compared again; empty: nothing is wrong")


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


class RememberedRowsRow(Base):
    __tablename__ = "remembered_rows"
    __table_args__ = (
        Index("remembered_rows_due", "emitter", "due_at"),
        {"comment": "Rows of tapped tables that are compared again, by minute. Writer: taps."},
    )

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True)
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    number: Mapped[int] = mapped_column(
        primary_key=True, comment="of the plan that read them; 0: those that were compared before"
    )
    due_at: Mapped[int] = mapped_column(comment="epoch ms: when the minute is compared next")
    compared_at: Mapped[int] = mapped_column(comment="epoch ms: when it was compared last; 0: never")
    sample: Mapped[int] = mapped_column(comment="ids whose hash modulo 2^32 is below it are remembered; 2^32: all")
    version: Mapped[dict[str, Any]] = mapped_column(JSONB, comment="of the table that the rows were seen in")
    packed: Mapped[bytes] = mapped_column(LargeBinary, comment="rows: place, id, event time, when seen and missed")


class LostAfterwardsRow(Base):
    __tablename__ = "lost_afterwards"
    __table_args__ = (
        Index("lost_afterwards_of_pipeline", "pipeline", "window_start"),
        Index("lost_afterwards_outstanding", "until", postgresql_where=text("lost > accepted")),
        {
            "comment": "Messages whose rows were in a tapped table and are not any more, by minute. Writers: taps; "
            "lagloss lost-afterwards accepts; aggregator prunes."
        },
    )

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True, comment="of the tap")
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    pipeline: Mapped[str]
    node: Mapped[str]
    checkpoint: Mapped[str] = mapped_column(comment="at which the rows are beacons")
    source: Mapped[str] = mapped_column(comment="the table, as people read it")
    lost: Mapped[int] = mapped_column(comment="messages, without those whose row is there again")
    accepted: Mapped[int] = mapped_column(comment="of them, messages that someone has accepted as deleted on purpose")
    accepted_at: Mapped[datetime | None]
    accepted_by: Mapped[str | None]
    accepted_why: Mapped[str | None]
    compared: Mapped[int] = mapped_column(comment="rows of the minute that were compared")
    sample: Mapped[int] = mapped_column(comment="ids whose hash modulo 2^32 is below it were compared; 2^32: all")
    cause: Mapped[str] = mapped_column(comment="deleted, rewritten or recreated: what became of the table's rows")
    missed_at: Mapped[int] = mapped_column(comment="epoch ms: the first look that missed the newest of them")
    until: Mapped[int] = mapped_column(comment="epoch ms: the minute is compared up to then")


class LostAfterwardsMessageRow(Base):
    __tablename__ = "lost_afterwards_message"
    __table_args__ = (
        Index("lost_afterwards_message_of_pipeline", "pipeline", "window_start"),
        Index("lost_afterwards_message_of_id", "id_hash"),
        {"comment": "Names of these messages. Writers: taps; aggregator prunes."},
    )

    emitter: Mapped[bytes] = mapped_column(LargeBinary, primary_key=True, comment="of the tap")
    window_start: Mapped[int] = mapped_column(primary_key=True, comment="epoch s")
    id_hash: Mapped[int] = mapped_column(primary_key=True, comment="xxh3_64 read as signed")
    pipeline: Mapped[str]
    message_id: Mapped[str]
    event_ms: Mapped[int] = mapped_column(comment="epoch ms: event time")
    place: Mapped[int] = mapped_column(comment="cursor of the row when it was seen last")
    seen_at: Mapped[int] = mapped_column(comment="epoch ms: when it was seen last")
    missed_at: Mapped[int] = mapped_column(comment="epoch ms: the first look that missed it")
    cause: Mapped[str] = mapped_column(comment="deleted, rewritten or recreated")
