"""Loss in a service's own tests: the beacons of the code under test in memory, and set differences between checkpoints.

    def test_every_order_is_mailed(lagloss_pipeline):
        ...
        assert_no_loss(lagloss_pipeline, between=("shop.out", "mailer.in"))

The fixture `lagloss_pipeline` comes with the package: pytest finds `lagloss.pytest_plugin` by itself. Here is what it
gives, which needs no pytest. There is no definition and no server, so a difference of sets is all there is: no message
is pending, and none is implied by another checkpoint.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from lagloss.broker.topics import BEACONS
from lagloss.sdk.emitter import Emitter, redirected
from lagloss.sdk.outlets.kafka import MemoryOutlet, Outlet
from lagloss.wire.format import BeaconBlock, decode_block, unpack_ids

__all__ = ["LostMessage", "RecordedPipeline", "assert_no_loss", "recorded"]

WAIT_S: Final = 5.0
AT_END_S: Final = 1.0
LOOK_EVERY_S: Final = 0.02
SHOWN: Final = 20
"""Lost messages that a failure names."""
_CHECKPOINT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.(in|out|out:[A-Za-z0-9][A-Za-z0-9_-]*|filtered|dead)")


@dataclass(frozen=True)
class Observation:
    """One beacon of a message. `lag_ms` is measured from its event time."""

    pipeline: str
    checkpoint: str
    message_id: str
    lag_ms: float
    reason: str | None
    is_replay: bool

    @property
    def node(self) -> str:
        return self.checkpoint.partition(".")[0]

    @property
    def kind(self) -> str:
        """`in`, `out`, `filtered` or `dead`."""
        return self.checkpoint.partition(".")[2].partition(":")[0]


@dataclass(frozen=True)
class LostMessage:
    """A message that is missing, and the last place that saw it."""

    message_id: str
    last_seen: str
    """The checkpoint."""
    lag_ms: float
    """Time from its event time until then."""

    def __str__(self) -> str:
        return f"{self.message_id}  last seen at {self.last_seen}, {self.lag_ms / 1000:.3f} s after its event time"


@dataclass(frozen=True)
class SetDifference:
    """A difference of two sets of messages: those `before`, less those `after` it."""

    name: str
    before: str
    after: tuple[str, ...]


class RecordedPipeline:
    """What the emitters of this process observe.

    If the code under test reports to several pipelines, choose one by `of`, or all of them are meant.
    """

    def __init__(self, recording: Recording, pipeline: str | None = None) -> None:
        self._recording = recording
        self._pipeline = pipeline

    def of(self, pipeline: str) -> RecordedPipeline:
        """Return one pipeline of several."""
        return RecordedPipeline(self._recording, pipeline)

    # -- what was seen --------------------------------------------------------------------------------------------

    def observations(self) -> list[Observation]:
        """Return all beacons so far, in no order."""
        seen = self._recording.observations()
        return [beacon for beacon in seen if self._pipeline in (None, beacon.pipeline)]

    def seen(self, checkpoint: str) -> set[str]:
        """Return the ids of the messages seen at a checkpoint; at `N.out` also those of `N.out:M`.

        Raises:
            ValueError: for a malformed checkpoint.
        """
        return _ids(_checked(checkpoint), self.observations())

    def duplicates(self, checkpoint: str) -> dict[str, int]:
        """Return how often each message was seen there that was seen more than once. Replays do not count.

        Raises:
            ValueError: for a malformed checkpoint.
        """
        _checked(checkpoint)
        beacons = self.observations()
        counts = Counter(at.message_id for at in beacons if _is_at(checkpoint, at) and not at.is_replay)
        return {message_id: count for message_id, count in counts.items() if count > 1}

    def filtered(self, node: str | None = None) -> dict[str, str]:
        """Return the reason for each message that was filtered, at this node or at any."""
        return self._reasons("filtered", node)

    def dead_lettered(self, node: str | None = None) -> dict[str, str]:
        """Return the reason for each message that was dead-lettered, at this node or at any."""
        return self._reasons("dead", node)

    def _reasons(self, kind: str, node: str | None) -> dict[str, str]:
        exits = [beacon for beacon in self.observations() if beacon.kind == kind and node in (None, beacon.node)]
        return {beacon.message_id: beacon.reason or "" for beacon in exits}

    # -- what is lost ---------------------------------------------------------------------------------------------

    def lost(self, *, at: str | None = None, between: tuple[str, str] | None = None) -> list[LostMessage]:
        """Return the messages that are missing now, by name; see `assert_no_loss`."""
        beacons = self.observations()
        return [message for hop in self._hops(at, between, beacons) for message in _missing(hop, beacons)]

    def assert_no_loss(
        self, *, at: str | None = None, between: tuple[str, str] | None = None, timeout_s: float = WAIT_S
    ) -> None:
        """Assert that no message is missing at a node, between two checkpoints, or without either anywhere.

        Messages that were filtered or dead-lettered are not missing. What is still on its way is waited for; within a
        running event loop, which that would stop, it is not: use `wait_for_no_loss` there.

        Args:
            at: a node: each message that it received, it has sent, filtered or dead-lettered.
            between: two checkpoints of the way of every message: each that was seen at the first was seen at the
                second. By default every node is checked, and each link that an emitter named by `to`.
            timeout_s: longest wait for messages that are missing.

        Raises:
            AssertionError: messages are missing, or none was seen, which would prove nothing.
            ValueError: for a malformed checkpoint.
        """
        __tracebackhide__ = True
        deadline = time.monotonic() + (0 if _is_in_loop() else timeout_s)
        while (failure := self._failure(at, between)) is not None and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        if failure is not None:
            raise AssertionError(failure)

    async def wait_for_no_loss(
        self, *, at: str | None = None, between: tuple[str, str] | None = None, timeout_s: float = WAIT_S
    ) -> None:
        """Do as `assert_no_loss` in a test that is a coroutine, whose event loop goes on meanwhile."""
        __tracebackhide__ = True
        deadline = time.monotonic() + timeout_s
        while (failure := self._failure(at, between)) is not None and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
        if failure is not None:
            raise AssertionError(failure)

    def allow_loss(self) -> None:
        """Leave out the check at the end of the test, for a test that loses messages on purpose."""
        self._recording.is_checked_at_end = False

    def check_at_end(self) -> None:
        """Assert that no message is missing, if any was seen; the fixture does so once the test has passed."""
        __tracebackhide__ = True
        if self._recording.is_checked_at_end and self.observations():
            self.assert_no_loss(timeout_s=AT_END_S)

    def _failure(self, at: str | None, between: tuple[str, str] | None) -> str | None:
        """Return what is wrong; None if nothing is."""
        beacons = self.observations()
        hops = self._hops(at, between, beacons)
        if not any(_is_at(hop.before, beacon) for hop in hops for beacon in beacons):
            places = ", ".join(sorted({beacon.checkpoint for beacon in beacons})) or "none"
            wanted = " or ".join(sorted({hop.before for hop in hops})) or "any node's in"
            return f"no message was seen at {wanted}, so nothing is proven; checkpoints with messages: {places}"
        parts = [_described(hop, missing, beacons) for hop in hops if (missing := _missing(hop, beacons))]
        return "\n".join([*parts, *self._recording.doubts()]) if parts else None

    @staticmethod
    def _hops(at: str | None, between: tuple[str, str] | None, beacons: list[Observation]) -> list[SetDifference]:
        if between is not None:
            before, after = map(_checked, between)
            return [SetDifference(f"between {before} and {after}", before, (after,))]
        received = sorted({beacon.node for beacon in beacons if beacon.kind == "in"})
        nodes = [_node_hop(node) for node in (received if at is None else [at])]
        named = sorted({beacon.checkpoint for beacon in beacons if ":" in beacon.checkpoint}) if at is None else []
        links = [
            SetDifference(f"between {out} and {to}.in", out, (f"{to}.in",))
            for out in named
            if (to := out.split(":")[1])
        ]
        return [*nodes, *links]


def assert_no_loss(
    pipeline: RecordedPipeline,
    *,
    at: str | None = None,
    between: tuple[str, str] | None = None,
    timeout_s: float = WAIT_S,
) -> None:
    """Assert that no message is missing: see `RecordedPipeline.assert_no_loss`.

    Raises:
        AssertionError: messages are missing, or none was seen.
        ValueError: for a malformed checkpoint.
    """
    __tracebackhide__ = True
    pipeline.assert_no_loss(at=at, between=between, timeout_s=timeout_s)


@contextmanager
def recorded() -> Iterator[RecordedPipeline]:
    """Record what all emitters of this process observe within the block; nothing is sent anywhere."""
    recording = Recording()
    with redirected(recording.outlet_of):
        yield RecordedPipeline(recording)


class Recording:
    """The outlets of all emitters, in memory."""

    def __init__(self) -> None:
        self._outlets: list[MemoryOutlet] = []
        self._emitters: list[Emitter] = []
        self.is_checked_at_end = True

    def outlet_of(self, emitter: Emitter) -> Outlet:
        """Make the outlet of an emitter."""
        outlet = MemoryOutlet(partition_count=1)
        self._outlets.append(outlet)
        self._emitters.append(emitter)
        return outlet

    def observations(self) -> list[Observation]:
        """Return all beacons so far."""
        for flush in (Emitter.request_flush, Emitter.flush):
            for emitter in list(self._emitters):
                flush(emitter)
        blocks = [decode_block(value) for outlet in list(self._outlets) for value in outlet.values(BEACONS)]
        names: dict[int, str] = {}
        for block in blocks:
            names.update(_names(block))
        return [observation for block in blocks for observation in _observations(block, names)]

    def doubts(self) -> Iterator[str]:
        """Yield why messages may be missing that the service did not lose."""
        for emitter in self._emitters:
            stats = emitter.stats()
            kinds = {"dropped": stats.dropped, "refused": stats.refused, "unplaced": stats.unplaced}
            counts = [f"{count} {kind}" for kind, count in kinds.items() if count]
            if counts:
                yield f"beacons of {emitter.node} that were not recorded: {', '.join(counts)}"
            if emitter.in_flight:
                yield f"still in flight at {emitter.node}: {emitter.in_flight}"


def _names(block: BeaconBlock) -> dict[int, str]:
    if block.message_ids is None:
        return {}
    ids = unpack_ids(block.message_ids, range(block.count))
    return {id_hash: raw.decode() for id_hash, raw in zip(block.id_hash.tolist(), ids, strict=True)}


def _observations(block: BeaconBlock, names: dict[int, str]) -> Iterator[Observation]:
    for id_hash, lag_ms in zip(block.id_hash.tolist(), block.lag_ms.tolist(), strict=True):
        name = names.get(id_hash, f"{id_hash:016x}")
        is_replay = block.replay is not None
        yield Observation(block.pipeline, block.checkpoint, name, lag_ms, block.reason, is_replay)


def _checked(checkpoint: str) -> str:
    if not _CHECKPOINT.fullmatch(checkpoint):
        raise ValueError(f"expected a checkpoint such as enrich.in or enrich.out:mail, found {checkpoint!r}")
    return checkpoint


def _is_at(checkpoint: str, beacon: Observation) -> bool:
    return beacon.checkpoint == checkpoint or (
        checkpoint.endswith(".out") and beacon.checkpoint.startswith(f"{checkpoint}:")
    )


def _ids(checkpoint: str, beacons: list[Observation]) -> set[str]:
    return {beacon.message_id for beacon in beacons if _is_at(checkpoint, beacon)}


def _node_hop(node: str) -> SetDifference:
    after = tuple(_checked(f"{node}.{exit_}") for exit_ in ("out", "filtered", "dead"))
    return SetDifference(
        f"at {node}, which received them and neither sent, filtered nor dead-lettered them", f"{node}.in", after
    )


def _missing(hop: SetDifference, beacons: list[Observation]) -> list[LostMessage]:
    """Return the messages of a hop that are missing, by name."""
    given_up = {(beacon.pipeline, beacon.message_id) for beacon in beacons if beacon.kind in ("filtered", "dead")}
    before = {(at.pipeline, at.message_id) for at in beacons if _is_at(hop.before, at)}
    after = {(at.pipeline, at.message_id) for at in beacons for place in hop.after if _is_at(place, at)}
    missing = before - after - given_up
    last: dict[tuple[str, str], Observation] = {}
    for beacon in beacons:
        key = beacon.pipeline, beacon.message_id
        if key in missing and (key not in last or beacon.lag_ms >= last[key].lag_ms):
            last[key] = beacon
    return [LostMessage(key[1], last[key].checkpoint, last[key].lag_ms) for key in sorted(missing)]


def _described(hop: SetDifference, missing: list[LostMessage], beacons: list[Observation]) -> str:
    total = len({(at.pipeline, at.message_id) for at in beacons if _is_at(hop.before, at)})
    lines = [f"{len(missing)} of {total} messages lost {hop.name}:"]
    lines += [f"  {message}" for message in missing[:SHOWN]]
    if len(missing) > SHOWN:
        lines.append(f"  and {len(missing) - SHOWN} more")
    return "\n".join(lines)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
