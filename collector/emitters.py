"""The collector's own emitters, for clients that pass no counts: one per pipeline and node, in bounded number."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from collector.batches import UNSPECIFIED, BeaconBatch, Seen
from collector.fairness import ITEM_BYTES, SharedRoom, Workers
from lagloss.sdk.emitter import Emitter
from lagloss_server.net.problem_details import busy

MAX_EMITTERS: Final = 64
"""Nodes served at a time; each has a thread and a Kafka producer."""
IDLE_S: Final = 600.0
"""An emitter without beacons for this long, in seconds, makes room for another node; sooner only if its pipeline has
the most, for a node of one that has fewer."""
MAX_WAITING_BYTES: Final = 48 * 1024 * 1024
"""Beacons of all nodes that wait for the broker: some 100,000; a pipeline gets half of it at most."""
BEACON_BYTES: Final = 400
"""Memory of a beacon besides the characters of its texts, of which each may take four bytes."""
MAX_BUFFERED: Final = MAX_WAITING_BYTES // BEACON_BYTES
"""Beacons that an emitter may have to hold."""
MAX_TALLIES: Final = 32_768
"""Tallies in all accounts together, 2 KB each at most. Beyond, the emitter that has the most is replaced by a new one,
with an empty account: these emitters are never final, so that nothing is lost with it."""
ACK_POLL_S: Final = 0.005
CLOSE_S: Final = 2.0

Key = tuple[str, str, bool]
MakeEmitter = Callable[[str, str, bool], Emitter]


@dataclass(slots=True)
class _Waiting:
    mark: int
    size: int
    beacons: int
    acknowledged: asyncio.Future[None]


@dataclass(slots=True)
class _Served:
    emitter: Emitter
    used_at: float = 0.0
    waiting: deque[_Waiting] = field(default_factory=deque)
    watcher: asyncio.Task[None] | None = None
    observing: int = 0
    """Batches that are being handed to the emitter."""

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.observing


class Emitters:
    """Puts batches on the log.

    Args:
        make: an emitter for a pipeline, a node and whether it is the first; it must be one that is never final, since
            these clients pass no counts.
        timeout_s: how long a batch waits for the broker.
    """

    def __init__(
        self,
        make: MakeEmitter,
        timeout_s: float,
        workers: Workers,
        *,
        max_emitters: int = MAX_EMITTERS,
        max_tallies: int = MAX_TALLIES,
    ) -> None:
        self.waiting_beacons = 0
        """Put, and not acknowledged yet; also of clients that gave up waiting."""
        self._make = make
        self._timeout_s = timeout_s
        self._workers = workers
        self._max_emitters = max_emitters
        self._max_tallies = max_tallies
        self._served: dict[Key, _Served] = {}
        self._replaced: dict[asyncio.Task[None], _Served] = {}
        self._room = SharedRoom(MAX_WAITING_BYTES)

    def __len__(self) -> int:
        return len(self._served)

    async def put(self, batch: BeaconBatch) -> None:
        """Return when every beacon of the batch is acknowledged (by the broker, or by the emitter's spool).

        Raises:
            Problem: 503 if there is no room, and nothing was taken; or the broker was too slow, and the beacons may
                or may not arrive: sent again, they may count as duplicates, but none is lost.
        """
        size, beacons = sum(map(_size, batch.seen)), len(batch.seen)
        if not self._room.take(batch.pipeline, size):
            raise busy("too many beacons are waiting for the broker; send the batch again later")
        try:
            self._replace_largest()
            served = await self._of((batch.pipeline, batch.node, batch.first))
            served.observing += 1
            try:
                await self._workers.run(
                    batch.pipeline, beacons * ITEM_BYTES, lambda: _observe_all(served.emitter, batch.seen)
                )
            finally:
                served.observing -= 1
        except BaseException:
            self._room.give_back(batch.pipeline, size)
            raise
        waiting = _Waiting(served.emitter.mark(), size, beacons, asyncio.get_running_loop().create_future())
        served.waiting.append(waiting)
        self.waiting_beacons += beacons
        served.emitter.request_flush()
        if served.watcher is None or served.watcher.done():
            served.watcher = asyncio.create_task(self._watch(batch.pipeline, served))
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiting.acknowledged
        except TimeoutError:
            raise busy("the broker did not acknowledge in time; send the batch again later") from None

    async def close(self) -> None:
        """Close them all, each within 2 s, side by side."""
        served = [*self._served.values(), *self._replaced.values()]
        for task in self._replaced:
            task.cancel()
        self._served.clear()
        for emitter in served:
            if emitter.watcher is not None:
                emitter.watcher.cancel()
        await asyncio.gather(*(asyncio.to_thread(node.emitter.close, CLOSE_S) for node in served))

    async def _watch(self, pipeline: str, served: _Served) -> None:
        """Tells batches that they are acknowledged: one look for all of an emitter's, as long as any waits."""
        while served.waiting:
            await asyncio.sleep(ACK_POLL_S)
            while served.waiting and served.emitter.acknowledged(served.waiting[0].mark):
                first = served.waiting.popleft()
                self._room.give_back(pipeline, first.size)
                self.waiting_beacons -= first.beacons
                if not first.acknowledged.done():
                    first.acknowledged.set_result(None)

    async def _of(self, key: Key) -> _Served:
        while key not in self._served and len(self._served) >= self._max_emitters:
            await self._make_room(key[0])
        served = self._served.get(key)
        if served is None:
            served = self._served[key] = _Served(self._make(*key))
        served.used_at = time.monotonic()
        return served

    def _replace_largest(self) -> None:
        """Take an emitter out of service if there are too many tallies: the one with the most, of the pipeline with the
        most. It is closed once its beacons are acknowledged."""
        tallies = {key: served.emitter.tallies for key, served in self._served.items()}
        if sum(tallies.values()) <= self._max_tallies:
            return
        of_pipeline = Counter[str]()
        for key, number in tallies.items():
            of_pipeline[key[0]] += number
        largest = max(tallies, key=lambda key: (of_pipeline[key[0]], tallies[key]))
        task = asyncio.create_task(self._close_when_idle(served := self._served.pop(largest)))
        self._replaced[task] = served
        task.add_done_callback(self._replaced.pop)

    async def _close_when_idle(self, served: _Served) -> None:
        while not served.is_idle:
            await asyncio.sleep(ACK_POLL_S)
        await asyncio.to_thread(served.emitter.close, CLOSE_S)

    async def _make_room(self, pipeline: str) -> None:
        """End one emitter, to serve a node of this pipeline.

        Raises:
            Problem: 503 if each is in use, or this pipeline is not to have more than others.
        """
        used_at = {key: served.used_at for key, served in self._served.items() if served.is_idle}
        least = min(used_at, key=used_at.__getitem__, default=None)
        if least is None or time.monotonic() - used_at[least] < IDLE_S:
            number = Counter(key[0] for key in self._served)
            most = [key for key in used_at if number[key[0]] == max(number.values()) > number[pipeline] + 1]
            if not most:
                raise busy(
                    f"{self._max_emitters} nodes are being served, which is the limit; send the batch again later"
                )
            least = min(most, key=used_at.__getitem__)
        await asyncio.to_thread(self._served.pop(least).emitter.close, CLOSE_S)


def _size(message: Seen) -> int:
    """Return the memory that a beacon takes at most, in bytes."""
    return BEACON_BYTES + len(message.message_id) + 4 * (len(message.reason or "") + len(message.replay or ""))


def _observe_all(emitter: Emitter, batch: Sequence[Seen]) -> None:
    for message in batch:
        _observe(emitter, message)


def _observe(emitter: Emitter, message: Seen) -> None:
    kind, _, to = message.place.partition(":")
    message_id, event_ms, observed_ms, replay = (
        message.message_id,
        message.event_ms,
        message.observed_ms,
        message.replay,
    )
    if kind == "in":
        emitter.received(message_id, event_ms, observed_at=observed_ms, replay=replay, traceparent=message.traceparent)
    elif kind == "out":
        emitter.sent(message_id, event_ms, to=to or None, observed_at=observed_ms, replay=replay)
    else:
        say = emitter.filtered if kind == "filtered" else emitter.dead_lettered
        say(message_id, event_ms, message.reason or UNSPECIFIED, observed_at=observed_ms, replay=replay)
