"""The facts of a window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import SAMPLE_ALL
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.facts import CheckpointFacts, Pattern, WindowFacts


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


def test_messages_out_of_order_are_packed_and_add_up() -> None:
    facts = WindowFacts(
        checkpoints={"a.in": CheckpointFacts(2, 0, 2), "b.in": CheckpointFacts(2, 0, 2, out_of_order=1)}
    )
    assert WindowFacts.unpack(facts.pack()).checkpoints["b.in"].out_of_order == 1
    assert WindowFacts.unpack(facts.pack()).pack() == facts.pack()
    assert WindowFacts.merged([facts, facts]).checkpoints["b.in"].out_of_order == 2


COUNTS = st.integers(0, 1 << 40)
NAMES = st.text(max_size=8)
SKETCHES = st.dictionaries(st.integers(9_900, 10_400), COUNTS, max_size=5).map(Sketch.from_bins)
TIMES = st.floats(0, 1e13)
FACTS = st.builds(
    WindowFacts,
    patterns=st.lists(
        st.builds(Pattern, st.integers(0, 1 << 70), COUNTS, st.lists(COUNTS, max_size=2).map(tuple), TIMES, TIMES)
        | st.builds(Pattern, st.integers(0, 7), COUNTS, st.just((1,))),
        max_size=3,
    ).map(tuple),
    checkpoints=st.dictionaries(
        NAMES, st.builds(CheckpointFacts, COUNTS, COUNTS, COUNTS, st.none() | COUNTS, SKETCHES, st.integers(0, 2))
    ),
    arrivals=st.lists(SKETCHES, max_size=2).map(tuple),
    source_arrivals=st.lists(SKETCHES, max_size=2).map(tuple),
    durations=st.dictionaries(NAMES, SKETCHES, max_size=3),
    read=st.dictionaries(st.tuples(st.binary(max_size=16), NAMES, st.none() | NAMES), COUNTS, max_size=3),
    strangers=st.dictionaries(NAMES, COUNTS, max_size=2),
    corrupted=st.dictionaries(NAMES, COUNTS, max_size=2),
    checked=st.dictionaries(NAMES, COUNTS, max_size=2),
    reasons=st.dictionaries(NAMES, st.dictionaries(NAMES, st.integers(1, 9), max_size=2), max_size=2),
    quarantined=st.frozensets(NAMES, max_size=2),
    sample=st.integers(1, SAMPLE_ALL),
    cuts=st.lists(TIMES, max_size=2).map(tuple),
    proven=st.booleans(),
)


@given(FACTS)
def test_facts_come_back_as_they_were_packed(facts: WindowFacts) -> None:
    after = WindowFacts.unpack(facts.pack())
    assert after._document() == facts._document()
    assert after.pack() == facts.pack()
