"""Beacon blocks and reports that clients made themselves: what must be so before they go on the log."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.log_writer import MAX_RECORD_BYTES, RecordToWrite
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.wire.checks import check_content, check_report, window_problem
from lagloss.wire.format import (
    WINDOW_S,
    BadRecord,
    BeaconBlock,
    EmitterReport,
    FieldFault,
    block_key,
    decode_block,
    decode_report,
    encode_report,
    partition_of,
    partitions_of,
)
from lagloss_server.net.problem_details import Problem

MAX_BLOCKS: Final = 4_096
"""Blocks of a request; the SDK sends 256 at most."""
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Block:
    """A block as received, and its content."""

    value: bytes
    content: BeaconBlock

    def record(self, partitions: int) -> RecordToWrite:
        """Return where it goes: to the partition of its ids, or, if the topic has fewer than it was made for, to one
        that exists."""
        content = self.content
        partition = partition_of(int(content.id_hash[0]), content.partitions) % partitions
        return RecordToWrite(BEACONS, block_key(content.pipeline, content.window_start), self.value, partition)


def split_blocks(body: bytes) -> list[bytes]:
    """Return the blocks of a body, each of which follows its length; none is decoded.

    Raises:
        Problem: 400 for a body that ends in the middle of a block, 413 for more than `MAX_BLOCKS`, 422 for none.
    """
    values: list[bytes] = []
    position = 0
    while position < len(body):
        start = position + _LENGTH.size
        end = start + _LENGTH.unpack_from(body, position)[0] if start <= len(body) else len(body) + 1
        if end > len(body):
            raise Problem(
                400, "Malformed body", f"expected length-prefixed blocks; the block at byte {position} is truncated"
            )
        if len(values) == MAX_BLOCKS:
            raise Problem(413, "Too many blocks", f"expected up to {MAX_BLOCKS} blocks; send fewer per request")
        values.append(body[start:end])
        position = end
    if not values:
        raise Problem(422, "Bad body", "expected at least one block")
    return values


def read_blocks(values: Sequence[bytes]) -> list[Block]:
    """Return these blocks, decoded; raise a Problem (422) that names the first that no part of lagloss could use."""
    blocks = [Block(value, _decoded(index, value)) for index, value in enumerate(values)]
    for index, block in enumerate(blocks):
        _check(index, block.content)
        if block.content.pipeline != blocks[0].content.pipeline:
            raise _bad(index, "pipeline", f"expected {blocks[0].content.pipeline}, the pipeline of the first block")
    return blocks


def _decoded(position: int, value: bytes) -> BeaconBlock:
    if len(value) > MAX_RECORD_BYTES:
        raise _bad(position, None, f"expected up to {MAX_RECORD_BYTES} bytes per block")
    try:
        return decode_block(value)
    except BadRecord as bad:
        raise _bad(position, None, f"expected a valid beacon block, found {bad.reason}") from None


def _check(position: int, block: BeaconBlock) -> None:
    """Refuse what the aggregator would set aside, while its sender can still react."""
    try:
        check_content(block)
    except BadRecord as bad:
        fault = _fault(bad)
        raise _bad(position, fault.field, fault.expected) from None
    if window_problem(block.window_start, int(time.time() * 1000)) is not None:
        raise _bad(
            position, "window_start", "expected epoch seconds that are a multiple of 60 and within the last 7 days"
        )
    if np.unique(partitions_of(block.id_hash, block.partitions)).size > 1:
        raise _bad(position, "id_hash", f"expected ids of a single partition (of {block.partitions})")


def _fault(bad: BadRecord) -> FieldFault:
    assert bad.fault is not None  # as both checks promise
    return bad.fault


def _bad(position: int, field: str | None, detail: str) -> Problem:
    return Problem(422, "Bad block", detail, position=position, field=field)


def read_report(body: bytes) -> EmitterReport:
    """Return the report in Avro bytes; raise a Problem (422) if it is malformed."""
    try:
        return decode_report(body)
    except BadRecord as bad:
        raise Problem(422, "Bad report", f"expected a valid emitter report: {bad}") from None


def accept_report(report: EmitterReport) -> None:
    """Refuse a report that the aggregator would set aside, while its sender can still react.

    Raises:
        Problem: 422 that names field and, of a tally or lane, its position.
    """
    try:
        check_report(report)
    except BadRecord as bad:
        fault = _fault(bad)
        raise Problem(422, "Bad report", fault.expected, position=fault.position, field=fault.field) from None
    for index, tally in enumerate(report.tallies):
        if tally.window_start % WINDOW_S or tally.window_start < 0:
            detail = "expected a window_start in epoch seconds that is a multiple of 60"
            raise Problem(422, "Bad report", detail, position=index, field="tallies")


def report_record(report: EmitterReport) -> RecordToWrite:
    """Return the record of a report; all of an emitter's go to one partition, in order.

    Raises:
        Problem: it is too large for a record (413).
    """
    value = encode_report(report)
    if len(value) > MAX_RECORD_BYTES:
        raise Problem(
            413, "Report too large", f"expected up to {MAX_RECORD_BYTES} bytes of Avro; split it into several reports"
        )
    return RecordToWrite(REPORTS, report.emitter, value)
