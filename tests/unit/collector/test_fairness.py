"""What one pipeline's clients take up leaves room for those of others: bodies, queues and emitters."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector import emitters, fairness
from collector.batches import BeaconBatch, Seen
from collector.emitters import Emitters
from collector.fairness import SharedRoom, Workers
from lagloss import Emitter, MemoryOutlet
from lagloss_server.net.problem_details import Problem


def test_one_that_takes_all_it_gets_leaves_half_and_two_leave_a_third() -> None:
    room = SharedRoom(600)
    assert sum(room.take("a", 1) for _ in range(1_000)) == 300
    room = SharedRoom(600)
    assert Counter(name for _ in range(1_000) for name in "ab" if room.take(name, 1)) == {"a": 200, "b": 200}
    assert (room.used, room.take("c", 100)) == (400, True)
    for name in "ab":
        room.give_back(name, 200)
    assert room.used == 100


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=60))
def test_whoever_comes_finds_room_whatever_the_others_hold(steps: list[tuple[str, int, bool]]) -> None:
    room, held = SharedRoom(40), Counter[str]()
    for owner, amount, gives_back in steps:
        if gives_back:
            room.give_back(owner, held.pop(owner, 0))
        elif room.take(owner, amount):
            held[owner] += amount
        assert room.used == held.total() <= 40
    left = room.size - room.used
    assert left > 0
    assert room.take("newcomer", left // 2)


def test_work_waits_for_its_turn_for_so_long_and_a_client_that_has_gone_has_none_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "TURN_S", 0.1)
    done, go_on = list[str](), threading.Event()

    async def gone() -> bool:
        return True

    async def go() -> None:
        workers = Workers(threads=1)
        slow = asyncio.create_task(workers.run("p", None, lambda: go_on.wait(20)))
        await asyncio.sleep(0)
        for caller in ("p", "q"):  # one waits for the caller's turn, the other for a thread
            with pytest.raises(Problem, match="take too long") as late:
                await workers.run(caller, None, lambda: done.append("late"))
            assert late.value.status == 503
        go_on.set()
        assert await slow
        with pytest.raises(Problem, match="disconnected"):
            await workers.run("p", None, lambda: done.append("gone"), gone)
        await workers.run("p", None, lambda: done.append("in time"))
        await workers.run("q", None, lambda: done.append("in time"))
        workers.close()

    asyncio.run(go())
    assert done == ["in time", "in time"]


def batch(pipeline: str, node: str) -> BeaconBatch:
    return BeaconBatch(pipeline, node, False, [Seen("in", "m", 1_780_000_000_000)])


def served(pipelines: list[tuple[str, str]], max_emitters: int) -> Counter[str]:
    """Who is served, and who is refused (`-NAME`), when these nodes send a batch one after the other."""
    log, found = MemoryOutlet(), Counter[str]()

    def make(pipeline: str, node: str, first: bool) -> Emitter:
        return Emitter(pipeline, node, outlet=lambda: log, first=first, final=False)

    async def go() -> None:
        all_of_them = Emitters(make, 10, Workers(), max_emitters=max_emitters)
        for pipeline, node in pipelines:
            try:
                await all_of_them.put(batch(pipeline, node))
                found[pipeline] += 1
            except Problem as problem:
                found[f"-{pipeline}"] += problem.status == 503
            assert len(all_of_them) <= max_emitters
            assert all_of_them.waiting_beacons == 0
        await all_of_them.close()

    asyncio.run(go())
    return found


def test_a_pipeline_of_many_nodes_makes_room_for_the_nodes_of_others() -> None:
    crowd = [("crowd", f"n{number}") for number in range(6)]
    assert served([*crowd, ("quiet", "a"), ("quiet", "b")], 4) == {"crowd": 4, "-crowd": 2, "quiet": 2}
    # of two that have as many, neither gets more
    assert served([*crowd[:4], *(("quiet", f"n{at}") for at in range(4)), crowd[5]], 4) == {
        "crowd": 4,
        "-crowd": 1,
        "quiet": 2,
        "-quiet": 2,
    }


def test_an_emitter_without_beacons_for_long_makes_room_for_any_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emitters, "IDLE_S", 0.0)
    assert served([("crowd", f"n{number}") for number in range(6)], 4) == {"crowd": 6}
