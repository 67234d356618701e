"""The horizon of a transactional table: the moment before which every transaction is over. Pure.

Transactions commit in any order. A *look* notes which of them are open, the next transaction id, and a *bound*: the
cursor that no row of a transaction which begins later is at or below. A look is *past* once all transactions that were
open at it are over, by a later snapshot. Then every row at or below its bound is visible, or never will be.

Ids and numbers whose log is not on the primary's disk can be given again after a crash. So a look also waits until
the log is on disk as far as it went at the look.

    look at 1.0 s: bound 40, open {a}, next id 7   waits for a
    look at 2.0 s: bound 55, open {b}, next id 9   a has ended, or is prepared: if it wrote, its id is below 9
    look at 3.0 s: open {b}, oldest id 9           ids below 9 are over: the first look is past, rows up to 40 are final
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

MAX_MARKS: Final = 32
"""Looks that wait to be past; beyond that every other one is forgotten: the horizon is coarser, never wrong."""


class LookMark(msgspec.Struct, frozen=True):
    """A look that is not past yet. `open`: of the transactions that were open at it, those not seen to end; `next_id`:
    once there are none, every one of them had a transaction id below this, or none; `written`: end of the log at it."""

    at_ms: int
    bound: int
    next_id: int
    open: tuple[str, ...] = ()
    written: int = 0


@dataclass(frozen=True, slots=True)
class TransactionLook:
    """Transactions at a moment, noted in this order.

    Attributes:
        at_ms: epoch ms.
        oldest_id: all with a lower id are over, and what they wrote is visible in the snapshot that was read.
        bound: the cursor that rows of transactions which begin later are above.
        open: names of open transactions that can have drawn a cursor at or below `bound`.
        next_id: of the next transaction.
        flushed, written: how far the log is on disk, and how far it goes; 0 on a stand-by, which has what is on disk.
    """

    at_ms: int
    oldest_id: int
    bound: int
    open: Collection[str]
    next_id: int
    flushed: int = 0
    written: int = 0


def past_after(waiting: Sequence[LookMark], look: TransactionLook) -> tuple[LookMark | None, tuple[LookMark, ...]]:
    """Return the newest look that is past by this one, None if there is none, and those that still wait."""
    marks = []
    newest = LookMark(look.at_ms, look.bound, look.next_id, tuple(sorted(look.open)), look.written)
    for mark in (*waiting, newest):
        if mark.open:
            still_open = tuple(name for name in mark.open if name in look.open)
            # it may have ended after the snapshot, or be prepared: its id, if it has one, is below the next one
            mark = msgspec.structs.replace(mark, next_id=look.next_id, open=still_open)
        marks.append(mark)
    past = [
        index
        for index, mark in enumerate(marks)
        if not mark.open and mark.next_id <= look.oldest_id and mark.written <= look.flushed
    ]
    rest = marks[past[-1] + 1 :] if past else marks
    if len(rest) > MAX_MARKS:
        rest = [*rest[:-1:2], rest[-1]]
    return marks[past[-1]] if past else None, tuple(rest)
