"""An emitter's account: its cumulative tallies by checkpoint and window, and the time through which they are final.

Pure bookkeeping, free of Kafka and of clocks: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from lagloss.sdk.packing import KEPT_S, Increment, TallyKey
from lagloss.wire.format import MAX_COUNT, SAMPLE_ALL, EmitterReport, OffsetRange, Tally, decode_report, encode_report
from lagloss.wire.sketch import Sketch

MAX_RANGES: Final = 4
"""Offset ranges of a tally per partition; the nearest are merged beyond that."""
MAX_TALLIES: Final = 65_536
"""Tallies that an account keeps: 7 days of windows of six checkpoints."""
MAX_UNCOUNTED: Final = 64
"""Blocks whose lags wait to be counted: what is recovered from a spool is reported at its end only."""
QUIET_S: Final = 900
"""Seconds without change after which a tally is kept as its encoded bytes."""
FORGET_S: Final = KEPT_S + 3_600
"""Age, in seconds, at which a window's tally is forgotten: an hour after its beacons are first refused, so that no
small new tally can ever replace the old one."""
_NO_EMITTER: Final = bytes(16)


def add_offset(ranges: list[OffsetRange], offset: int, limit: int = MAX_RANGES) -> list[OffsetRange]:
    """Return `ranges` (of one partition, ascending, at most `limit`) with `offset` added.

    The nearest ranges merge if they are too many.

    Raises:
        ValueError: there is no range, so the partition is unknown.
    """
    if not ranges:
        raise ValueError("expected at least one range, which determines the partition of the new one")
    partition, newest = ranges[0].partition, ranges[-1]
    if offset == newest.last + 1:
        return [*ranges[:-1], OffsetRange(partition, newest.first, offset)]
    ordered = sorted([*ranges, OffsetRange(partition, offset, offset)], key=lambda place: (place.first, place.last))
    merged = [ordered[0]]
    for place in ordered[1:]:
        if place.first <= merged[-1].last + 1:
            merged[-1] = OffsetRange(partition, merged[-1].first, max(merged[-1].last, place.last))
        else:
            merged.append(place)
    while len(merged) > limit:
        index = min(range(len(merged) - 1), key=lambda i: merged[i + 1].first - merged[i].last)
        merged[index : index + 2] = [OffsetRange(partition, merged[index].first, merged[index + 1].last)]
    return merged


@dataclass(slots=True)
class _Entry:
    beacons: int = 0
    id_sum: int = 0
    payload_bytes: int = 0
    dropped: int = 0
    sample: int = SAMPLE_ALL
    lags: Sketch = field(default_factory=Sketch)
    uncounted: list[npt.NDArray[np.int32]] = field(default_factory=list)
    """Bins of the lags that are not in `lags` yet, by block: one count of many is as fast as one of few."""
    ranges: dict[int, list[OffsetRange]] = field(default_factory=dict)

    @classmethod
    def of(cls, tally: Tally) -> _Entry:
        ranges: dict[int, list[OffsetRange]] = {}
        for place in tally.ranges:
            ranges.setdefault(place.partition, []).append(place)
        return cls(
            tally.beacons,
            tally.id_sum % (1 << 64),
            tally.payload_bytes,
            tally.dropped,
            tally.sample,
            tally.lag_sketch,
            ranges=ranges,
        )

    def add_lags(self, keys: npt.NDArray[np.int32]) -> None:
        self.uncounted.append(keys)
        if len(self.uncounted) >= MAX_UNCOUNTED:
            self.lag_sketch()

    def lag_sketch(self) -> Sketch:
        if self.uncounted:
            self.lags = self.lags.plus(np.concatenate(self.uncounted))
            self.uncounted.clear()
        return self.lags


class Account:
    """The cumulative tallies of one emitter.

    Memory: at most `MAX_TALLIES` tallies. A live one takes about 2 KB with 8 partitions, one that was quiet for 15
    minutes 0.3 to 1.5 KB, so 100 MB in the worst case and under 10 MB for a node with two checkpoints and a day of
    windows. Beacons of a tally past that bound are in no tally: from then on the account is `blind`, and final_through
    stands still, so that it never counts as complete.
    """

    def __init__(self, node: str, *, final: bool = True, max_tallies: int = MAX_TALLIES) -> None:
        self._node = node
        self._final = final
        self._max_tallies = max_tallies
        self._live: dict[TallyKey, _Entry] = {}
        self._touched_s: dict[TallyKey, float] = {}
        self._compact: dict[TallyKey, bytes] = {}
        self._changed: set[TallyKey] = set()
        self.blind = False
        self.final_through = 0
        """Epoch seconds, as in the report's field of that name."""

    def __len__(self) -> int:
        return len(self._live) + len(self._compact)

    def add(self, increment: Increment, partition: int, offset: int, now_s: float) -> None:
        """Add a block that the broker holds at this partition and offset."""
        entry = self._entry(increment.key, now_s)
        if entry is None:
            return
        entry.beacons += increment.beacons
        entry.id_sum = (entry.id_sum + increment.id_sum) % (1 << 64)
        entry.payload_bytes = min(entry.payload_bytes + increment.payload_bytes, MAX_COUNT)
        entry.sample = min(entry.sample, increment.sample)
        entry.add_lags(increment.lag_keys)
        places = entry.ranges.get(partition)
        entry.ranges[partition] = add_offset(places, offset) if places else [OffsetRange(partition, offset, offset)]

    def restore(self, tally: Tally, now_s: float) -> None:
        """Set this tally to its state when it was written to disk."""
        key = TallyKey(tally.checkpoint[len(self._node) + 1 :], tally.replay, tally.window_start)
        if self._entry(key, now_s) is not None:
            self._live[key] = _Entry.of(tally)

    def forget(self, key: TallyKey) -> None:
        """Forget this tally; it is never reported again."""
        for entries in (self._live, self._touched_s, self._compact):
            entries.pop(key, None)
        self._changed.discard(key)

    def drop(self, key: TallyKey, beacons: int, now_s: float) -> None:
        """Count beacons of this tally that could not be sent, whatever the cause."""
        entry = self._entry(key, now_s)
        if entry is not None:
            entry.dropped += beacons

    def thin(self, key: TallyKey, sample: int, now_s: float) -> None:
        """Lower this tally's sample to one of this size, which left beacons out."""
        live_entry = self._live.get(key)
        if live_entry is not None and live_entry.sample <= sample:
            return
        entry = self._entry(key, now_s)
        if entry is not None:
            entry.sample = min(entry.sample, sample)

    def settle(self, t_ms: float) -> None:
        """Mark all observations up to `t_ms` on the emitter's clock as acknowledged, or counted as dropped.

        A clock that steps back takes final_through with it, which is a time of *this* clock.
        """
        if self._final and not self.blind:
            self.final_through = int(t_ms // 1000)

    def changed(self) -> list[Tally]:
        """Return the tallies that changed since they were last `reported`, oldest window first."""
        return [
            self._tally(key, self._live[key])
            for key in sorted(self._changed, key=lambda key: (key.window_start, key.place, key.replay or ""))
        ]

    @property
    def replays(self) -> set[str]:
        """Names of the replays that it has tallies of."""
        return {key.replay for key in self._keys() if key.replay is not None}

    @property
    def has_changed(self) -> bool:
        """True if a tally changed since it was last `reported`."""
        return bool(self._changed)

    def reported(self, tallies: Iterable[Tally]) -> None:
        """Mark these tallies as reported: the broker has them, and nothing was added since they were read."""
        prefix = len(self._node) + 1
        for tally in tallies:
            self._changed.discard(TallyKey(tally.checkpoint[prefix:], tally.replay, tally.window_start))

    def tidy(self, now_s: float) -> None:
        """Encode quiet tallies and forget those that the topics no longer keep. Cheap enough for once per minute."""
        for key in [key for key, touched in self._touched_s.items() if abs(now_s - touched) > QUIET_S]:
            if key not in self._changed:
                self._compact[key] = pack_tally(self._tally(key, self._live.pop(key)))
                del self._touched_s[key]
        for key in [key for key in self._keys() if key.window_start < now_s - FORGET_S]:
            self.forget(key)

    def tally(self, key: TallyKey) -> Tally | None:
        """Return the tally of this key, whether live or encoded; None if there is none."""
        if key in self._live:
            return self._tally(key, self._live[key])
        return unpack_tally(self._compact[key]) if key in self._compact else None

    def _keys(self) -> Iterator[TallyKey]:
        yield from self._live
        yield from self._compact

    def _entry(self, key: TallyKey, now_s: float) -> _Entry | None:
        entry = self._live.get(key)
        if entry is None:
            packed = self._compact.pop(key, None)
            if packed is not None:
                entry = _Entry.of(unpack_tally(packed))
            elif len(self) < self._max_tallies:
                entry = _Entry()
            else:
                self.blind = True
                return None
            self._live[key] = entry
        self._touched_s[key] = now_s
        self._changed.add(key)
        return entry

    def _tally(self, key: TallyKey, entry: _Entry) -> Tally:
        return Tally(
            checkpoint=f"{self._node}.{key.place}",
            window_start=key.window_start,
            beacons=entry.beacons,
            id_sum=entry.id_sum,
            lag_sketch=entry.lag_sketch(),
            ranges=tuple(place for _, places in sorted(entry.ranges.items()) for place in places),
            replay=key.replay,
            payload_bytes=entry.payload_bytes,
            dropped=entry.dropped,
            sample=entry.sample,
        )


def pack_tally(tally: Tally) -> bytes:
    """Encode one tally as Avro, in a report that holds nothing else."""
    return encode_report(EmitterReport("", "", _NO_EMITTER, "", 0, 0, 0, False, 0, (), (tally,)))


def unpack_tally(packed: bytes) -> Tally:
    """Decode the result of `pack_tally`."""
    return decode_report(packed).tallies[0]
