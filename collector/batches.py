"""Batches of beacons, whatever their format: their content, their checks, and their conversion to blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from collector.log_writer import LogPosition
from collector.metadata_cache import KnownPipeline
from lagloss.sdk.account import Account
from lagloss.sdk.emitter import event_time_fits, traces_are_on
from lagloss.sdk.packing import AHEAD_S, BeaconReader, Extras, PackedBlock, Packer, RefusedBeacons, is_placeable
from lagloss.wire.format import Tally
from lagloss_server.net.problem_details import Problem

MARGIN_MS: Final = 60_000
"""An event time that would be too old within this many ms is too old: the beacon has to wait for the broker."""
UNSPECIFIED: Final = "unspecified"
"""The reason of a message that was filtered or died without one."""


class Seen(NamedTuple):
    """One message at one checkpoint; `place` is the checkpoint without its node, times in epoch ms."""

    place: str
    message_id: str
    event_ms: float
    observed_ms: float | None = None
    """None: when the batch came in."""
    reason: str | None = None
    replay: str | None = None
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Numbered:
    """A batch's emitter and number, so that a repeat counts once."""

    emitter: bytes
    seq: int


@dataclass(frozen=True, slots=True)
class BeaconBatch:
    """Beacons of one node of one pipeline; `first`: its first node."""

    pipeline: str
    node: str
    first: bool
    seen: Sequence[Seen]
    numbered: Numbered | None = None


def check(batch: BeaconBatch, known: KnownPipeline | None, positions: Sequence[int] | None = None) -> None:
    """Return whether all of the batch can be taken.

    Args:
        known: the pipeline's definition; checkpoints are not looked at without.
        positions: of the beacons in what the client sent, if not their own.

    Raises:
        Problem: 422 that names the first beacon that cannot.
    """
    now_ms = time.time() * 1000
    for index, seen_message in enumerate(batch.seen):
        position = positions[index] if positions else index
        if not can_wait(seen_message.event_ms, now_ms, first=batch.first):
            detail = "expected an event_time within the last 7 days, and ahead of the clock by less than " + (
                "60 s (at the first node)" if batch.first else "a day"
            )
            raise Problem(422, "Bad beacon", detail, position=position, field="event_time")
        if seen_message.observed_ms is not None and seen_message.observed_ms > now_ms + AHEAD_S * 1000:
            detail = "expected an observed_at ahead of the clock by less than a day"
            raise Problem(422, "Bad beacon", detail, position=position, field="observed_at")
        if known is not None and f"{batch.node}.{seen_message.place}" not in known.checkpoints:
            detail = f"expected a checkpoint of pipeline {known.name}, found {batch.node}.{seen_message.place}"
            raise Problem(422, "Bad beacon", detail, position=position, field="checkpoint")


def can_wait(event_ms: float, now_ms: float, *, first: bool) -> bool:
    """Return whether a beacon of this event time can be taken, and still be placed after it waited for the broker."""
    fits = event_time_fits if first else is_placeable
    return fits(event_ms, now_ms) and is_placeable(event_ms - MARGIN_MS, now_ms)


def pack(batch: BeaconBatch, partitions: int) -> list[PackedBlock]:
    """Return a numbered batch as blocks: the same for the same batch, so that each counts once however often it is
    sent. Its times are of the client's clock, which its reports measure.

    A block's seq holds the batch's, the number of partitions (another number makes other blocks), and its place in the
    batch.
    """
    assert batch.numbered is not None
    clock_ns = time.time_ns()
    flat: list[Any] = []
    for seen_message in batch.seen:
        reason = seen_message.reason or UNSPECIFIED if seen_message.place in ("filtered", "dead") else None
        extras = Extras(seen_message.observed_ms, seen_message.replay, reason, traceparent=seen_message.traceparent)
        flat += (seen_message.place, seen_message.message_id, seen_message.event_ms, clock_ns, extras)
    reader, refused = BeaconReader(keep_ids=batch.first, keep_traces=batch.first and traces_are_on()), RefusedBeacons()
    observed = reader.read(flat, clock_ns / 1e6, refused)
    if observed is None or refused.dropped or refused.unplaced:
        raise AssertionError("a checked batch must be readable")
    before_first = (batch.numbered.seq << 32 | partitions << 16) - 1
    packer = Packer(batch.pipeline, batch.node, batch.numbered.emitter, batch.first, seq=before_first)
    return list(packer.pack(observed, reader.kinds, partitions))


def tallied(node: str, blocks: Sequence[PackedBlock], positions: Sequence[LogPosition]) -> list[Tally]:
    """Return what these acknowledged blocks add to their tallies."""
    account = Account(node)
    for block, position in zip(blocks, positions, strict=True):
        account.add(block.increment, position.partition, position.offset, time.time())
    return account.changed()
