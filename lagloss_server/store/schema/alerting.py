"""Alerting's tables: incidents and all that happened to them, notifications, silences."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Identity, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from lagloss_server.store.schema.core import Base
from lagloss_server.store.schema.ownership import ClaimColumns


class IncidentRow(Base):
    __tablename__ = "incident"
    __table_args__ = (
        Index("incident_open", "pipeline", "rule", unique=True, postgresql_where=text("state = 'open'")),
        Index("incident_last_window", "pipeline", "last_window"),
        {"comment": "Incidents, one row each. Writers: alerting; lagloss alerts and dashboard acknowledge."},
    )

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    pipeline: Mapped[str]
    rule: Mapped[str] = mapped_column(comment="name of the rule: loss, lag/node/mid, budget/loss/1h, ...")
    kind: Mapped[str] = mapped_column(comment="kind of the rule, which names its runbook")
    severity: Mapped[str] = mapped_column(comment="critical or warning")
    state: Mapped[str] = mapped_column(comment="open or resolved")
    opened_at: Mapped[datetime]
    resolved_at: Mapped[datetime | None]
    acknowledged_at: Mapped[datetime | None]
    acknowledged_by: Mapped[str | None]
    first_window: Mapped[int] = mapped_column(comment="epoch s")
    last_window: Mapped[int] = mapped_column(comment="epoch s")
    value: Mapped[float] = mapped_column(comment="of its last window, in the rule's unit")
    worst: Mapped[float]
    target: Mapped[float]
    withheld_kind: Mapped[str | None] = mapped_column(
        comment="why no receiver is notified: silence, maintenance, rule or upstream; null: receivers are notified"
    )
    withheld_ref: Mapped[str | None] = mapped_column(
        comment="the silence's id, or the name of the maintenance, the open rule, the blind pipeline"
    )
    withheld_by: Mapped[str | None] = mapped_column(comment="author of the silence")
    withheld_reason: Mapped[str | None] = mapped_column(comment="of the silence or the maintenance")
    detail: Mapped[dict[str, Any]] = mapped_column(comment="breaches as ranges of windows, where, examples, notes")


class IncidentChangeRow(Base):
    __tablename__ = "incident_change"
    __table_args__ = (
        Index("incident_change_of", "incident_id", "id"),
        {"comment": "Changes of incidents, append-only. Writers: as incident."},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    incident_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("incident.id"))
    at: Mapped[datetime]
    change: Mapped[str] = mapped_column(
        comment="opened, updated, raised, acknowledged, withheld, released, escalated, reopened or resolved"
    )
    by: Mapped[str | None] = mapped_column(comment="who did it; null: the alerter")
    note: Mapped[str | None]
    value: Mapped[float]
    worst: Mapped[float]
    first_window: Mapped[int] = mapped_column(comment="epoch s")
    last_window: Mapped[int] = mapped_column(comment="epoch s")


class OutboxMessageRow(ClaimColumns, Base):
    __tablename__ = "outbox"
    __table_args__ = (
        Index("outbox_due", "receiver", "next_attempt_at", postgresql_where=text("done_at IS NULL")),
        Index("outbox_of_incident", "incident_id", "receiver", "id"),
        Index("outbox_done", "done_at"),
        {"comment": "Notifications, committed together with their change. Writers: as incident."},
    )

    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    key: Mapped[uuid.UUID] = mapped_column(
        server_default=func.gen_random_uuid(),
        comment="by which receivers recognise a repetition; unlike id, never again that of another message",
    )
    receiver: Mapped[str]
    incident_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("incident.id"), comment="null: a test or a report")
    action: Mapped[str] = mapped_column(comment="trigger, update, refresh, acknowledge, resolve, test or report")
    change: Mapped[str] = mapped_column(
        comment="why: a change of the incident, reminder, refresh, fallback, test or report"
    )
    group_key: Mapped[str] = mapped_column(
        comment="notifications of one receiver with the same key can be sent together"
    )
    body: Mapped[dict[str, Any]]
    outcome: Mapped[str | None] = mapped_column(comment="sent, failed or dropped (out of date before it was sent)")


class PendingBreachRow(Base):
    __tablename__ = "pending_breach"
    __table_args__ = {"comment": "Rules that breach in too few windows for an incident so far. Writer: alerting."}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    rule: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    severity: Mapped[str]
    breaches: Mapped[int] = mapped_column(Integer, comment="windows that breach, of the last `of` closed ones")
    needed: Mapped[int] = mapped_column(Integer, comment="number of breaches that open an incident")
    of: Mapped[int] = mapped_column(Integer)
    first_window: Mapped[int] = mapped_column(comment="the oldest that breaches, epoch s")
    last_window: Mapped[int] = mapped_column(comment="the newest that breaches, epoch s")
    text: Mapped[str] = mapped_column(comment="the newest value against the target, as text")


class JudgedWindowsRow(Base):
    __tablename__ = "judged_windows"
    __table_args__ = {"comment": "Windows that alerting has fully evaluated. Writer: alerting."}

    pipeline: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(Integer, comment="version of the definition that they were evaluated with")
    judged_to: Mapped[int] = mapped_column(comment="windows that start before this time; epoch s, full hour")
    digests: Mapped[bytes] = mapped_column(
        comment="of each hour, five int64: hour, windows, sums of revision and closed_at, how many are history"
    )
    live: Mapped[dict[str, Any]] = mapped_column(
        comment="newest window with live beacons (epoch s) before the windows that are read, by checkpoint"
    )


class SilenceRow(Base):
    __tablename__ = "silence"
    __table_args__ = {
        "comment": "Silences: matching incidents send no notifications. Writers: lagloss alerts, dashboard."
    }

    id: Mapped[str] = mapped_column(primary_key=True)
    matchers: Mapped[list[Any]] = mapped_column(comment="texts such as pipeline=clicks, all of which must match")
    reason: Mapped[str]
    author: Mapped[str]
    starts_at: Mapped[datetime]
    ends_at: Mapped[datetime]
    ended_by: Mapped[str | None] = mapped_column(comment="who ended it early; ends_at is when")


class ReceiverRow(Base):
    __tablename__ = "receiver"
    __table_args__ = {"comment": "Receivers that the leading alerter knows, without secrets. Writer: alerting."}

    name: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str]
    is_fallback: Mapped[bool]
