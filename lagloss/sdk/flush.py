"""A flush: all beacons observed up to one moment, cut into blocks and not sent yet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lagloss.sdk.buffer import BeaconBuffer
from lagloss.sdk.packing import (
    STRIDE,
    BeaconReader,
    Columns,
    Observed,
    PackedBlock,
    Packer,
    RefusedBeacons,
    TallyKey,
    apply_sample,
)
from lagloss.wire.format import Progress

SLICE: Final = 4_096
"""Beacons read at once: a few milliseconds in which the host's threads may have to wait for the interpreter."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The result of one drain of the buffer. Flushes are numbered from 1, without gaps."""

    number: int
    observed_until_ms: int
    """Epoch ms: everything observed up to this time is in this flush or an earlier one."""
    blocks: tuple[PackedBlock, ...] = ()
    dropped: Mapping[TallyKey, int] = field(default_factory=dict)
    """Beacons that are in no block, by tally."""
    is_blind: bool = False
    """True if there were beacons that are in no block and of an unknown tally."""
    thinned: Mapping[TallyKey, int] = field(default_factory=dict)
    """Tallies that a sample left beacons out of, and that sample."""
    progress: tuple[Progress, ...] | None = None
    """Progress of lanes and work in flight at `observed_until_ms` or a little later; None if it was not read."""

    @property
    def keys(self) -> set[TallyKey]:
        """The tallies that it changes."""
        return {block.increment.key for block in self.blocks} | self.dropped.keys() | self.thinned.keys()


class Drain:
    """Empties a buffer into flushes.

    Args:
        note: called with an error that was survived.
    """

    def __init__(
        self, buffer: BeaconBuffer, reader: BeaconReader, packer: Packer, note: Callable[[Exception], None]
    ) -> None:
        self._buffer = buffer
        self._reader = reader
        self._packer = packer
        self._note = note
        self.taken = 0
        """Flushes begun so far."""
        self.sampled_out = 0
        """Beacons that a sample left out."""
        self.unplaced = 0
        """Beacons that belong to no window."""
        self._is_blind = False

    def take(self, now_ms: int, progress: tuple[Progress, ...] | None, partitions: int, sample: int) -> Flush:
        """Return a flush of all beacons in the buffer whose ids are in the pipeline's sample.

        `now_ms`, epoch ms, was read before `progress` was.
        """
        self.taken += 1
        self._is_blind = False
        refused = RefusedBeacons()
        parts = list(self._read(self._buffer.take(), self._buffer.take_columns(), refused))
        thinned: dict[TallyKey, int] = {}
        blocks = tuple(self._blocks(parts, partitions, sample, thinned))
        for key, beacons in self._buffer.take_overflow().items():
            refused.dropped[key] = refused.dropped.get(key, 0) + beacons
        self.unplaced += refused.unplaced
        is_blind = self._is_blind or self._buffer.lost_count.read() > 0
        return Flush(self.taken, now_ms, blocks, refused.dropped, is_blind, thinned, progress)

    def _blocks(
        self, parts: Sequence[Observed], partitions: int, sample: int, thinned: dict[TallyKey, int]
    ) -> Iterator[PackedBlock]:
        if not parts:
            return
        try:
            observed = Observed.joined(parts)
            sampled, left_out = apply_sample(observed, self._reader.kinds, sample)
            self.sampled_out += len(observed) - len(sampled)
            thinned.update(dict.fromkeys(left_out, sample))
            yield from self._packer.pack(sampled, self._reader.kinds, partitions, sample)
        except Exception as error:
            self._is_blind = True
            self._note(error)

    def _read(self, flat: list[Any], columns: Sequence[Columns], refused: RefusedBeacons) -> Iterator[Observed]:
        now_ms = time.time() * 1000
        reader = self._reader
        slices = [
            partial(reader.read, flat[index : index + SLICE * STRIDE]) for index in range(0, len(flat), SLICE * STRIDE)
        ]
        slices += [
            partial(reader.read_columns, column.cut(index, index + SLICE))
            for column in columns
            for index in range(0, len(column), SLICE)
        ]
        for read in slices:
            try:
                part = read(now_ms, refused)
            except Exception as error:
                self._is_blind = True
                self._note(error)
                continue
            if part is not None:
                yield part
