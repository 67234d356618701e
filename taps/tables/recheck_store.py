"""Remembered rows of a tap in PostgreSQL, and what is stated of them: which messages are lost afterwards.

Rows are stored with the plan that read them, each plan's in rows of its own, and put together when their minute is
compared. Everything is written on condition that this process owns the tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from lagloss.wire.format import hash_id, signed64
from lagloss_server.model.message_ids import escape_id
from lagloss_server.model.tables import TableTap
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, LostAfterwardsRow, RememberedRowsRow, TapRow
from taps.store import NotOwned, TapStore
from taps.tables.reading import TableVersion
from taps.tables.remembered import RememberedMinute, RememberedRow, due_ms, merged, rows_of
from taps.wanted import RunningTap

KEPT_BEYOND_MS: Final = 86_400_000
"""How long a minute is tried to be compared once `recheck` has passed."""


@dataclass(frozen=True, slots=True)
class DueMinute:
    """A minute to compare. `numbers`: of the rows in the database that it was put together from; `stated`: the messages
    that are stated as lost afterwards."""

    minute: RememberedMinute
    numbers: Sequence[int]
    stated: dict[str, RememberedRow]


@dataclass(frozen=True, slots=True)
class ComparedMinute:
    """A minute that was compared, or could not be. `due_ms`: when it is compared next; None: never."""

    due: DueMinute
    minute: RememberedMinute
    due_ms: int | None

    @property
    def lost(self) -> list[RememberedRow]:
        """Messages that are to be stated as lost."""
        return [row for id_, row in self.minute.lost.items() if id_ not in self.due.stated]

    @property
    def returned(self) -> list[str]:
        """Ids that were stated as lost and are there again."""
        return [id_ for id_ in self.due.stated if id_ not in self.minute.lost]


class RecheckStore:
    """What is remembered of one tap. Raises DBAPIError where the database does not answer."""

    def __init__(self, running: RunningTap, store: TapStore) -> None:
        assert isinstance(running.tap, TableTap)
        self.tap = running.tap
        self._emitter, self._store = running.emitter, store

    def remember(self, connection: Connection, number: int, minutes: Iterable[RememberedMinute], now_ms: int) -> None:
        """Add rows in the transaction that stores the plan which read them."""
        dues = [(minute, due_ms(minute.window_start_s, now_ms, self.tap.recheck_ms)) for minute in minutes]
        stored = [(minute, due) for minute, due in dues if due is not None]
        if not stored:
            return
        stated = self._stated_minutes(connection, [minute.window_start_s for minute, _ in stored])
        values = [
            self._values(minute, number, now_ms if minute.window_start_s in stated else due) for minute, due in stored
        ]
        connection.execute(insert(table_of(RememberedRowsRow)), values)

    def due(self, now_ms: int, at_most: int, rows_at_most: int) -> list[DueMinute]:
        """Return minutes to compare by now, the one that has waited longest first: up to `at_most`, and no more once
        they have more than `rows_at_most` rows together.

        Raises:
            NotOwned: another process has taken the tap over.
        """
        row = RememberedRowsRow
        first_due = func.min(row.due_at)
        with self._store.owning(self._emitter) as connection:
            starts = list(
                connection.execute(
                    select(row.window_start)
                    .where(row.emitter == self._emitter, row.due_at <= now_ms)
                    .group_by(row.window_start)
                    .order_by(first_due, row.window_start)
                    .limit(at_most)
                ).scalars()
            )
            minutes: list[DueMinute] = []
            total = 0
            for start in starts:
                minutes.append(self._due_minute(connection, start))
                total += len(minutes[-1].minute.rows)
                if total > rows_at_most:
                    break
        return minutes

    def commit(self, results: Sequence[ComparedMinute], trouble: str) -> None:
        """Store minutes as they are after a comparison, and what is stated of them.

        Raises:
            NotOwned: another process has taken the tap over.
        """
        row, tap = table_of(RememberedRowsRow), table_of(TapRow)
        with self._store.owning(self._emitter) as connection:
            for result in sorted(results, key=lambda result: result.minute.window_start_s):
                due = result.due
                before = connection.execute(
                    delete(row).where(
                        row.c.emitter == self._emitter,
                        row.c.window_start == due.minute.window_start_s,
                        row.c.number.in_(due.numbers),
                        row.c.compared_at <= due.minute.compared_ms,
                    )
                )
                if before.rowcount != len(due.numbers):  # another process owned the tap meanwhile
                    raise NotOwned
                if result.due_ms is not None:
                    connection.execute(insert(row).values(self._values(result.minute, 0, result.due_ms)))
                if result.lost or result.returned:
                    self._state(connection, result)
            own = tap.c.emitter == self._emitter
            connection.execute(update(tap).where(own, tap.c.recheck_trouble != trouble).values(recheck_trouble=trouble))

    def prune(self, now_ms: int) -> None:
        """Forget minutes that could not be compared for too long."""
        row = RememberedRowsRow
        before_s = (now_ms - self.tap.recheck_ms - KEPT_BEYOND_MS) // 1_000
        with self._store.owning(self._emitter) as connection:
            connection.execute(delete(row).where(row.emitter == self._emitter, row.window_start < before_s))

    def _stated_minutes(self, connection: Connection, starts: Sequence[int]) -> set[int]:
        row = LostAfterwardsRow
        of_minutes = row.emitter == self._emitter, row.window_start.in_(starts)
        return set(connection.execute(select(row.window_start).where(*of_minutes)).scalars())

    def _due_minute(self, connection: Connection, start_s: int) -> DueMinute:
        row = table_of(RememberedRowsRow)
        of_minute = row.c.emitter == self._emitter, row.c.window_start == start_s
        numbers, parts = [], []
        for stored in connection.execute(select(row).where(*of_minute).order_by(row.c.number)):
            version = msgspec.convert(stored.version, TableVersion)
            numbers.append(stored.number)
            parts.append(RememberedMinute(start_s, rows_of(stored.packed), version, stored.sample, stored.compared_at))
        return DueMinute(merged(parts), numbers, parts[0].lost)

    def _values(self, minute: RememberedMinute, number: int, due: int) -> dict[str, Any]:
        return {
            "emitter": self._emitter,
            "window_start": minute.window_start_s,
            "number": number,
            "due_at": due,
            "compared_at": minute.compared_ms,
            "sample": minute.sample,
            "version": msgspec.to_builtins(minute.version),
            "packed": minute.packed_rows(),
        }

    def _state(self, connection: Connection, result: ComparedMinute) -> None:
        """State which messages of a minute are lost afterwards, and take back what was stated of those that are not."""
        minute, row, message = result.minute, table_of(LostAfterwardsRow), table_of(LostAfterwardsMessageRow)
        own = {"emitter": self._emitter, "window_start": minute.window_start_s, "pipeline": self.tap.pipeline}
        of_minute = (message.c.emitter == self._emitter, message.c.window_start == minute.window_start_s)
        if result.returned:
            hashes = [signed64(hash_id(id_)) for id_ in result.returned]
            connection.execute(delete(message).where(*of_minute, message.c.id_hash.in_(hashes)))
        if result.lost:
            names = [
                {
                    **own,
                    "id_hash": signed64(hash_id(lost.id)),
                    "message_id": escape_id(lost.id),
                    "event_ms": lost.event_ms,
                    "place": lost.place,
                    "seen_at": lost.seen_ms,
                    "missed_at": lost.missed_ms,
                    "cause": lost.cause,
                }
                for lost in result.lost
            ]
            connection.execute(insert(message).on_conflict_do_nothing(), names)
        lost_rows = minute.lost.values()
        if not lost_rows:
            connection.execute(
                delete(row).where(row.c.emitter == self._emitter, row.c.window_start == minute.window_start_s)
            )
            return
        newest = max(lost_rows, key=lambda lost: lost.missed_ms)
        statement = insert(row).values(
            **own,
            node=self.tap.node,
            checkpoint=self.tap.checkpoint,
            source=self.tap.source,
            lost=len(lost_rows),
            accepted=0,
            compared=len(minute.rows),
            sample=minute.sample,
            cause=newest.cause,
            missed_at=newest.missed_ms,
            until=minute.end_ms + self.tap.recheck_ms,
        )
        changed = {
            name: statement.excluded[name] for name in ("lost", "compared", "sample", "cause", "missed_at", "until")
        }
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=["emitter", "window_start"],
                set_={**changed, "accepted": func.least(row.c.accepted, statement.excluded.lost)},
            )
        )
