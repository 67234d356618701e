"""Random histories of a sink, its table, and the tap of that table, and what each message should have come to.

The sink commits its group before it writes or after, holds batches in memory, keeps transactions open, is killed,
writes in savepoints and prepares transactions; rows are updated, deleted and vacuumed. Runners of the tap are killed
and paused between any two steps that others can see, and two own it one after the other. The ledger is written by
whoever plays the sink. Its reading of the horizon is its own: a row that was being inserted before some moment, and
was not rolled back, is not lost by what was known of that moment.

Rows are compared again on a clock that is set forward at random: those that are deleted once the tap has seen them are
lost afterwards, unless they are written again.
"""

from __future__ import annotations

import random
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import psycopg
from sqlalchemy import Engine, func, select, update

from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.format import BeaconBlock, EmitterReport, Tally, decode_block, decode_report, hash_id
from lagloss_server.base.errors import TableUnreadable
from lagloss_server.extraction import Extractor
from lagloss_server.model.tables import TableSpec, TableTap
from lagloss_server.store.schema.core import table_of
from lagloss_server.store.schema.taps import LostAfterwardsMessageRow, RememberedRowsRow, TapRow
from taps.kernel import BlockMaker
from taps.metrics import TapMetrics
from taps.store import NotOwned
from taps.tables.postgres import PostgresTable
from taps.tables.reading import MissingRows, SeenRow, TableRead, TableReader
from taps.tables.recheck import RecheckRunner
from taps.tables.recheck_store import ComparedMinute, RecheckStore
from taps.tables.runner import TableRunner
from taps.wanted import RunningTap
from tests.support.tap_histories import FragileOutlet, FragileStore, Killed, Saboteur
from tests.support.tapped_tables import CURSORS, TappedDatabase

WINDOW_MS: Final = 60_000
RECHECK_MS: Final = 7 * 86_400_000
LIMIT: Final = 7
PATIENCE_S: Final = 60.0
MOST_LOOKS: Final = 300
"""Until all rows are past `RECHECK_MS`: each look is 4 hours later, on an average."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Ledgered:
    """A message as its sink knows it. Times are epoch ms, none before it happened.

    Attributes:
        taken_ms: its group committed it.
        inserting_ms: just before its row was inserted.
        visible_ms: just before its transaction was committed, and just after.
        deleted_ms: just before its row was deleted; None once it was written again.
        cursor: of the row that was deleted, as text.
        returns: how many times it was written again.
    """

    message_id: str
    event_ms: int
    taken_ms: int | None = None
    inserting_ms: int | None = None
    visible_ms: tuple[int, int] | None = None
    deleted_ms: int | None = None
    cursor: str | None = None
    returns: int = 0
    copies: int = 1
    """Rows of it."""

    @property
    def hash(self) -> int:
        return hash_id(self.message_id)

    @property
    def window(self) -> int:
        return self.event_ms // WINDOW_MS * 60


@dataclass
class OpenTransaction:
    connection: psycopg.Connection[Any]
    messages: list[Ledgered] = field(default_factory=list)
    takes: bool = False
    """The group commits them once the transaction is committed."""
    name: str | None = None
    """By which it is prepared."""
    drawn: int | None = None
    """The number of its next row, if it has drawn that already."""


class FragileTable:
    """A reader that is killed before it has read, or after."""

    def __init__(self, reader: TableReader, saboteur: Saboteur) -> None:
        self._reader, self._saboteur = reader, saboteur
        self.interval_s = reader.interval_s

    def read(self, position: Mapping[str, Any], since_ms: int) -> TableRead:
        self._saboteur.step()
        read = self._reader.read(position, since_ms)
        self._saboteur.step()
        return read

    def missing(self, rows: Sequence[SeenRow]) -> MissingRows:
        self._saboteur.step()
        missing = self._reader.missing(rows)
        self._saboteur.step()
        return missing

    def close(self) -> None:
        self._reader.close()


class FragileRecheckStore(RecheckStore):
    saboteur = Saboteur()

    def commit(self, results: Sequence[ComparedMinute], trouble: str) -> None:
        self.saboteur.step()
        super().commit(results, trouble)
        self.saboteur.step()


@dataclass
class TableTapProcess:
    """One process's runner of the tap."""

    runner: TableRunner
    recheck: RecheckRunner
    store: FragileStore
    tables: Sequence[FragileTable]
    saboteur: Saboteur

    def close(self) -> None:
        for table in self.tables:
            table.close()
        self.store.close()


@dataclass
class SinkHistory(ABC):
    """One sink and one table, and the processes that run the tap of it."""

    engine: Engine
    database_url: str
    seed: int

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.name = f"h{self.seed}_{uuid.uuid4().hex[:6]}"
        self.spec = self.create().model_copy(update={"recheck": RECHECK_MS})
        self.since_ms = now_ms() // WINDOW_MS * WINDOW_MS - WINDOW_MS
        tap = TableTap(self.name, "sink", self.spec, ("out",), first=False)
        self.tap = RunningTap(tap, uuid.uuid4().bytes, self.since_ms)
        self.log: list[tuple[str, int, bytes, bytes]] = []
        self.ends: Counter[tuple[str, int]] = Counter()
        self.messages: list[Ledgered] = []
        self.strangers: list[Ledgered] = []
        self.nameless = 0
        self.may_repeat = False
        """Rows can show again since their files were gone before they could be compared."""
        self.memory: list[Ledgered] = []
        self.kills = 0
        self.ahead_ms = 0
        """By how much the clock of comparisons is ahead."""
        self.stated: set[str] = set()
        """Ids that are lost afterwards by the last comparison."""
        self.processes = [self.new_process()]

    # -- of each kind of table ----------------------------------------------------------------------------------------

    kind = ""

    @abstractmethod
    def create(self) -> TableSpec:
        """Create the table."""

    @abstractmethod
    def reader(self) -> TableReader:
        """Return what reads it."""

    @abstractmethod
    def commit_at_once(self, messages: list[Ledgered]) -> None:
        """Write rows and commit them."""

    @abstractmethod
    def actions(self) -> list[tuple[Callable[[], None], int]]:
        """Return what its sink can do, each with a weight."""

    @abstractmethod
    def end_all(self) -> None:
        """Kill the sink, with all that it has not committed."""

    def can_be_unseen(self, message: Ledgered) -> bool:
        """Return whether a row that was there can have been read by no one: it was deleted between two looks."""
        return message.deleted_ms is not None or message.returns > 0

    # -- the sink -----------------------------------------------------------------------------------------------------

    def new_messages(self) -> list[Ledgered]:
        made = []
        for _ in range(self.random.randint(1, 6)):
            event_ms = now_ms() - self.random.choice([0, 900, 30_000])
            made.append(Ledgered(f"{self.seed}-{len(self.messages)}", event_ms))
            self.messages.append(made[-1])
        return made

    def take(self, messages: list[Ledgered]) -> None:
        """Have the group commit messages."""
        for message in messages:
            message.taken_ms = now_ms()

    def _show(self, messages: list[Ledgered], before_ms: int) -> None:
        for message in messages:
            message.visible_ms = before_ms, now_ms()

    def write_and_commit(self) -> None:
        messages = self.new_messages()
        self.commit_at_once(messages)
        self.take(messages)

    def write_what_no_one_sent(self) -> None:
        stranger = Ledgered(f"{self.seed}-stranger-{len(self.strangers)}", now_ms())
        self.strangers.append(stranger)
        self.commit_at_once([stranger])

    def skip(self) -> None:
        """Commit what is never written."""
        self.take(self.new_messages())

    def batch(self) -> None:
        """Commit what is still in memory, write it, or lose it by a kill."""
        if self.memory and self.random.random() < 0.6:
            if self.random.random() < 0.7:
                self.commit_at_once(self.memory)
            self.memory = []
        else:
            messages = self.new_messages()
            self.take(messages)
            self.memory += messages

    # -- the tap ------------------------------------------------------------------------------------------------------

    def new_process(self) -> TableTapProcess:
        saboteur = Saboteur()
        outlet = FragileOutlet(partition_count=3, records=self.log, _ends=self.ends)
        store = FragileStore(self.engine, self.database_url, saboteur)
        table = FragileTable(self.reader(), saboteur)
        outlet.saboteur = saboteur
        tap = self.tap.tap
        maker = BlockMaker(tap, self.tap.emitter, self.since_ms, Extractor(tap.extraction))
        idle_s = self.random.choice([0, 0, 0.02])
        runner = TableRunner(self.tap, store, outlet, table, maker, TapMetrics(), idle_s)
        remembered, compared = FragileRecheckStore(self.tap, store), FragileTable(self.reader(), saboteur)
        remembered.saboteur = saboteur
        recheck = RecheckRunner(remembered, compared, TapMetrics(), lambda: now_ms() + self.ahead_ms)
        return TableTapProcess(runner, recheck, store, (table, compared), saboteur)

    def turn(self, *, kill: bool = False) -> None:
        chosen = self.random.choice(self.processes)
        self._step(chosen, chosen.runner.turn, kill_within=10 if kill else None)

    def compare(self, *, kill: bool = False) -> None:
        """Compare what is due after some time, and check what is stated."""
        self.ahead_ms += self.random.choice([0, 30_000, 61_000, 12 * 60_000, 3_600_000, 86_400_000])
        chosen = self.random.choice(self.processes)
        self._step(chosen, chosen.recheck.turn, kill_within=4 if kill else None)
        self.check_stated()

    def check_stated(self) -> None:
        """Check that what was stated since the last time is gone, and that what was taken back is there."""
        row = LostAfterwardsMessageRow
        with self.engine.connect() as connection:
            query = select(row.message_id).where(row.emitter == self.tap.emitter)
            stated = set(connection.execute(query).scalars())
        by_id = {m.message_id: m for m in (*self.messages, *self.strangers)}
        false = [by_id[id_] for id_ in stated - self.stated if by_id[id_].deleted_ms is None]
        assert not false, f"seed {self.seed}: stated as lost afterwards: {false}"
        back = [by_id[id_] for id_ in self.stated - stated if by_id[id_].returns == 0]
        assert not back, f"seed {self.seed}: taken back, and not there: {back}"
        self.stated = stated

    def _step(self, chosen: TableTapProcess, step: Callable[[], object], kill_within: int | None) -> None:
        if kill_within is not None:
            chosen.saboteur.left = self.random.randint(0, kill_within)
        try:
            step()
        except Killed:
            self.kills += 1
            self.processes.remove(chosen)
            chosen.close()
            if not self.processes:
                self.processes.append(self.new_process())
        except (NotOwned, TableUnreadable):
            chosen.runner._forget()
        chosen.saboteur.left = None

    def start_twice(self) -> None:
        if len(self.processes) < 2:
            self.processes.append(self.new_process())

    def expire(self) -> None:
        """Let another process own the tap, as after 15 s without a sign of life; the one that did goes on."""
        row = table_of(TapRow)
        with self.engine.begin() as connection:
            connection.execute(update(row).where(row.c.emitter == self.tap.emitter).values(owner=""))

    def act(self) -> None:
        actions = [
            (self.write_and_commit, 5),
            (self.write_what_no_one_sent, 1),
            (self.skip, 1),
            (self.batch, 3),
            (self.compare, 4),
            (lambda: self.compare(kill=True), 2),
            (self.turn, 12),
            (lambda: self.turn(kill=True), 6),
            (self.start_twice, 2),
            (self.expire, 3),
            *self.actions(),
        ]
        self.random.choices([action for action, _ in actions], [weight for _, weight in actions])[0]()

    def finish(self) -> None:
        """Kill the sink, and have the tap read all."""
        self.end_all()
        self.memory = []
        ended_ms, deadline = now_ms(), time.monotonic() + PATIENCE_S
        while self.until_ms <= ended_ms:
            assert time.monotonic() < deadline, f"seed {self.seed}: the horizon stays at {self.until_ms - ended_ms} ms"
            if self.random.random() < 0.2:
                self.expire()
            self.turn()
        for process in self.processes[1:]:
            process.close()
        del self.processes[1:]
        looks = 0
        while self._is_remembered():
            looks += 1
            assert looks < MOST_LOOKS, f"seed {self.seed}: rows are still to be compared"
            self.turn()
            self.compare()

    def _is_remembered(self) -> bool:
        row = RememberedRowsRow
        with self.engine.connect() as connection:
            query = select(func.count()).where(row.emitter == self.tap.emitter)
            return bool(connection.execute(query).scalar_one())

    def close(self) -> None:
        for process in self.processes:
            process.close()

    # -- what it sent -------------------------------------------------------------------------------------------------

    @property
    def blocks(self) -> list[BeaconBlock]:
        return [decode_block(value) for topic, _, _, value in self.log if topic == BEACONS]

    @property
    def reports(self) -> list[EmitterReport]:
        return [decode_report(value) for topic, _, _, value in self.log if topic == REPORTS]

    @property
    def newest_report(self) -> EmitterReport | None:
        return max(self.reports, key=lambda report: report.seq, default=None)

    @property
    def until_ms(self) -> int:
        newest = self.newest_report
        return min((progress.until for progress in newest.progress), default=0) if newest else 0

    @property
    def tallies(self) -> dict[tuple[int, str | None], Tally]:
        newest: dict[tuple[int, str | None], Tally] = {}
        for report in sorted(self.reports, key=lambda report: report.seq):
            newest |= {(tally.window_start, tally.replay): tally for tally in report.tallies}
        return newest

    @property
    def dropped(self) -> set[int]:
        """Windows that are incomplete."""
        return {window for (window, _), tally in self.tallies.items() if tally.dropped}

    def lost(self) -> list[Ledgered]:
        """Return what is lost for certain in the sink by what was sent so far, if nothing may be late by the clock."""
        seen = {id_ for block in self.blocks for id_ in block.id_hash.tolist()}
        dropped, until_ms = self.dropped, self.until_ms
        return [
            message
            for message in self.messages
            if message.taken_ms is not None
            and message.taken_ms < until_ms
            and message.hash not in seen
            and message.window not in dropped
        ]

    def false_losses(self) -> list[Ledgered]:
        """Return what is called lost although its row was there, or on its way, at the horizon."""
        return [
            message
            for message in self.lost()
            if message.inserting_ms is not None
            and message.inserting_ms < self.until_ms
            and not self.can_be_unseen(message)
        ]


@dataclass
class TableHistory(SinkHistory):
    """Of a table of PostgreSQL."""

    shop: TappedDatabase

    def __post_init__(self) -> None:
        self.kind = [*CURSORS][self.seed % len(CURSORS)]
        self.open: list[OpenTransaction] = []
        super().__post_init__()

    def create(self) -> TableSpec:
        return self.shop.table(self.kind, self.name)

    def reader(self) -> TableReader:
        return PostgresTable(self.spec, LIMIT)

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (self.write_nameless, 1 if self.seed % 5 == 0 else 0),
            (self.begin, 3),
            (self.go_on, 3),
            (self.prepare, 1),
            (self.end, 4),
            (self.change, 3),
            (self.put_back, 1),
            (self.revoke, 1),
        ]

    def insert(
        self, connection: psycopg.Connection[Any], messages: list[Ledgered], opened: OpenTransaction | None = None
    ) -> None:
        for message in messages:
            message.inserting_ms = now_ms()
            columns, values = "id, at", [message.message_id, message.event_ms / 1_000]
            if opened is not None and opened.drawn is not None:
                columns, values, opened.drawn = "id, at, n", [*values, opened.drawn], None
            marks = "%s, to_timestamp(%s), %s" if len(values) == 3 else "%s, to_timestamp(%s)"
            connection.execute(
                f"INSERT INTO {self.name} ({columns}) VALUES ({marks})",  # type: ignore[arg-type]
                values,
            )

    def commit_at_once(self, messages: list[Ledgered]) -> None:
        with self.shop.transaction() as connection:
            self.insert(connection, messages)
            before_ms = now_ms()
            connection.commit()
        connection.close()
        self._show(messages, before_ms)

    def write_nameless(self) -> None:
        self.shop.owner.execute(f"INSERT INTO {self.name} (at) VALUES (now())")  # type: ignore[call-overload]
        self.nameless += 1

    def begin(self) -> None:
        """Write in a transaction that stays open, after the group's commit or before it."""
        if len(self.open) >= 3:
            return
        opened = OpenTransaction(self.shop.transaction(), takes=self.random.random() < 0.5)
        self.open.append(opened)
        if self.random.random() < 0.5:
            self.go_on(opened)
        elif self.kind == "sequence":
            drawn = opened.connection.execute(f"SELECT nextval('{self.name}_n_seq')")  # type: ignore[call-overload]
            (opened.drawn,) = drawn.fetchone()
        else:
            opened.connection.execute("SELECT now()")

    def go_on(self, opened: OpenTransaction | None = None) -> None:
        """Write more in an open transaction, in a savepoint now and then, of which some are rolled back."""
        still = [transaction for transaction in self.open if transaction.name is None]
        if opened is None and not still:
            return
        opened = opened or self.random.choice(still)
        messages = self.new_messages()
        if not opened.takes:
            self.take(messages)
        if self.random.random() < 0.5:
            self.insert(opened.connection, messages, opened)
            opened.messages += messages
            return
        opened.connection.execute("SAVEPOINT s")
        self.insert(opened.connection, messages, opened)
        if self.random.random() < 0.7:
            opened.connection.execute("RELEASE s")
            opened.messages += messages
        else:
            opened.connection.execute("ROLLBACK TO s")
            self._undo(messages)

    def prepare(self) -> None:
        still = [transaction for transaction in self.open if transaction.name is None]
        if still:
            opened = self.random.choice(still)
            opened.name = f"{self.name}-{uuid.uuid4().hex}"
            opened.connection.execute(f"PREPARE TRANSACTION '{opened.name}'")  # type: ignore[call-overload]
            opened.connection.close()

    def end(self) -> None:
        """Commit an open transaction, or kill its sink."""
        if not self.open:
            return
        opened = self.open.pop(self.random.randrange(len(self.open)))
        commits, before_ms = self.random.random() < 0.7, now_ms()
        if opened.name is not None:
            verb = "COMMIT" if commits else "ROLLBACK"
            self.shop.owner.execute(f"{verb} PREPARED '{opened.name}'")  # type: ignore[call-overload]
        elif commits:
            opened.connection.commit()
        opened.connection.close()
        if commits:
            self._show(opened.messages, before_ms)
            self.take(opened.messages if opened.takes else [])
        else:
            self._undo(opened.messages)

    def _undo(self, messages: list[Ledgered]) -> None:
        for message in messages:
            message.inserting_ms = None

    def change(self) -> None:
        """Update or delete some rows, or have them moved by a vacuum."""
        visible = [m for m in (*self.messages, *self.strangers) if m.visible_ms and m.deleted_ms is None]
        chosen = self.random.sample(visible, min(3, len(visible)))
        ids, kind = [message.message_id for message in chosen], self.random.random()
        if kind < 0.6:
            query = f"UPDATE {self.name} SET state = 'changed' WHERE id = ANY(%s)"
            self.shop.owner.execute(query, (ids,))  # type: ignore[call-overload]
        elif kind < 0.9:
            for message in chosen:
                message.deleted_ms = now_ms()
            gone = f"DELETE FROM {self.name} WHERE id = ANY(%s) RETURNING id, n::text"
            cursors = dict(self.shop.owner.execute(gone, (ids,)).fetchall())  # type: ignore[call-overload]
            for message in chosen:
                message.cursor = cursors[message.message_id]
        else:
            self.shop.owner.execute(f"VACUUM (FREEZE) {self.name}")  # type: ignore[call-overload]

    def put_back(self) -> None:
        """Write some deleted rows again, with the cursors that they had or with new ones."""
        deleted = [m for m in (*self.messages, *self.strangers) if m.deleted_ms]
        for message in self.random.sample(deleted, min(2, len(deleted))):
            columns, values = "id, at", [message.message_id, message.event_ms / 1_000]
            marks = "%s, to_timestamp(%s)"
            if self.kind != "clock" and self.random.random() < 0.5:  # an old time says that the clock was behind
                columns, marks, values = f"{columns}, n", f"{marks}, %s", [*values, message.cursor]
            query = f"INSERT INTO {self.name} ({columns}) VALUES ({marks})"
            self.shop.owner.execute(query, values)  # type: ignore[call-overload]
            message.deleted_ms, message.returns = None, message.returns + 1

    def revoke(self) -> None:
        """Take the right to read away for a turn."""
        self.shop.owner.execute(f"REVOKE SELECT ON {self.name} FROM {self.shop.role}")  # type: ignore[call-overload]
        self.turn()
        self.compare()
        self.shop.grant(self.name)

    def end_all(self) -> None:
        while self.open:
            self.end()

    def close(self) -> None:
        super().close()
        for opened in self.open:
            if opened.name is not None:
                self.shop.owner.execute(f"ROLLBACK PREPARED '{opened.name}'")  # type: ignore[call-overload]
            opened.connection.close()
        self.shop.owner.execute(f"DROP TABLE {self.name}")  # type: ignore[call-overload]


def live(history: SinkHistory, most_acts: int) -> None:
    """Let a history act at random, and compare it with its ledger: at each look, and once the tap has read all."""
    try:
        for _ in range(history.random.randint(20, most_acts)):
            history.act()
            assert not history.false_losses(), f"seed {history.seed}: {history.false_losses()}"
        history.finish()
        problems = [*history.false_losses(), *problems_of(history)]
        assert not problems, f"seed {history.seed}, {history.kind}: {problems}"
    finally:
        history.close()


def problems_of(history: SinkHistory) -> Iterator[str]:
    """Yield everything in which the tap's blocks and reports differ from the ledger, once it has read all."""
    by_seq: dict[int, BeaconBlock] = {}
    for block in history.blocks:
        if not np.array_equal(by_seq.setdefault(block.seq, block).id_hash, block.id_hash):
            yield f"block {block.seq} was sent with two contents"
    found = Counter(id_ for block in by_seq.values() for id_ in block.id_hash.tolist())
    observed = {
        id_: lag for block in by_seq.values() for id_, lag in zip(block.id_hash.tolist(), block.lag_ms, strict=True)
    }
    rows = {m.hash: m for m in (*history.messages, *history.strangers) if m.visible_ms}
    for id_, count in found.items():
        if id_ not in rows:
            yield f"a row shows that was never there: {id_}"
        elif count > rows[id_].copies + rows[id_].returns and not history.may_repeat:
            yield f"{rows[id_]} shows {count} times"
    for id_, message in rows.items():
        if id_ not in found and not history.can_be_unseen(message):
            yield f"{message} does not show"
        elif id_ in found and message.visible_ms:
            at_ms = np.float32(message.visible_ms[0] - message.event_ms)
            if observed[id_] < at_ms:
                yield f"{message} shows {observed[id_]} ms after its event, before it was there"
    if history.nameless and not any(tally.dropped for tally in history.tallies.values()):
        yield "rows without an id are not counted as dropped"
    beacons: Counter[int] = Counter()
    for block in by_seq.values():
        beacons[block.window_start] += block.count
    for (window, _), tally in history.tallies.items():
        if tally.beacons != beacons[window]:
            yield f"{tally.beacons} beacons of {window} are tallied, its blocks have {beacons[window]}"
    gone = {m.message_id for m in rows.values() if m.hash in found and m.deleted_ms is not None}
    if history.stated != gone:
        yield f"lost afterwards are {sorted(history.stated)}, by the ledger {sorted(gone)}"
    if not history.nameless:
        lost = {message.message_id for message in history.lost()}
        truth = {
            message.message_id
            for message in history.messages
            if message.taken_ms is not None and message.hash not in found and message.window not in history.dropped
        }
        if lost != truth:
            yield f"lost are {sorted(lost)}, by the ledger {sorted(truth)}"
