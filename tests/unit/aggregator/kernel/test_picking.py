"""The messages that the kernel picks are described as their blocks have them, and stand for all of their kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lagloss.wire.format import hash_id
from lagloss_server.judging.picked import (
    CORRUPTED,
    DEAD,
    GOOD,
    GOOD_ROOM,
    LATE,
    LATEST,
    MISSING,
    NOWHERE,
    ROOM,
    SEEN_MS,
    PickedMessages,
    blank,
    good_limits,
)
from tests.support.faulty_worlds import START_MS, FaultyWorld, Harm, Journey, faulty_world

ENDS = ("ga.out", "fb.out", "tt.out")


def of_name(world: FaultyWorld) -> dict[int, Journey]:
    return {hash_id(journey.message_id): journey for journey in world.journeys}


def late_of(world: FaultyWorld) -> list[Journey]:
    return [j for j in world.journeys if j.seen[-1].checkpoint in ENDS and j.seen[-1].lag_ms > 5_000]


@pytest.mark.parametrize("harm", ["lost", "late", "dead"])
def test_each_picked_message_is_described_as_it_went(harm: Harm) -> None:
    world = faulty_world("process", harm, 1)
    picked, journeys = world.facts.picked, of_name(world)
    assert len(picked) > 500
    for row, id_hash in enumerate(picked["ids"].tolist()):
        journey = journeys[id_hash]
        seen = {sighting.checkpoint: sighting for sighting in journey.seen}
        assert picked.names[row] == journey.message_id
        assert world.graph.names(picked.masks[row]) == tuple(name for name in world.graph.checkpoints if name in seen)
        assert START_MS + int(picked["event_ms"][row]) == journey.event_ms
        for at, name in enumerate(picked.checkpoints):
            code, tenths = int(picked["emitter"][row, at]), int(picked["seen"][row, at])
            if name not in seen:
                assert (code, tenths) == (-1, NOWHERE)
            else:
                assert picked.emitters[code] == seen[name].process.emitter
                assert abs(START_MS + SEEN_MS * tenths - journey.event_ms - seen[name].lag_ms) <= SEEN_MS + 1
        if picked["what"][row] & DEAD:
            assert picked.reasons[picked["reason"][row]] == "unreadable"


def test_the_missing_are_named_with_who_saw_them_last() -> None:
    world = faulty_world("process", "lost", 2)
    journeys = of_name(world)
    lost = {hash_id(j.message_id) for j in world.journeys if j.seen[-1].checkpoint not in ENDS}
    assert {missing.id_hash for missing in world.facts.missing} == lost
    for missing in world.facts.missing:
        assert missing.emitter == journeys[missing.id_hash].seen[-1].process.emitter
        assert missing.name == journeys[missing.id_hash].message_id


def test_late_messages_name_the_hop_that_held_them_and_the_latest_are_among_them() -> None:
    world = faulty_world("version", "late", 3)
    picked, journeys = world.facts.picked, of_name(world)
    late = late_of(world)
    assert picked.totals["late"] == len(late)
    worst = sorted(late, key=lambda journey: -journey.seen[-1].lag_ms)[: ROOM[LATEST]]
    rows = picked.rows(LATEST)
    assert {int(picked["ids"][row]) for row in rows} == {hash_id(journey.message_id) for journey in worst}
    held = Counter(picked.hops[picked["hop"][row]] for row in picked.rows(LATE).tolist())
    assert held.most_common(1)[0][0] == f"node {world.fault.node}"
    for row in rows.tolist():
        journey = journeys[int(picked["ids"][row])]
        assert picked["lag_ms"][row] == pytest.approx(journey.seen[-1].lag_ms, rel=1e-5)
        stays = [after.lag_ms - before.lag_ms for before, after in zip(journey.seen, journey.seen[1:], strict=False)]
        assert picked["hop_ms"][row] == pytest.approx(max(journey.seen[0].lag_ms, *stays), rel=1e-3)


def test_nothing_is_picked_where_all_is_well() -> None:
    world = faulty_world("process", "dead", 4)
    world = FaultyWorld(
        world.fault, [j for j in world.journeys if j.seen[-1].checkpoint in ENDS], (), world.facts, world.graph
    )
    assert len(world.counted(lambda _: 0).picked) == 0


def test_a_window_keeps_so_many_of_each_kind_and_those_that_are_kept_stand_for_all() -> None:
    world = faulty_world("vendor", "late", 5, messages=9_000)
    picked = world.facts.picked
    assert picked.rows(LATE).size == ROOM[LATE] < picked.totals["late"]
    limits = good_limits(picked.good)
    kept = Counter(picked.masks[row] for row in picked.rows(GOOD).tolist())
    assert kept.keys() == picked.good.keys()
    expected = {mask: count * limits[mask] / 2**64 for mask, count in picked.good.items()}
    assert all(abs(kept[mask] - expected[mask]) < 5 * expected[mask] ** 0.5 for mask in kept)
    assert GOOD_ROOM * 0.99 < sum(expected.values()) <= GOOD_ROOM + 50 * len(expected)
    late = late_of(world)
    share = np.mean([journey.message_id.startswith("ios-") for journey in late])
    found = np.mean([str(picked.names[row]).startswith("ios-") for row in picked.rows(LATE).tolist()])
    assert abs(found - share) < 0.08


@pytest.mark.parametrize("harm", ["lost", "late", "dead", "corrupted"])
def test_whatever_the_parts_of_a_window_the_same_is_kept_byte_for_byte(harm: Harm) -> None:
    world = faulty_world("process", harm, 6, messages=9_000)
    whole = world.facts.picked
    bad = set(whole["ids"][(whole["what"] & (MISSING | LATE | DEAD | CORRUPTED)) > 0].tolist())
    assert bad
    assert whole.rows(GOOD).size

    in_one: Callable[[int], int] = bad.__contains__  # in the other all is well
    for part_of in (lambda id_hash: id_hash >> 63, lambda id_hash: -id_hash % 7, in_one):
        assert world.counted(part_of).picked.pack() == whole.pack()


def test_each_sighting_can_be_of_a_process_of_its_own() -> None:
    """As when every message starts a process; a window keeps some thousand messages, and each has many checkpoints."""
    rows, width = 3_000, 12
    codes = np.arange(rows * width, dtype=np.int32).reshape(rows, width)
    numbers = {**blank(rows, width), "ids": np.arange(rows, dtype=np.uint64), "emitter": codes}
    part = PickedMessages(
        checkpoints=tuple(f"n{index}.in" for index in range(width)),
        emitters=tuple(code.to_bytes(16, "big") for code in range(rows * width)),
        names=(None,) * rows,
        masks=(1,) * rows,
        numbers=numbers,
        totals={"missing": rows},
    )
    merged = PickedMessages.merged([part, replace(part, numbers={**numbers, "ids": numbers["ids"] + np.uint64(rows)})])
    again = PickedMessages.unpack(merged.pack())
    assert [again.emitters[code] for code in again["emitter"][rows + 7].tolist()] == [
        part.emitters[code] for code in codes[7].tolist()
    ]


def test_what_is_packed_is_unpacked() -> None:
    picked = faulty_world("process", "lost", 6, messages=3_000).facts.picked
    again = PickedMessages.unpack(picked.pack())
    assert (again.checkpoints, again.emitters, again.masks, again.totals) == (
        picked.checkpoints,
        picked.emitters,
        picked.masks,
        picked.totals,
    )
    assert all((again[name] == picked[name]).all() for name in picked.numbers)


def test_corrupted_messages_are_picked_with_their_link() -> None:
    world = faulty_world("process", "corrupted", 7)
    picked = world.facts.picked
    assert picked.totals["corrupted"] == sum(world.facts.corrupted.values()) > 0
    links = {picked.links[picked["link"][row]] for row in picked.rows(CORRUPTED).tolist()}
    assert links == set(world.facts.corrupted)
