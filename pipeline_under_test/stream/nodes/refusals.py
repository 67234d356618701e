"""NACK: what the next hop refused is read again, and with it all that stands behind it in its partition.

The partition rests for a while first, and until nothing of it is in hand any more. So nothing before the refused record
is left unfinished when the offsets are counted anew from there, and nothing behind it is under way twice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lagloss.kafka.commits import Partition
from lagloss.sdk.emitter import Processing
from pipeline_under_test.stream.nodes.handover import Handover

REST_S: Final = 2.0


@dataclass(slots=True)
class Rest:
    """A partition's rest; `until_s` is on the monotonic clock, `since` is the first offset that was refused."""

    until_s: float
    since: int


@dataclass(slots=True)
class Refusals:
    """Partitions that rest, and the work that continues until their records are taken in again.

    A refused record is still in hand as far as lagloss goes: it has been taken in and has not come out. Its work ends
    when it is taken in again, so that meanwhile it is late and not lost.
    """

    _resting: dict[Partition, Rest] = field(default_factory=dict)
    _work: dict[Partition, dict[int, Processing]] = field(default_factory=dict)
    _handover: Handover = field(default_factory=Handover)

    def __contains__(self, partition: object) -> bool:
        return partition in self._resting

    @property
    def has_work(self) -> bool:
        """Whether a refused record has not been taken in again."""
        return any(self._work.values()) or bool(self._handover)

    def add(self, partition: Partition, offset: int, work: Processing) -> None:
        """Note that this record was refused: its partition pauses, unless it already does."""
        rest = self._resting.setdefault(partition, Rest(time.monotonic() + REST_S, offset))
        rest.since = min(rest.since, offset)
        self._work.setdefault(partition, {})[offset] = work

    def rested(self, in_hand: Mapping[Partition, Collection[object]]) -> Iterator[tuple[Partition, int]]:
        """Resume the partitions that have rested and have nothing in hand; return the offset of each from which to read
        it again."""
        now = time.monotonic()
        for partition, rest in list(self._resting.items()):
            if rest.until_s <= now and not in_hand.get(partition):
                del self._resting[partition]
                yield partition, rest.since

    def taken_again(self, partition: Partition, offset: int) -> None:
        """Note that this record is in hand again, whether it was refused before or not."""
        work = self._work.get(partition, {}).pop(offset, None)
        if work is not None:
            work.done()

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Drop these partitions: another process takes their records in again."""
        for partition in partitions:
            self._resting.pop(partition, None)
            self._handover.take(self._work.pop(partition, {}).values())

    def step(self) -> None:
        """End the work of records that another process has taken in by now."""
        self._handover.step()
