"""Repairs of lost messages as incidents and reports show them: lost before, sent, arrived, lost now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import Connection, Row, select

from lagloss_server.base import format as fmt
from lagloss_server.model.time_range import FromTo
from lagloss_server.model.window import Interval, rfc3339
from lagloss_server.store.schema import core as tables
from lagloss_server.store.schema.repair import RepairRow
from lagloss_server.store.store import Store


class MessageBounds(TypedDict):
    """Bounds in messages, as of an `Interval`."""

    min: int
    max: int


class WindowsLoss(TypedDict):
    """Messages of the windows of a repair, and those of them that were lost."""

    messages: int
    lost: MessageBounds


class RepairRecordDocument(FromTo):
    """A repair whose windows overlap with an incident or a report; `to` is exclusive. Counts of messages are null until
    its first run has ended. `before`: when it was planned, `after`: now."""

    repair: str
    place: str
    state: str
    stop_reason: str | None
    created_at: str
    created_by: str
    sent: int | None
    arrived: int | None
    missing: int | None
    gone: int | None
    before: WindowsLoss
    after: WindowsLoss
    text: str


@dataclass(frozen=True, slots=True)
class RepairRecord:
    """A repair of windows with from_s <= start < to_s. `before`, `after`: by window, the messages and those lost, after
    by what arrived where the window is not kept any more; `statement`: how its last run ended, None before that."""

    id: str
    place: str
    from_s: int
    to_s: int
    state: str
    stop_reason: str | None
    created_at: datetime
    created_by: str
    before: Mapping[int, tuple[int, Interval]]
    after: Mapping[int, tuple[int, Interval]]
    statement: Mapping[str, Any] | None

    @property
    def name(self) -> str:
        return f"repair-{self.id}"

    @property
    def lost_before(self) -> Interval:
        return _added(lost for _, lost in self.before.values())

    @property
    def lost_after(self) -> Interval:
        return _added(lost for _, lost in self.after.values())

    def count(self, name: str) -> int | None:
        """Return a count of messages in its statement: sent, arrived, missing or gone."""
        return None if self.statement is None else self.statement.get(name)

    def document(self) -> RepairRecordDocument:
        return {
            "repair": self.name,
            "place": self.place,
            "from": rfc3339(self.from_s),
            "to": rfc3339(self.to_s),
            "state": self.state,
            "stop_reason": self.stop_reason,
            "created_at": rfc3339(int(self.created_at.timestamp())),
            "created_by": self.created_by,
            "sent": self.count("sent"),
            "arrived": self.count("arrived"),
            "missing": self.count("missing"),
            "gone": self.count("gone"),
            "before": _together(self.before),
            "after": _together(self.after),
            "text": self.words,
        }

    @property
    def words(self) -> str:
        """`repair-5f0c at link a->b: sent 40, arrived 40; lost before 40, now 0`."""
        state = {"open": "in progress", "stopped": f"stopped ({self.stop_reason})"}.get(self.state)
        counts = [
            f"{name} {number}" for name in ("sent", "arrived", "gone") if (number := self.count(name)) is not None
        ]
        done = ", ".join([*([state] if state else []), *counts])
        lost = f"lost before {fmt.count_interval(self.lost_before)}, now {fmt.count_interval(self.lost_after)}"
        return f"{self.name} at {self.place}: {done}; {lost}"


def read_repair_records(store: Store, pipeline: str, from_s: int, to_s: int) -> list[RepairRecord]:
    """Return the repairs of windows that overlap with from <= start < to, oldest first."""
    row = tables.table_of(RepairRow)
    overlaps = row.c.pipeline == pipeline, row.c.from_window < to_s, row.c.to_window > from_s
    with store.engine.connect() as connection:
        rows = connection.execute(select(row).where(*overlaps).order_by(row.c.created_at, row.c.id)).all()
        starts = {start for stored in rows for start, *_ in stored.plan["windows"]}
        now = _losses(connection, pipeline, starts) if starts else {}
    return [_record(stored, now) for stored in rows]


def lost_before_repairs(records: Sequence[RepairRecord], from_s: int, to_s: int) -> Interval:
    """Return how many messages of windows with from <= start < to were lost before they were repaired, and are not now:
    of each window what its first repair says."""
    first: dict[int, RepairRecord] = {}
    for record in records:
        for start in record.before:
            if from_s <= start < to_s:
                first.setdefault(start, record)
    low = high = 0
    for start, record in first.items():
        before, after = record.before[start][1], record.after.get(start, record.before[start])[1]
        low += max(0, before.min - after.min)
        high += max(0, before.max - after.max)
    return Interval(low, high)


def _record(row: Row[Any], now: Mapping[int, tuple[int, Interval]]) -> RepairRecord:
    before = {start: (messages, Interval(low, high)) for start, messages, low, high in row.plan["windows"]}
    arrived: dict[int, int] = dict((row.statement or {}).get("arrived_by_window", ()))
    by_statement = {
        start: (messages, Interval(max(0, lost.min - arrived.get(start, 0)), max(0, lost.max - arrived.get(start, 0))))
        for start, (messages, lost) in before.items()
    }
    return RepairRecord(
        row.id,
        row.place,
        row.from_window,
        row.to_window,
        row.state,
        row.stop_reason,
        row.created_at,
        row.created_by,
        before,
        {start: now.get(start, loss) for start, loss in by_statement.items()},
        row.statement,
    )


def _losses(connection: Connection, pipeline: str, starts: Iterable[int]) -> dict[int, tuple[int, Interval]]:
    window = tables.table_of(tables.WindowRow).c
    columns = window.window_start, window.messages, window.lost_min, window.lost_max
    rows = connection.execute(
        select(*columns).where(window.pipeline == pipeline, window.window_start.in_(sorted(starts)))
    )
    return {row.window_start: (row.messages, Interval(row.lost_min, row.lost_max)) for row in rows}


def _together(losses: Mapping[int, tuple[int, Interval]]) -> WindowsLoss:
    lost = _added(lost for _, lost in losses.values())
    return {"messages": sum(count for count, _ in losses.values()), "lost": {"min": lost.min, "max": lost.max}}


def _added(parts: Iterable[Interval]) -> Interval:
    parts = list(parts)
    return Interval(sum(part.min for part in parts), sum(part.max for part in parts))
