"""The facts of a window."""

from __future__ import annotations

import json
import zlib

from lagloss.wire.sketch import Sketch
from lagloss_server.rules.facts import CheckpointFacts, Pattern, WindowFacts


def part(emitter: bytes, checkpoint: str, link: str) -> WindowFacts:
    return WindowFacts(
        patterns=(Pattern(3, 1, (1,), 10.0, 20.0),),
        checkpoints={checkpoint: CheckpointFacts(1, 0, 1, 0, Sketch())},
        read={(emitter, checkpoint, None): 1, (emitter, checkpoint, "again"): 1},
        corrupted={link: 1},
        checked={link: 2},
    )


def test_facts_are_packed_as_the_same_bytes_in_whatever_order_their_parts_were_read() -> None:
    parts = [part(b"b", "snk.in", "b->c"), part(b"a", "src.in", "a->b"), part(b"a", "src.out", "a->b")]
    assert WindowFacts.merged(parts).pack() == WindowFacts.merged(reversed(parts)).pack()


def test_facts_without_messages_out_of_order_are_packed_as_before_there_were_any() -> None:
    facts = WindowFacts(
        checkpoints={"a.in": CheckpointFacts(2, 0, 2), "b.in": CheckpointFacts(2, 0, 2, out_of_order=1)}
    )
    packed = json.loads(zlib.decompress(facts.pack()))["checkpoints"]
    assert (packed["a.in"][:4], len(packed["a.in"])) == ([2, 0, 2, 0], 5)
    assert packed["b.in"][5:] == [1]
    assert WindowFacts.unpack(facts.pack()).pack() == facts.pack()
    assert WindowFacts.merged([facts, facts]).checkpoints["b.in"].out_of_order == 2
