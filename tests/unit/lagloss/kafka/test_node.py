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
from lagloss.kafka.commits import Commits, Taken
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


def orders(offset: int) -> Message:
    headers = Identity("a", time.time_ns() // 1_000_000).headers()
    return Message(topic="orders", partition=0, offset=offset, value=b"", headers=headers)


def works(of: KafkaNode) -> int:
    """Return how many messages the node's emitter has in flight."""
    return len(of.emitter._beacons.hand)


def test_a_message_that_is_read_again_is_in_flight_once() -> None:
    with KafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as mid:
        taken, again = Taken(7), Taken(7)
        mid.take(orders(7), taken)
        handling = mid.take(orders(7), again)
        assert works(mid) == 1
        assert handling is not None
        handling.end_handling()
        assert works(mid) == 0
        assert again.is_done
        assert not taken.is_done


def test_an_unfinished_message_of_a_released_partition_is_in_flight_until_its_new_owner_has_committed_it() -> None:
    consumer, another = object(), object()
    with KafkaNode("orders", "mid", "unused", outlet=MemoryOutlet) as mid:
        finished, stuck = (mid.take(orders(offset), Taken(offset)) for offset in (7, 8))
        mid.release_partitions([("orders", 0)], consumer)
        assert not mid.has_work()
        assert (mid.handed_over(consumer), mid.handed_over(another)) == ({("orders", 0)}, set())
        mid.end_handovers(consumer, {("orders", 0): 7, ("orders", 1): 9})
        mid.end_handovers(another, {("orders", 0): 9})
        assert works(mid) == 2
        assert finished is not None
        assert mid.in_flight(orders(7)) is finished
        finished.end_handling()
        assert works(mid) == 1
        mid.take(orders(9), Taken(9))
        mid.release_partitions([("orders", 0)], consumer)
        mid.end_handovers(consumer, {("orders", 0): 9})
        assert works(mid) == 1
        assert (mid.in_flight(orders(8)), mid.in_flight(orders(9)) is None) == (None, False)
        assert stuck is not None
        stuck.end_handling()
        mid.end_handovers(consumer, {("orders", 0): 10})
        assert (works(mid), mid.handed_over(consumer)) == (0, set())


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_node_that_is_closed_with_work_left_does_not_report_that_it_has_none(is_finished: bool) -> None:
    log = MemoryOutlet()
    with KafkaNode("orders", "mid", "unused", outlet=lambda: log) as mid:
        handling = mid.take(orders(7), Taken(7))
        assert handling is not None
        if is_finished:
            handling.end_handling()
    last = decode_report(log.values(REPORTS)[-1])
    assert (last.closed, last.unfinished) == (True, not is_finished)
