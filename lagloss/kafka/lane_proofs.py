"""How far lanes have been taken in, never overstated; the same for every Kafka client.

For a lane (TOPIC/PARTITION), `until` promises that all that was put into it before has been taken in. Two things prove
that:

- The lane's end was asked for at time T and found at offset E, and the position has reached E since. This needs no
  record timestamp and no common clock, so it holds for topics with CreateTime too. Known ends are remembered, so a
  consumer that is never quite caught up still makes progress.
- In a topic with LogAppendTime, the append time of the last record taken in.

The position that counts is the one passed to `take`, not the client's fetch position: between a poll and its beacon,
nothing is proved.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lagloss.broker.partition_bounds import Key
from lagloss.wire.format import Progress

UNKNOWN_FOR_S: Final = 30.0
"""How long a lane with a committed offset but an unknown position is left out (and so stands where its last owner left
it) before it is reported as standing at 0. Shorter than the grace of a window, so that no window is judged without it.
It is also how long a lane known from `take` alone is still reported while it stands."""
MAX_ENDS: Final = 1_024
"""Ends remembered per lane; thinned beyond that, which only makes a far-behind lane move in larger steps."""

Taken = Mapping[Key, tuple[int, int]]
"""The next offset of each lane, and the append time (epoch ms) of the last record taken in, 0 if unknown."""


@dataclass(slots=True)
class Lane:
    """State of one partition. Offsets, epoch ms, and monotonic seconds for `since` and `moved_at`."""

    since: float
    position: int | None = None
    """Next offset to take in; None until it is known."""
    until: int = 0
    is_new: bool = False
    """No offset of it was ever committed, so no consumer of the group has taken anything in."""
    is_inferred: bool = False
    """Known from `take` alone: another consumer may hold it by now."""
    moved_at: float = field(default_factory=time.monotonic)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """(end offset, when asked) of ends that the position has not reached, in the order of asking."""

    def add_end(self, end: int, asked_ms: int) -> None:
        """Record that the lane ended at `end` at some moment after `asked_ms`."""
        if self.ends and self.ends[-1][0] == end:
            self.ends[-1] = (end, asked_ms)
            return
        self.ends.append((end, asked_ms))
        if len(self.ends) > MAX_ENDS:
            del self.ends[1::2]

    def advance(self, position: int, appended_ms: int) -> None:
        """Move `until` as far as this position proves, which was copied before the last end was asked for.

        If the clock was set back, so is `until`: kept ahead of the clock it would stand still until the clock caught
        up.
        """
        before, reached = self.until, 0
        while reached < len(self.ends) and self.ends[reached][0] <= position:
            self.until = self.ends[reached][1]
            reached += 1
        del self.ends[:reached]
        self.until = max(self.until, appended_ms)
        if self.until != before:
            self.moved_at = time.monotonic()

    def is_reportable(self) -> bool:
        """Return True if the lane's `until` is to be reported.

        A lane without any earlier reader truly stands at 0; one with a committed offset is left to its last owner's
        report for `UNKNOWN_FOR_S`. An inferred lane that stands still is left out after that time: its new owner
        reports it.
        """
        now = time.monotonic()
        if self.is_inferred:
            return now - self.moved_at <= UNKNOWN_FOR_S
        return self.until > 0 or self.is_new or now - self.since > UNKNOWN_FOR_S


class LaneProofs:
    """The lanes of one consumer.

    The consumer's thread takes records and passes changes of the assignment on. Proofs belong to one other thread at a
    time, or to the same one.

    Args:
        checkpoint: the checkpoint that reports this progress, `NODE.in`.
        observe: the host commits without waiting for beacons. Then a lane without a name is reported, too, which leaves
            with this process: it stands where the slowest lane stands, and so holds back, after a kill, what this
            process may have received without sending its beacons. And what a `seek` skips holds its lane back.
    """

    def __init__(self, checkpoint: str, *, observe: bool = False) -> None:
        self._checkpoint = checkpoint
        self._observe = observe
        self.held: set[Key] = set()
        """Partitions that the consumer holds, on its own thread."""
        self._taken: dict[Key, tuple[int, int]] = {}
        self._starts: dict[Key, int | None] = {}
        """The first offset of each partition that this consumer holds; None if it is unknown."""
        self._skipped_from: dict[Key, int] = {}
        self._changes: deque[tuple[Key, Lane | None]] = deque()
        self._lanes: dict[Key, Lane] = {}
        self._proven: dict[Key, int] = {}
        """The last `until` of each lane that this process held, for when it comes back."""

    # -- on the consumer's thread ---------------------------------------------------------------------------------

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was taken in yet."""
        return not self._taken

    def take(self, key: Key, offset: int, appended_ms: int | None) -> None:
        """Move the lane past this record, whose beacon is with the emitter, or which has none. `appended_ms`: its
        append time, None if its timestamp is the producer's."""
        position, appended_before_ms = self._taken.get(key, (None, 0))
        if position is not None and offset < position:
            return  # read again after a rebalance or a seek; what was taken in stays taken in
        if key not in self._skipped_from:
            self._taken[key] = (offset + 1, appended_before_ms if appended_ms is None else appended_ms)

    def reach(self, key: Key, offset: int) -> None:
        """Move the lane to this offset, before which no record is left to read."""
        position, appended_ms = self._taken.get(key, (0, 0))
        if key not in self._skipped_from:
            self._taken[key] = (max(offset, position), appended_ms)

    def seek(self, key: Key, offset: int) -> None:
        """Hold the lane back if the host skips records, until it goes back to them."""
        taken, _ = self._taken.get(key, (None, 0))
        reached = (before for before in (self._starts.get(key), taken) if before is not None)
        position = self._skipped_from.get(key, max(reached, default=offset))
        if offset <= position:
            self._skipped_from.pop(key, None)
        elif self._observe:
            self._skipped_from[key] = position

    def hold(self, key: Key, start: int | None, *, is_new: bool = False, is_inferred: bool = False) -> None:
        """Add a partition, which this consumer holds from now on; `start` is its first offset, if known."""
        self._changes.append((key, Lane(time.monotonic(), start, is_new=is_new, is_inferred=is_inferred)))
        self._starts[key] = start
        self.held.add(key)

    def release(self, keys: Iterable[Key]) -> None:
        """Remove partitions, which another consumer holds from now on."""
        for key in keys:
            self._changes.append((key, None))
            self._skipped_from.pop(key, None)
            self.held.discard(key)

    # -- proofs ---------------------------------------------------------------------------------------------------

    @property
    def keys(self) -> list[Key]:
        """The lanes as of the last `follow_assignment`."""
        return list(self._lanes)

    def follow_assignment(self) -> None:
        """Apply the changes of the assignment so far, in their order."""
        while self._changes:
            key, lane = self._changes.popleft()
            before = self._lanes.pop(key, None)
            if before is not None:
                self._proven[key] = before.until
            if lane is not None:
                self._lanes[key] = lane
                lane.until = before.until if before else 0

    def taken(self) -> Taken:
        """Return a copy of what was taken in so far; to be made before the ends are asked for, so that reaching one is
        a proof."""
        return dict(self._taken)

    def without_start(self) -> list[Key]:
        """Return lanes whose first offset is unknown, and from which nothing was taken in."""
        return [key for key, lane in self._lanes.items() if lane.position is None and key not in self._taken]

    def prove(self, taken: Taken, asked_ms: int, begins: Mapping[Key, int], ends: Mapping[Key, int]) -> None:
        """Move lanes as far as their ends, asked for after `taken` was copied, prove."""
        for key, end in ends.items():
            lane = self._lanes[key]
            if begins.get(key) == end:
                # The partition is empty: whether it is read from its beginning or its end, it starts here.
                lane.position = end
            # If it was taken over, another consumer may have come further than this one had.
            position, appended_ms = taken.get(key, (None, 0))
            position = max((offset for offset in (position, lane.position) if offset is not None), default=None)
            if position is not None and position > end:
                # The topic was recreated (or lost its tail): offsets of the old one prove nothing about it.
                self._taken.pop(key, None)
                self._lanes[key] = Lane(lane.since, until=lane.until, is_inferred=lane.is_inferred)
                continue
            lane.add_end(end, asked_ms)
            if position is not None:
                lane.advance(position, appended_ms)

    def progress(self, now_ms: int) -> Sequence[Progress]:
        """Return the progress of each lane that is to be reported. `now_ms`: before the next beacons are drained."""
        reported = [
            Progress(self._checkpoint, f"{topic}/{partition}", lane.until)
            for (topic, partition), lane in sorted(self._lanes.items())
            if lane.is_reportable()
        ]
        if not self._observe or not (self._lanes or self._proven):
            return reported
        floors_ms = (lane.until or self._proven.get(key, 0) for key, lane in self._lanes.items())
        return [Progress(self._checkpoint, "", min(floors_ms, default=now_ms)), *reported]

    def clear(self) -> None:
        """Report no lane any more: the consumer is closed."""
        self._proven |= {key: lane.until for key, lane in self._lanes.items()}
        self._lanes.clear()
