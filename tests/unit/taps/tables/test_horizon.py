"""The horizon against an obvious oracle: what every transaction that was open at a look became."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from taps.tables.horizon import MAX_MARKS, LookMark, TransactionLook, past_after


@dataclass
class Transaction:
    """One that draws numbers of a sequence, and writes them later. `id`: once it has written; `newest_id`: of its
    subtransactions."""

    name: str
    drawn: list[int]
    id: int | None = None
    newest_id: int = 0
    is_prepared: bool = False


class Server:
    """Transactions in simulated time, and the rows that they will have written if they commit."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_ms = self.number = 0
        self.next_id = 5
        self.open: list[Transaction] = []
        self.completed = 4
        self.visible: set[int] = set()
        self.is_ending = False

    def act(self) -> None:
        if self.is_ending and not self.open:
            return
        self.now_ms += self.random.randint(0, 3)
        kind = 1.0 if self.is_ending else self.random.random()
        if kind < 0.3:
            self.open.append(Transaction(f"v{self.now_ms}-{len(self.open)}", []))
        if not self.open:
            return
        transaction = self.random.choice(self.open)
        if kind < 0.6 and not transaction.is_prepared:
            self.number += 1
            transaction.drawn.append(self.number)
        elif kind < 0.8 and not transaction.is_prepared:
            transaction.id, transaction.newest_id = transaction.id or self.next_id, self.next_id
            self.next_id += 1
        elif kind < 0.85 and transaction.id is not None:
            transaction.name, transaction.is_prepared = f"prepared-{transaction.id}", True
        elif kind > 0.9:
            self.open.remove(transaction)
            self.completed = max(self.completed, transaction.newest_id)
            if transaction.id is not None and self.random.random() < 0.7:
                self.visible.update(transaction.drawn)

    def look(self) -> TransactionLook:
        """Look as a reader does, while others go on between its statements."""
        at_ms = self.now_ms
        end_id = self.completed + 1
        ids = [transaction.id for transaction in self.open if transaction.id is not None and transaction.id < end_id]
        oldest_id, self.snapshot = min(ids, default=end_id), set(self.visible)
        self.act()
        bound = self.number
        self.act()
        open_ = [transaction.name for transaction in self.open if transaction.drawn]
        self.act()
        return TransactionLook(at_ms, oldest_id, bound, open_, self.next_id)


@pytest.mark.parametrize("seed", range(300))
def test_a_reader_that_reads_above_the_newest_look_that_is_past_misses_no_row(seed: int) -> None:
    server = Server(seed)
    waiting: tuple[LookMark, ...] = ()
    passed, until_ms = 0, 0
    read: set[int] = set()

    def look() -> None:
        nonlocal waiting, passed, until_ms
        past, waiting = past_after(waiting, server.look())
        read.update(number for number in server.snapshot if number > passed)
        if past is not None:
            assert past.bound >= passed, "the bound went back"
            assert past.at_ms >= until_ms
            passed, until_ms = past.bound, past.at_ms

    for _ in range(80):
        for _ in range(server.random.randint(0, 6)):
            server.act()
        look()
    server.is_ending = True
    while server.open:
        server.act()
    for _ in range(3):
        look()
    assert read == server.visible
    assert until_ms == server.now_ms


def test_a_look_is_past_once_the_log_is_on_disk_as_far_as_it_went() -> None:
    past, waiting = past_after((), TransactionLook(1, 5, 40, [], 5, flushed=90, written=100))
    assert past is None
    past, waiting = past_after(waiting, TransactionLook(2, 5, 50, [], 5, flushed=100, written=120))
    assert past is not None
    assert past.bound == 40
    assert [mark.bound for mark in waiting] == [50]


def test_looks_that_wait_for_long_are_thinned_out() -> None:
    waiting: tuple[LookMark, ...] = ()
    for at_ms in range(1, 500):
        past, waiting = past_after(waiting, TransactionLook(at_ms, 5, at_ms, ["slow"], 9))
        assert past is None
    assert len(waiting) <= MAX_MARKS
    assert waiting[0].at_ms == 1
    past, waiting = past_after(waiting, TransactionLook(500, 9, 500, [], 9))
    assert past == LookMark(500, 500, 9)
    assert waiting == ()
