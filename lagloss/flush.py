"""A flush: all that was observed up to one moment, cut into blocks and not sent yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lagloss.blocks import STRIDE, Observed, PackedBlock, Packer, Reader, Refused, TallyKey
from lagloss.intake import Intake
from lagloss.wire import Progress

SLICE: Final = 4_096
"""Beacons read at a stretch: a few milliseconds in which the host's threads may have to wait for the interpreter."""


@dataclass(frozen=True, slots=True)
class Flush:
    """What one drain of the intake gave. Flushes are numbered from 1, without gaps."""

    number: int
    observed_until_ms: int
    """Epoch ms: everything observed up to then is in this flush or an earlier one."""
    blocks: tuple[PackedBlock, ...] = ()
    dropped: Mapping[TallyKey, int] | None = None
    """Beacons that are in no block, by tally."""
    is_blind: bool = False
    """There were beacons that are in no block, and nobody knows of which tally."""
    progress: tuple[Progress, ...] | None = None
    """How far lanes and work in hand were at `observed_until_ms` or a little later; None where nobody looked."""

    @property
    def keys(self) -> set[TallyKey]:
        """The tallies that it changes."""
        return {block.increment.key for block in self.blocks} | set(self.dropped or ())


class Drain:
    """Empties an intake into flushes.

    Args:
        note: told of an error that was survived.
    """

    def __init__(self, intake: Intake, reader: Reader, packer: Packer, note: Callable[[Exception], None]) -> None:
        self._intake = intake
        self._reader = reader
        self._packer = packer
        self._note = note
        self.taken = 0
        """Flushes begun so far."""
        self.unplaced = 0
        """Beacons of no window at all."""

    def take(self, now_ms: int, progress: tuple[Progress, ...] | None, partitions: int) -> Flush:
        """All that callers have left so far. `now_ms`, epoch ms, was read before `progress` was looked at."""
        self.taken += 1
        refused = Refused()
        blind: list[bool] = []
        blocks = tuple(self._blocks(self._intake.take(), partitions, refused, blind))
        for key, beacons in self._intake.take_overflow().items():
            refused.dropped[key] = refused.dropped.get(key, 0) + beacons
        self.unplaced += refused.unplaced
        is_blind = bool(blind) or self._intake.lost_count.read() > 0
        return Flush(self.taken, now_ms, blocks, refused.dropped, is_blind, progress)

    def _blocks(self, flat: list[Any], partitions: int, refused: Refused, blind: list[bool]) -> Iterator[PackedBlock]:
        parts = list(self._read(flat, refused, blind))
        if not parts:
            return
        try:
            yield from self._packer.pack(Observed.joined(parts), self._reader.kinds, partitions)
        except Exception as error:
            blind.append(True)
            self._note(error)

    def _read(self, flat: list[Any], refused: Refused, blind: list[bool]) -> Iterator[Observed]:
        now_ms = time.time() * 1000
        for at in range(0, len(flat), SLICE * STRIDE):
            try:
                part = self._reader.read(flat[at : at + SLICE * STRIDE], now_ms, refused)
            except Exception as error:
                blind.append(True)
                self._note(error)
                continue
            if part is not None:
                yield part
