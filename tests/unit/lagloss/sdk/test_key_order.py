"""Order within a key, as the host says it: what is flagged, what is forgotten, and what costs nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from lagloss import Emitter, MemoryOutlet
from lagloss.broker.topics import BEACONS
from lagloss.kafka import KafkaNode
from lagloss.sdk.key_order import KeyOrder
from lagloss.wire.format import decode_block, hash_id
from lagloss.wire.positions import read_positions

Seen = tuple[str, str, int]
"""Place, key and event time."""


@given(st.lists(st.tuples(st.sampled_from(["in", "out"]), st.sampled_from("abc"), st.integers(0, 5))))
def test_a_message_is_overtaken_by_a_later_one_of_its_key_at_its_checkpoint(seen: list[Seen]) -> None:
    order = KeyOrder()
    for at, (place, key, when) in enumerate(seen):
        before = [then for there, other, then in seen[:at] if (there, other) == (place, key)]
        assert order.is_overtaken(place, key, when) is any(then > when for then in before)


def test_the_key_that_was_not_seen_for_longest_is_forgotten() -> None:
    order = KeyOrder(max_keys=2)
    for key in ("a", "b", "a", "c"):
        assert not order.is_overtaken("in", key, 9)
    assert not order.is_overtaken("in", "b", 1)  # forgotten for c
    assert order.is_overtaken("in", "c", 1)


def test_keys_are_text_or_bytes_and_any_text() -> None:
    order = KeyOrder()
    assert not order.is_overtaken("in", b"x", 2)
    assert order.is_overtaken("in", "x", 1)
    for odd in ("\ud800", 7, None):
        assert not order.is_overtaken("in", odd, 2)
        assert order.is_overtaken("in", odd, 1)


def flagged(log: MemoryOutlet, place: str) -> set[int]:
    blocks = [decode_block(value) for value in log.values(BEACONS)]
    return {
        int(block.id_hash[at])
        for block in blocks
        if block.checkpoint == f"mid.{place}" and block.out_of_order
        for at in read_positions(block.out_of_order)
    }


def test_an_emitter_flags_what_was_overtaken_where_a_key_is_given() -> None:
    log, now_ms = MemoryOutlet(), time.time_ns() // 1_000_000
    with Emitter("clicks", "mid", outlet=lambda: log) as emitter:
        for name, when, key in (("a", 9, "k"), ("b", 5, "k"), ("c", 5, "l"), ("d", 1, None), ("e", 9, b"k")):
            assert emitter.received(name, now_ms + when, key=key)
        assert emitter.received("f", now_ms, key="k", replay="again")
        assert emitter.received("h", now_ms, key="k", replay="")
        assert emitter.sent("a", now_ms + 9, key="k", payload_crc=7)
        assert emitter.sent("b", now_ms + 5, key="k", payload_crc=7)
        assert emitter.sent("g", now_ms + 5, to="x", key="k")
    assert flagged(log, "in") == {hash_id("b")}
    assert flagged(log, "out") == {hash_id("b")}
    assert flagged(log, "out:x") == set()


class Record:
    """What `KafkaNode.key_of` looks at."""

    def __init__(self, topic: str, partition: int, key: bytes | None) -> None:
        self.topic, self.partition, self.key = (lambda: topic), (lambda: partition), (lambda: key)
        self.offset = lambda: 0


def test_a_kafka_node_takes_the_key_from_the_record() -> None:
    records: Sequence[Any] = [Record("t", 3, b"k"), Record("u", 3, b"k"), Record("t", 3, None)]

    def keys(order: Any) -> list[str | bytes | None]:
        with KafkaNode("clicks", "mid", outlet=MemoryOutlet, order=order) as node:
            return [node.key_of(cast("Message", record)) for record in records]

    assert keys(None) == [None, None, None]
    assert keys("key") == [b"t/k", b"u/k", None]
    assert keys("partition") == ["t/3", "u/3", "t/3"]
