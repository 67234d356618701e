"""Plans and accounts of taps in PostgreSQL: whoever owns a tap, and it alone, can store its next plan.

One statement stores a plan, if the process still owns the tap, and only over the plan before it: of two processes that
carry out the same plan, only one gets to the next.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Connection, Engine, delete, func, or_, select, text, update
from sqlalchemy.dialects.postgresql import insert

from lagloss.sdk.account import pack_tally, unpack_tally
from lagloss.wire.format import Tally
from lagloss_server.store.ownership import IS_FREE, OwnerSession
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import (
    LostAfterwardsRow,
    RememberedRowsRow,
    TapRow,
    TapTallyRow,
    TapUnreadableRow,
)
from lagloss_server.store.tap_rows import read_taps_of
from lagloss_server.store.unreadable import ReadRows
from taps.plan import TapPlan
from taps.records import TapCounts, UnreadableRecords
from taps.wanted import RunningTap

P = TypeVar("P", bound=TapPlan)
LOST_AFTER_S: Final = 15.0
"""Time without a sign of life after which another process takes over: with `CLAIM_S`, within 20 s."""
CONNECTIONS: Final = 4
"""At a time, as many as the engine keeps open: all taps run at the same time, and opening a connection is expensive."""


class NotOwned(Exception):
    """Another process has taken over this tap, or it was removed."""


@dataclass(frozen=True, slots=True)
class OwnedTap(Generic[P]):
    """A tap as it was left: its newest plan, which may have been carried out or not, and the account before it."""

    plan: P
    tallies: Sequence[Tally]
    counts: TapCounts


@dataclass(frozen=True, slots=True)
class NextPlan:
    """A plan to store, of a tap that has nothing else to store: no tally that has changed, and no record that could not
    be read."""

    emitter: bytes
    plan: TapPlan
    counts: TapCounts
    commits: str


_ADVANCE_ALL: Final = text(
    """
    UPDATE tap SET number = step.number, plan = step.plan, seen = step.seen, left_out = step.left_out,
                   early = step.early, gone = step.gone, commits = step.commits, trouble = ''
    FROM jsonb_to_recordset(CAST(:steps AS jsonb)) AS step (
        emitter text, number bigint, plan jsonb, seen bigint, left_out bigint, early bigint, gone bigint, commits text
    )
    WHERE tap.emitter = decode(step.emitter, 'hex') AND tap.owner = :owner AND tap.number = step.number - 1
    RETURNING tap.emitter
    """
)


class TapStore:
    """Taps of one process. Raises DBAPIError where the database does not answer."""

    def __init__(self, engine: Engine, database_url: str) -> None:
        self._engine = engine
        self._database_url = database_url
        self._session: OwnerSession | None = None
        self._opening = threading.Lock()
        self._connections = threading.BoundedSemaphore(CONNECTIONS)

    def add(self, running: RunningTap, first: TapPlan) -> None:
        """Store a tap with its first plan; one that is there stays as it is."""
        new = {
            "emitter": running.emitter,
            "pipeline": running.tap.pipeline,
            "node": running.tap.node,
            "tap": running.tap.document(),
            "since": running.since_ms,
            "number": first.number,
            "plan": first.document(),
            **dict.fromkeys(("seen", "left_out", "early", "gone"), 0),
            **dict.fromkeys(("owner", "commits", "trouble", "recheck_trouble"), ""),
        }
        with self._transaction() as connection:
            connection.execute(insert(table_of(TapRow)).values(new).on_conflict_do_nothing())

    def is_stored(self, emitter: bytes) -> bool:
        with self._transaction() as connection:
            return bool(connection.execute(select(func.count()).where(TapRow.emitter == emitter)).scalar_one())

    def have_ended(self, emitters: Collection[bytes]) -> bool:
        """Return whether those of these taps that are stored have reported that they were replaced."""
        if not emitters:
            return True
        row = TapRow
        has_not = select(func.count()).where(row.emitter.in_(emitters), row.plan["ends_ms"].astext.is_(None))
        with self._transaction() as connection:
            return not connection.execute(has_not).scalar_one()

    def claim(self, emitter: bytes, read: Callable[[Mapping[str, Any]], P]) -> OwnedTap[P] | None:
        """Own this tap from now on; None while another process owns it, or if there is none. `read` returns the plan of
        a document."""
        table, owner = table_of(TapRow), self._owner()
        with self._transaction() as connection:
            is_free = or_(table.c.owner == owner, text(IS_FREE))
            row = connection.execute(
                update(table).where(table.c.emitter == emitter, is_free).values(owner=owner).returning(table)
            ).one_or_none()
            if row is None:
                return None
            packed = connection.execute(select(TapTallyRow.packed).where(TapTallyRow.emitter == emitter)).scalars()
            tallies = [unpack_tally(packed_tally) for packed_tally in packed]
            columns = [getattr(TapUnreadableRow, name) for name in ("reason", "count", "partition", "offset", "at")]
            rows = connection.execute(select(*columns).where(TapUnreadableRow.emitter == emitter))
            unreadable = {reason: UnreadableRecords(*values) for reason, *values in rows}
        counts = TapCounts(row.seen, row.left_out, row.early, row.gone, unreadable)
        return OwnedTap(read(row.plan), tallies, counts)

    def advance(
        self,
        emitter: bytes,
        plan: TapPlan,
        tallies: Sequence[Tally],
        counts: TapCounts,
        commits: str,
        also: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """Store the next plan, with the account up to the one before it: `tallies` that changed since. `also` writes
        in the same transaction.

        Raises:
            NotOwned: this process may not carry it out.
        """
        table, owner = table_of(TapRow), self._owner()
        with self._transaction() as connection:
            stored = connection.execute(
                update(table)
                .where(table.c.emitter == emitter, table.c.owner == owner, table.c.number == plan.number - 1)
                .values(
                    number=plan.number,
                    plan=plan.document(),
                    seen=counts.seen,
                    left_out=counts.left_out,
                    early=counts.early,
                    gone=counts.gone,
                    commits=commits,
                    trouble="",
                )
            )
            if stored.rowcount != 1:
                raise NotOwned
            also(connection)
            if tallies:
                query = insert(table_of(TapTallyRow))
                connection.execute(
                    query.on_conflict_do_update(
                        index_elements=["emitter", "place", "window_start", "replay"],
                        set_={"packed": query.excluded.packed},
                    ),
                    [
                        {
                            "emitter": emitter,
                            "place": tally.checkpoint,
                            "window_start": tally.window_start,
                            "replay": tally.replay or "",
                            "packed": pack_tally(tally),
                        }
                        for tally in tallies
                    ],
                )
            if counts.unreadable:
                query = insert(table_of(TapUnreadableRow))
                changed = {name: query.excluded[name] for name in ("count", "partition", "offset", "at")}
                connection.execute(
                    query.on_conflict_do_update(index_elements=["emitter", "reason"], set_=changed),
                    [
                        {
                            "emitter": emitter,
                            "reason": reason,
                            "count": count.count,
                            "partition": count.partition,
                            "offset": count.offset,
                            "at": count.at_ms,
                        }
                        for reason, count in counts.unreadable.items()
                    ],
                )

    def advance_all(self, steps: Sequence[NextPlan]) -> set[bytes]:
        """Store the next plans of many taps; return the taps of those that this process may carry out."""
        rows = [
            {
                "emitter": step.emitter.hex(),
                "number": step.plan.number,
                "plan": step.plan.document(),
                "seen": step.counts.seen,
                "left_out": step.counts.left_out,
                "early": step.counts.early,
                "gone": step.counts.gone,
                "commits": step.commits,
            }
            for step in steps
        ]
        with self._transaction() as connection:
            stored = connection.execute(_ADVANCE_ALL, {"steps": json.dumps(rows), "owner": self._owner()})
            return {bytes(emitter) for emitter in stored.scalars()}

    def note_trouble(self, emitter: bytes, trouble: str) -> None:
        """Say why this tap waits.

        Raises:
            NotOwned: another process has taken it over.
        """
        table, owner = table_of(TapRow), self._owner()
        with self._transaction() as connection:
            noted = connection.execute(
                update(table).where(table.c.emitter == emitter, table.c.owner == owner).values(trouble=trouble)
            )
        if noted.rowcount != 1:
            raise NotOwned

    @contextmanager
    def owning(self, emitter: bytes) -> Iterator[Connection]:
        """Yield a transaction during which no other process can take this tap over.

        Raises:
            NotOwned: this process does not own it.
        """
        row = TapRow
        own = select(row.number).where(row.emitter == emitter, row.owner == self._owner())
        with self._transaction() as connection:
            if connection.execute(own.with_for_update(read=True)).one_or_none() is None:
                raise NotOwned
            yield connection

    def release(self, emitter: bytes) -> None:
        """Let another process take this tap over at once."""
        table, owner = table_of(TapRow), self._owner()
        with self._transaction() as connection:
            connection.execute(update(table).where(table.c.emitter == emitter, table.c.owner == owner).values(owner=""))

    def forget(self, emitter: bytes) -> None:
        """Remove a tap that is closed. What is stated of its rows stays, and is compared no more."""
        lost = table_of(LostAfterwardsRow)
        with self._transaction() as connection:
            for row in (TapRow, TapTallyRow, TapUnreadableRow, RememberedRowsRow):
                table = table_of(row)
                connection.execute(delete(table).where(table.c.emitter == emitter))
            connection.execute(
                update(lost)
                .where(lost.c.emitter == emitter)
                .values(until=func.least(lost.c.until, int(time.time() * 1_000)))
            )

    def prune(self, emitter: bytes, before_s: int) -> None:
        """Remove tallies of windows that start before a time (epoch s)."""
        row = TapTallyRow
        with self._transaction() as connection:
            connection.execute(delete(row).where(row.emitter == emitter, row.window_start < before_s))

    def stored(self) -> ReadRows[RunningTap]:
        """Return all taps that are not closed, whoever owns them."""
        columns = (TapRow.emitter, TapRow.pipeline, TapRow.node, TapRow.tap, TapRow.since)
        with self._transaction() as connection:
            taps = read_taps_of(connection.execute(select(*columns)))
        return ReadRows((RunningTap(tap, row.emitter, row.since) for tap, row in taps), taps.unreadable)

    def close(self) -> None:
        """Let other processes take all taps over at once."""
        if self._session is not None:
            self._session.close()

    def _owner(self) -> str:
        """Return the name by which this process owns taps: another one after each loss of all of them."""
        with self._opening:
            if self._session is None or self._session.has_ended:
                self._session = OwnerSession(self._database_url, LOST_AFTER_S)
            return self._session.name

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self._connections, self._engine.begin() as connection:
            yield connection
