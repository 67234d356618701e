"""The content of a spool's files: flushes, and the tallies they add to, as checksummed frames.

A flush is its summary, its blocks, and the summary again, so that a damaged byte costs at most one block whose size and
tally are still known. A tally that a flush is the first to change stands before it in its earlier state, between two
lists of all such tallies: a reader of the files can add up from there, and knows of which it cannot.

A frame is ``LGLS``, a kind (1 byte), the payload's length (uint32), xxh3_64 of kind, length and payload (uint64), and
the payload; all little-endian. A reader thus finds the good frames around a damaged one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from lagloss.sdk.account import pack_tally, unpack_tally
from lagloss.sdk.flush import Flush
from lagloss.sdk.packing import Increment, PackedBlock, TallyKey
from lagloss.sdk.shipper import EmitterIdentity, Position
from lagloss.wire.format import Progress, Tally, block_key, decode_block, partition_of

HEAD: Final = b"H"
TALLY_KEYS: Final = b"K"
TALLY: Final = b"T"
SUMMARY: Final = b"F"
BLOCK: Final = b"B"
SUMMARY_AGAIN: Final = b"f"
POSITIONS: Final = b"A"
END: Final = b"E"
_SEQ_BYTES: Final = 8
MAGIC: Final = b"LGLS"
_HEADER: Final = struct.Struct("<4sBIQ")
_SUMMED: Final = struct.Struct("<BI")


@dataclass(frozen=True, slots=True)
class Head:
    """Who wrote the file. `final`: its account may be final at all."""

    identity: EmitterIdentity
    final: bool


@dataclass(frozen=True, slots=True)
class StoredFlush:
    """A flush read from a file. Beacons of damaged blocks are in its `dropped`.

    `after`: number of the flush that was written before it; `report_seq` and `final_through` (epoch s): of the
    emitter's newest report and account at that time.
    """

    flush: Flush
    after: int
    report_seq: int
    final_through: int


@dataclass(frozen=True, slots=True)
class End:
    """End of an emitter that closed cleanly at this time, epoch ms; all its beacons are in its files."""

    closed_at_ms: int


@dataclass(frozen=True, slots=True)
class Bases:
    """Keys of the tallies whose base is in the file."""

    keys: tuple[TallyKey, ...]


Entry = Head | Bases | Tally | StoredFlush | End


# -- writing ------------------------------------------------------------------------------------------------------


def head_frame(head: Head) -> bytes:
    identity = head.identity
    record = {
        "pipeline": identity.pipeline,
        "node": identity.node,
        "emitter": identity.emitter.hex(),
        "host": identity.host,
        "started_at": identity.started_at,
        "final": head.final,
        "resumes": identity.resumes,
        "labels": dict(identity.labels),
    }
    return frame(HEAD, _json(record))


def tally_frames(tallies: Mapping[TallyKey, Tally]) -> bytes:
    """Return frames of tallies as they stand before the flushes that follow."""
    if not tallies:
        return b""
    keys = frame(TALLY_KEYS, _json(list(tallies)))
    return b"".join((keys, *(frame(TALLY, pack_tally(tally)) for tally in tallies.values()), keys))


def flush_frames(flush: Flush, after: int, report_seq: int, final_through: int) -> bytes:
    summary = _json(_summary(flush, after, report_seq, final_through))
    blocks = (frame(BLOCK, block.seq.to_bytes(_SEQ_BYTES, "little") + block.value) for block in flush.blocks)
    return b"".join((frame(SUMMARY, summary), *blocks, frame(SUMMARY_AGAIN, summary)))


def positions_frame(number: int, positions: Sequence[Position]) -> bytes:
    """Return a frame of the positions of a flush's blocks in the log."""
    return frame(POSITIONS, _json({"number": number, "positions": positions}))


def end_frame(closed_at_ms: int) -> bytes:
    return frame(END, _json({"closed_at": closed_at_ms}))


def _summary(flush: Flush, after: int, report_seq: int, final_through: int) -> dict[str, Any]:
    return {
        "number": flush.number,
        "observed_until": flush.observed_until_ms,
        "after": after,
        "report_seq": report_seq,
        "final_through": final_through,
        "progress": None if flush.progress is None else [(p.checkpoint, p.lane, p.until) for p in flush.progress],
        "dropped": [(*key, beacons) for key, beacons in flush.dropped.items()],
        "is_blind": flush.is_blind,
        "thinned": [(*key, sample) for key, sample in flush.thinned.items()],
        "blocks": [
            (block.seq, *block.increment.key, block.increment.beacons, block.increment.payload_bytes)
            for block in flush.blocks
        ],
    }


def _json(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


# -- reading ------------------------------------------------------------------------------------------------------


def entries(data: bytes) -> Iterator[Entry]:
    """Yield the intact entries of a file, or of a part of it that begins and ends between flushes."""
    gathered = _Gathered()
    for stored in frames(data):
        kind, payload = bytes((stored.kind,)), bytes(stored.payload)
        if kind == BLOCK:
            gathered.blocks[int.from_bytes(payload[:_SEQ_BYTES], "little")] = payload[_SEQ_BYTES:]
        elif kind == SUMMARY_AGAIN:
            yield from gathered.closed_by(json.loads(payload))
        else:
            yield from gathered.cut_off()
            match kind:
                case b"F":
                    gathered.summary = json.loads(payload)
                case b"K":
                    yield Bases(tuple(TallyKey(*row) for row in json.loads(payload)))
                case b"T":
                    yield unpack_tally(payload)
                case b"H":
                    yield _head(json.loads(payload))
                case b"E":
                    yield End(json.loads(payload)["closed_at"])
    yield from gathered.cut_off()


def positions_of(data: bytes) -> dict[int, list[Position]]:
    """Return the positions of the blocks of each flush, by its number."""
    positions = {}
    for stored in frames(data):
        record = json.loads(bytes(stored.payload))
        positions[record["number"]] = [None if place is None else (place[0], place[1]) for place in record["positions"]]
    return positions


class _Gathered:
    """The frames of one flush, until its end is found."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] | None = None
        self.blocks: dict[int, bytes] = {}

    def closed_by(self, summary: dict[str, Any]) -> Iterator[StoredFlush]:
        """Close the flush at its second summary; the first may have been that of an earlier flush, or damaged."""
        if self.summary is not None and self.summary["number"] != summary["number"]:
            yield self._taken(self.summary)
        self.summary = None
        yield self._taken(summary)
        self.blocks.clear()

    def cut_off(self) -> Iterator[StoredFlush]:
        """Close the flush, if any, at the start of another entry or at the end of the file."""
        if self.summary is not None:
            yield self._taken(self.summary)
        elif self.blocks:
            yield _nameless(list(self.blocks.items()))
        self.summary = None
        self.blocks.clear()

    def _taken(self, summary: dict[str, Any]) -> StoredFlush:
        dropped = {TallyKey(*row[:3]): row[3] for row in summary["dropped"]}
        blocks = []
        for seq, place, replay, window_start, beacons, payload_bytes in summary["blocks"]:
            value = self.blocks.pop(seq, None)
            if value is None:
                key = TallyKey(place, replay, window_start)
                dropped[key] = dropped.get(key, 0) + beacons
            else:
                blocks.append(repack(seq, value, payload_bytes))
        progress = summary["progress"]
        flush = Flush(
            summary["number"],
            summary["observed_until"],
            tuple(blocks),
            dropped,
            summary["is_blind"],
            {TallyKey(*row[:3]): row[3] for row in summary["thinned"]},
            None if progress is None else tuple(Progress(*row) for row in progress),
        )
        return StoredFlush(flush, summary["after"], summary["report_seq"], summary["final_through"])


def repack(seq: int, value: bytes, payload_bytes: int = 0) -> PackedBlock:
    """Rebuild a block as it was before it was written."""
    block = decode_block(value)
    partition = partition_of(int(block.id_hash[0]), block.partitions)
    return PackedBlock(
        partition, block_key(block.pipeline, block.window_start), value, Increment.of(block, payload_bytes), seq
    )


def _nameless(blocks: Sequence[tuple[int, bytes]]) -> StoredFlush:
    """Return a flush of blocks whose two summaries are damaged: they count, the rest of the flush is unknown."""
    packed = tuple(repack(seq, value) for seq, value in blocks)
    return StoredFlush(Flush(0, 0, packed, is_blind=True), 0, 0, 0)


def _head(record: dict[str, Any]) -> Head:
    identity = EmitterIdentity(
        record["pipeline"],
        record["node"],
        bytes.fromhex(record["emitter"]),
        record["host"],
        record["started_at"],
        record["resumes"],
        record["labels"],
    )
    return Head(identity, record["final"])


# -- frames -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """A good frame: its kind (one byte), its payload, and the position right after it."""

    kind: int
    payload: memoryview
    end: int


def frame(kind: bytes, payload: bytes) -> bytes:
    """Return the frame of this payload; `kind` is one byte."""
    return _HEADER.pack(MAGIC, kind[0], len(payload), _checksum(kind[0], payload)) + payload


def frames(data: bytes) -> Iterator[Frame]:
    """Yield the good frames in their order; damaged or truncated ones are skipped."""
    view, position = memoryview(data), 0
    while (position := data.find(MAGIC, position)) >= 0:
        frame = _read(view, position)
        if frame is None:
            position += 1
        else:
            yield frame
            position = frame.end


def _read(view: memoryview, position: int) -> Frame | None:
    begin = position + _HEADER.size
    if begin > len(view):
        return None
    _, kind, length, checksum = _HEADER.unpack_from(view, position)
    if begin + length > len(view):
        return None
    payload = view[begin : begin + length]
    return Frame(kind, payload, begin + length) if _checksum(kind, payload) == checksum else None


def _checksum(kind: int, payload: bytes | memoryview) -> int:
    digest = xxhash.xxh3_64(_SUMMED.pack(kind, len(payload)))
    digest.update(payload)
    return digest.intdigest()
