"""The collector's emitters: one a pipeline and node, a bounded number of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from collector.models import Batch, Beacon
from lagloss.blocks import is_placeable
from lagloss.emitter import Emitter, event_time_fits

MAX_EMITTERS: Final = 64
"""Nodes served at a time; each has a thread and a Kafka producer."""
IDLE_S: Final = 600.0
"""An emitter without beacons for this long, in seconds, makes room for another node."""
MAX_BUFFERED: Final = 100_000
"""Beacons of one node that wait for the broker."""
ACK_POLL_S: Final = 0.005
CLOSE_S: Final = 2.0

Key = tuple[str, str, bool]
MakeEmitter = Callable[[str, str, bool], Emitter]


class Busy(Exception):
    """{0}: nothing of the batch was taken, or not all of it was acknowledged in time."""


@dataclass(slots=True)
class _Served:
    emitter: Emitter
    used_at: float


class Emitters:
    """Puts batches on the log.

    Args:
        make: an emitter for a pipeline, a node and whether it is the first; it must be one that is never final,
            since these clients pass no counts.
    """

    def __init__(self, make: MakeEmitter, max_emitters: int = MAX_EMITTERS) -> None:
        self._make = make
        self._max_emitters = max_emitters
        self._served: dict[Key, _Served] = {}

    def __len__(self) -> int:
        return len(self._served)

    async def put(self, batch: Batch, timeout_s: float) -> None:
        """Returns when the broker has acknowledged every beacon of the batch.

        Raises:
            Busy: there is no room, and nothing was taken; or the broker was too slow, and the beacons may or may not
                arrive: sent again, they may count as duplicates, but none is lost.
        """
        emitter = await self._of((batch.pipeline, batch.node, batch.first))
        if emitter.stats().buffered + len(batch.beacons) > MAX_BUFFERED:
            raise Busy("beacons of this node are waiting for the broker")
        for beacon in batch.beacons:
            _observe(emitter, beacon)
        mark, deadline = emitter.mark(), time.monotonic() + timeout_s
        emitter.nudge()
        while not emitter.acknowledged(mark):
            if time.monotonic() > deadline:
                raise Busy("the broker did not acknowledge in time")
            await asyncio.sleep(ACK_POLL_S)

    async def close(self) -> None:
        """Closes them all, each within 2 s, side by side."""
        served = list(self._served.values())
        self._served.clear()
        await asyncio.gather(*(asyncio.to_thread(each.emitter.close, CLOSE_S) for each in served))

    async def _of(self, key: Key) -> Emitter:
        while key not in self._served and len(self._served) >= self._max_emitters:
            await self._make_room()
        served = self._served.get(key)
        if served is None:
            served = self._served[key] = _Served(self._make(*key), 0.0)
        served.used_at = time.monotonic()
        return served.emitter

    async def _make_room(self) -> None:
        oldest = min(self._served, key=lambda key: self._served[key].used_at)
        if time.monotonic() - self._served[oldest].used_at < IDLE_S:
            raise Busy(f"{self._max_emitters} nodes are being served, as many as there may be")
        await asyncio.to_thread(self._served.pop(oldest).emitter.close, CLOSE_S)


def misplaced(batch: Batch, now_ms: float) -> int | None:
    """The position of the first beacon whose event_time is out of bounds, None if there is none."""
    fits = event_time_fits if batch.first else is_placeable
    return next((at for at, beacon in enumerate(batch.beacons) if not fits(beacon.event_time, now_ms)), None)


def _observe(emitter: Emitter, beacon: Beacon) -> None:
    kind, _, to = beacon.checkpoint.partition(":")
    message_id, event_time = beacon.message_id, beacon.event_time
    observed_at, replay = beacon.observed_at, beacon.replay
    if kind == "in":
        emitter.taken_in(message_id, event_time, observed_at=observed_at, replay=replay)
    elif kind == "out":
        emitter.sent_out(message_id, event_time, to=to or None, observed_at=observed_at, replay=replay)
    else:
        say = emitter.filtered if kind == "filtered" else emitter.dead
        say(message_id, event_time, beacon.reason or "unspecified", observed_at=observed_at, replay=replay)
