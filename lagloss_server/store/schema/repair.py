"""Tables of repairs: what was lost at a place, where its records are, and what was sent again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, Integer, func
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base


class RepairRow(Base):
    __tablename__ = "repair"
    __table_args__ = (
        Index("repair_of_place", "pipeline", "place", "from_window"),
        {"comment": "Repairs, planned before anything is sent. Writers: lagloss repair, dashboard; aggregator prunes."},
    )

    id: Mapped[str] = mapped_column(primary_key=True, comment="the header lagloss-replay is repair-ID")
    pipeline: Mapped[str]
    place: Mapped[str] = mapped_column(comment="link a->b, node a or retrier a")
    from_window: Mapped[int] = mapped_column(comment="epoch s")
    to_window: Mapped[int] = mapped_column(comment="epoch s, exclusive")
    with_perhaps: Mapped[bool] = mapped_column(comment="whether messages that are perhaps lost are in the set")
    cluster: Mapped[str] = mapped_column(comment="name of the Kafka cluster of the topics; empty: of lagloss's own")
    plan: Mapped[dict[str, Any]] = mapped_column(
        comment="topics and how they are read, ends of the topics, loss before"
    )
    set_hash: Mapped[str] = mapped_column(comment="SHA-256 of the windows and id hashes of the set, hex")
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    created_by: Mapped[str]
    state: Mapped[str] = mapped_column(comment="open, stopped or finished: nothing more is sent")
    stop_reason: Mapped[str | None] = mapped_column(comment="why it stopped, or is to stop; null: it is not to")
    runner: Mapped[str] = mapped_column(comment="the process that may write; another one takes its place; empty: none")
    position: Mapped[int] = mapped_column(Integer, comment="records of the plan that are done")
    rate: Mapped[float | None] = mapped_column(comment="records per second of its last run; null: it never ran")
    started_at: Mapped[datetime | None] = mapped_column(comment="when the first record was about to be sent")
    ended_at: Mapped[datetime | None] = mapped_column(comment="when it last stopped or finished")
    statement: Mapped[dict[str, Any] | None] = mapped_column(comment="as the command printed it last, without names")


class RepairMessageRow(Base):
    __tablename__ = "repair_message"
    __table_args__ = (
        Index("repair_message_of_window", "id_hash", "window_start"),
        {"comment": "Messages of a repair in the order in which they are sent. Writers: as repair."},
    )

    repair: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(Integer, primary_key=True)
    pipeline: Mapped[str]
    window_start: Mapped[int] = mapped_column(comment="epoch s")
    id_hash: Mapped[int] = mapped_column(comment="xxh3_64 read as signed")
    message_id: Mapped[str | None] = mapped_column(comment="null if the name is unknown")
    kind: Mapped[str] = mapped_column(comment="lost or perhaps")
    target: Mapped[str | None] = mapped_column(comment="topic or queue that it is sent into; null: its record is gone")
    topic: Mapped[str | None] = mapped_column(comment="topic in which its record is; null: gone, or a file")
    topic_partition: Mapped[int | None] = mapped_column(Integer)
    topic_offset: Mapped[int | None]
    state: Mapped[str] = mapped_column(
        comment="planned, sending, sent, arrived or elsewhere (which came meanwhile, and are not sent), gone or refused"
    )
    is_delivered: Mapped[bool] = mapped_column(comment="whether it arrived at its destinations under this replay")
