"""Progress of an aiokafka consumer: how far it has taken its partitions in; `lagloss.kafka.lane_proofs` has how that is
proved.

All of it runs on the event loop, but for `snapshot`, which waits for nothing: a loop that is blocked lets lanes stand.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from lagloss.broker.partition_bounds import ANSWER_TIMEOUT_S, Key
from lagloss.kafka.lane_proofs import LaneProofs
from lagloss.wire.format import Progress

log = logging.getLogger("lagloss")

PROVE_EVERY_S: Final = 1.0


class AIOKafkaLanes:
    """The input lanes of an aiokafka consumer, for `Emitter.follow`.

    The brokers are asked for the ends of lanes on a connection of the lanes' own, which reads uncommitted records,
    whatever the consumer's isolation level: so records of open transactions wait.

    Args:
        checkpoint: the checkpoint that reports this progress, `NODE.in`.
        connection: aiokafka's options of a consumer that name the cluster and how to be let in.
        observe: the host commits without waiting for beacons: see `LaneProofs`.
    """

    def __init__(self, checkpoint: str, connection: Mapping[str, Any], *, observe: bool) -> None:
        self.proofs = LaneProofs(checkpoint, observe=observe)
        self._connection = dict(connection)
        self._reader: AIOKafkaConsumer | None = None
        self._progress: Sequence[Progress] = ()
        self._is_closed = False
        self.last_error: str | None = None

    def snapshot(self) -> Sequence[Progress]:
        """Return the progress as of the last proof, from any thread; after `close`, once more."""
        if self._is_closed:
            last, self._progress = self._progress, ()
            return last or self.proofs.progress(_now_ms())
        return self._progress

    def hold(self, starts: Mapping[Key, int | None]) -> None:
        """Add partitions with their committed offsets: below 0 if there is none, None if it is unknown."""
        for key, start in starts.items():
            is_known = start is not None and start >= 0
            self.proofs.hold(key, start if is_known else None, is_new=start is not None and not is_known)
        self._publish()

    def release(self, keys: Iterable[Key]) -> None:
        """Remove partitions, which another consumer holds from now on."""
        self.proofs.release(keys)
        self._publish()

    async def run(self) -> None:
        """Prove, again and again, until cancelled."""
        while True:
            await self.prove()
            await asyncio.sleep(PROVE_EVERY_S)

    async def prove(self) -> None:
        """Ask the brokers once for the ends of all lanes, and move lanes; if none answers, they keep their last
        proof."""
        self.proofs.follow_assignment()
        keys = self.proofs.keys
        try:
            if keys:
                await self._read_ends(await self._connected(), keys)
        except Exception as error:
            self._note(f"lanes are not tracked: {str(error) or 'the brokers did not respond in time'}")
        self._publish()

    async def close(self) -> None:
        """Prove for a last time, report that, and disconnect."""
        await self.prove()
        self.proofs.clear()
        self._is_closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.stop()

    def _publish(self) -> None:
        self.proofs.follow_assignment()
        self._progress = self.proofs.progress(_now_ms())

    async def _connected(self) -> AIOKafkaConsumer:
        if self._reader is None:
            reader = AIOKafkaConsumer(**self._connection, client_id="lagloss-lanes", enable_auto_commit=False)
            try:
                await asyncio.wait_for(reader.start(), ANSWER_TIMEOUT_S)
            except BaseException:
                await reader.stop()
                raise
            self._reader = reader
        return self._reader

    async def _read_ends(self, reader: AIOKafkaConsumer, keys: Sequence[Key]) -> None:
        unknown = [TopicPartition(*key) for key in self.proofs.without_start()]
        begins = await asyncio.wait_for(reader.beginning_offsets(unknown), ANSWER_TIMEOUT_S) if unknown else {}
        taken = self.proofs.taken()
        asked_ms = _now_ms()
        ends = await asyncio.wait_for(reader.end_offsets([TopicPartition(*key) for key in keys]), ANSWER_TIMEOUT_S)
        still = set(self.proofs.keys)
        self.proofs.prove(taken, asked_ms, begins, {key: end for key, end in ends.items() if key in still})

    def _note(self, error: str) -> None:
        """Keep the error for `last_error`, and log it if it differs from the last one."""
        if error != self.last_error:
            log.warning("lagloss: %s", error)
        self.last_error = error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
