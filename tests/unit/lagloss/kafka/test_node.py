"""A KafkaNode without a broker: what its reports say."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from confluent_kafka import Message

from lagloss import MemoryOutlet
from lagloss.broker.topics import BEACONS, REPORTS
from lagloss.identity import Identity
from lagloss.kafka import KafkaNode
from lagloss.kafka.commits import Commits
from lagloss.wire.format import decode_block, decode_report


@pytest.mark.parametrize(
    ("options", "resumes"),
    [({}, True), ({"first": True}, False), ({"first": True, "resumes": True}, True), ({"resumes": False}, False)],
)
def test_a_node_that_takes_in_again_what_it_had_in_hand_says_so(options: dict[str, Any], resumes: bool) -> None:
    log = MemoryOutlet()
    with KafkaNode("orders", "mid", "unused", outlet=lambda: log, **options) as node:
        node.emitter.received("a", 0)
    assert {decode_report(value).resumes for value in log.values(REPORTS)} == {resumes}


@pytest.mark.parametrize(("checksum", "expected"), [(False, None), (True, [0xE3069283])])
def test_checksums_are_of_what_was_received_where_they_are_asked_for(
    checksum: bool, expected: list[int] | None
) -> None:
    log, headers = MemoryOutlet(), Identity("a", time.time_ns() // 1_000_000).headers()
    message = Message(topic="orders", partition=0, offset=7, value=b"123456789", headers=headers)
    with KafkaNode("orders", "mid", "unused", outlet=lambda: log, checksum=checksum) as node:
        handling = node.take(message, Commits(cast("Any", None), node.emitter).taken(message))
        assert handling is not None
        node.sent(message, payload="123456789")
    blocks = {block.checkpoint: block for block in map(decode_block, log.values(BEACONS))}
    assert blocks.keys() == {"mid.in", "mid.out"}
    for block in blocks.values():
        assert (None if block.payload_crc is None else block.payload_crc.tolist()) == expected
    tallies = [tally for value in log.values(REPORTS) for tally in decode_report(value).tallies]
    assert {tally.payload_bytes for tally in tallies} == {9 if checksum else 0}
