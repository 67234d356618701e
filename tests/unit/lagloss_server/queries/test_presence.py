"""Who was where in a window's blocks, against a slow and obvious count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import SAMPLE_ALL, BeaconBlock, hash_id, pack_ids
from lagloss_server.judging.arithmetic import missing_places
from lagloss_server.model.message_ids import escape_id
from lagloss_server.queries.matrix import Presence
from lagloss_server.queries.window_blocks import WindowBlocks
from tests.support.window_documents import chain

GRAPH = chain().graph
START_S = 1_795_250_400
NAMES = [f"message-{at}" for at in range(6)]
BEACONS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(GRAPH.checkpoints), st.booleans(), st.integers(-5, 500)),
    max_size=40,
)
Beacons = list[tuple[str, str, bool, int]]


def presence(beacons: Beacons) -> Presence:
    """One block a beacon, out of order where its lag is a multiple of 3; the first checkpoint's tell the name and an
    event time of as many seconds as its number."""
    blocks: dict[str, list[BeaconBlock]] = {}
    for seq, (name, checkpoint, is_replay, lag_ms) in enumerate(beacons):
        is_first = checkpoint in GRAPH.entrances
        block = BeaconBlock(
            "chain", checkpoint, bytes(16), seq, START_S, 1,
            np.array([hash_id(name)], np.uint64), np.array([lag_ms], np.float32),
            replay="again" if is_replay else None,
            event_offset_ms=np.array([1_000 * NAMES.index(name)], np.uint16) if is_first else None,
            message_ids=pack_ids([name.encode()]) if is_first else None,
            out_of_order=b"\0\0" if lag_ms % 3 == 0 else None,
        )  # fmt: skip
        blocks.setdefault(checkpoint, []).append(block)
    return Presence(WindowBlocks(GRAPH, START_S, blocks, SAMPLE_ALL))


@given(BEACONS)
def test_every_message_has_its_least_live_lag_its_duplicates_and_its_missing_places(beacons: Beacons) -> None:
    found = presence(beacons)
    messages = {message.id_hash: message for message in found.messages(found.select())}
    assert set(messages) == {hash_id(name) for name, *_ in beacons}
    for name in {name for name, *_ in beacons}:
        message = messages[hash_id(name)]
        mine = [beacon for beacon in beacons if beacon[0] == name]
        points = {checkpoint for _, checkpoint, _, _ in mine}
        live = {point: [lag for _, at, replay, lag in mine if at == point and not replay] for point in points}
        every = {point: [lag for _, at, _, lag in mine if at == point] for point in points}
        assert message.lags_ms == {point: float(min(live[point] or every[point])) for point in points}
        assert message.duplicates == {point: len(lags) - 1 for point, lags in live.items() if len(lags) > 1}
        late = {at for _, at, replay, lag in mine if not replay and lag % 3 == 0}
        assert message.out_of_order == tuple(point for point in GRAPH.checkpoints if point in late)
        assert message.missing == missing_places(GRAPH, GRAPH.mask(points))
        assert message.message_id == (name if GRAPH.entrances[0] in points else f"{hash_id(name):016x}")


@given(BEACONS)
def test_selections_are_those_of_the_rows(beacons: Beacons) -> None:
    found = presence(beacons)
    every = found.messages(found.select())
    by_place = Counter(label for message in every for label in message.missing_at)
    assert {one.id_hash for one in found.messages(found.select(only="missing"))} == {
        one.id_hash for one in every if one.missing
    }
    assert {one.id_hash for one in found.messages(found.select(only="duplicate"))} == {
        one.id_hash for one in every if one.duplicates
    }
    assert {one.id_hash for one in found.messages(found.select(only="out-of-order"))} == {
        one.id_hash for one in every if one.out_of_order
    }
    for label in by_place:
        assert all(label in one.missing_at for one in found.messages(found.select(where=label)))
        assert found.select(where=label).size == by_place[label]


LATE = [
    *((f"message-{at}", checkpoint, False, lag) for at, checkpoint, lag in (
        (0, "src.in", 5), (0, "src.out", 10), (0, "mid.in", 9_000), (0, "mid.out", 9_010), (0, "snk.out", 9_500),
        (1, "src.in", 5), (1, "src.out", 10), (1, "mid.in", 20), (1, "mid.out", 30), (1, "snk.out", 5_000),
        (2, "src.in", 5_900), (2, "src.out", 6_000), (2, "mid.in", 6_010), (2, "mid.out", 6_020), (2, "snk.out", 6_030),
        (3, "src.in", 5), (3, "snk.out", 30),
    )),
    ("message-3", "snk.out", True, 70_000),
]  # fmt: skip


def test_late_messages_come_worst_first_with_the_hop_that_held_them() -> None:
    found = presence(LATE)
    late = found.matrix(found.select(only="late"))
    assert [(one.message_id, str(one.late)) for one in late.messages] == [
        ("message-0", "9.5 s, 9 s of it at link src->mid"),
        ("message-2", "6 s, 5.9 s of it before the first node"),
    ]
    first = late.document()["messages"][0]
    assert (first["lag_ms"], first["hop"], first["hop_ms"]) == (9_500.0, "link src->mid", 8_990.0)
    assert "lag_ms" not in found.matrix(found.select()).document()["messages"][1]


@given(BEACONS)
def test_rows_come_by_event_time_and_those_with_something_missing_first_if_asked(beacons: Beacons) -> None:
    found = presence(beacons)
    rows = found.select()
    times = found.event_ms[rows].tolist()
    assert times == sorted(times)
    is_missing = [bool(one.missing) for one in found.messages(found.missing_first(rows))]
    assert is_missing == sorted(is_missing, reverse=True)


def test_a_text_is_part_of_a_name_or_the_whole_hash() -> None:
    found = presence([(name, GRAPH.entrances[0], False, 1) for name in NAMES])
    for text, count in (("SAGE-3", 1), ("message", 6), (f"{hash_id(NAMES[2]):016x}", 1), ("nobody", 0)):
        assert found.select(text=text).size == count


def test_the_blocks_are_gone_through_once_however_many_rows_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = presence([(name, checkpoint, False, 1) for name in NAMES for checkpoint in GRAPH.checkpoints])
    rows = found.select()
    found.messages(rows[:1])
    seen: list[str] = []
    monkeypatch.setattr(WindowBlocks, "beacons", lambda _, checkpoint: seen.append(checkpoint) or iter(()))
    names = [message.message_id for row in rows for message in found.messages(np.array([row]))]
    assert (sorted(names), seen) == (NAMES, [])


@given(st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=20), st.data())
def test_names_are_those_that_the_first_checkpoint_told(names: list[str], data: st.DataObject) -> None:
    told = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    halves = [half for half in (told[: len(told) // 2], told[len(told) // 2 :]) if half]
    blocks = [
        BeaconBlock(
            "chain", GRAPH.entrances[0], bytes(16), seq, START_S, 1,
            np.array([hash_id(name) for name in half], np.uint64), np.zeros(len(half), np.float32),
            message_ids=pack_ids(name.encode() for name in half),
        )
        for seq, half in enumerate(halves)
    ]  # fmt: skip
    found = WindowBlocks(GRAPH, START_S, {GRAPH.entrances[0]: blocks}, SAMPLE_ALL)
    wanted = np.array([hash_id(name) for name in names], np.uint64)
    assert found.names(wanted) == [escape_id(name) if name in told else f"{hash_id(name):016x}" for name in names]
