"""Names that no definition has: kept up to a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.reports import undeclared
from aggregator.reports.undeclared import LIMITS, FairRoom, Kind, Name, UndeclaredNames, is_strange, strange_names
from lagloss.wire.format import Progress, Tally
from lagloss.wire.sketch import Sketch

KNOWN = frozenset(["src.in", "src.out.a", "src.out.b", "snk.in"])


def names(kind: Kind, count: int, first: int = 0) -> list[Name]:
    return [Name(kind, "p", "src.in", str(at)) for at in range(first, first + count)]


@pytest.mark.parametrize("kind", LIMITS)
def test_an_emitter_may_bring_so_many_names_and_others_have_room_still(kind: Kind) -> None:
    strangers, limit = UndeclaredNames(), LIMITS[kind].an_emitter
    admitted = [strangers.admit(name, b"broken", 1) for name in names(kind, limit + 1)]
    assert admitted == [True] * limit + [False]
    assert strangers.admit(Name(kind, "p", "mine"), b"good", 2)
    assert strangers.fresh[Name(kind, "p", "mine")] == (b"good", 2)


def test_a_name_that_is_kept_is_anybodys() -> None:
    (name, *others) = names("checkpoint", LIMITS["checkpoint"].an_emitter + 1)
    strangers = UndeclaredNames(dict.fromkeys(others, b"broken") | {name: b"good"})
    assert strangers.admit(name, b"broken", 1)
    assert strangers.fresh == {}


def test_all_emitters_together_may_bring_so_many_names() -> None:
    limit = LIMITS["pipeline"].in_all
    strangers = UndeclaredNames({name: name.name.encode() for name in names("pipeline", limit)})
    assert not strangers.admit(Name("pipeline", "one more"), b"good", 1)
    assert strangers.admit(Name("checkpoint", "p", "src.in"), b"good", 1)


@pytest.mark.parametrize(
    ("checkpoint", "strange"),
    [("src.in", False), ("src.out", False), ("snk.out", False), ("src.dead", True), ("nobody.out", True), ("", True)],
)
def test_work_in_hand_of_a_known_node_is_no_stranger(checkpoint: str, strange: bool) -> None:
    assert is_strange(checkpoint, KNOWN) is strange


def test_lanes_and_replays_are_strangers_always() -> None:
    assert list(strange_names("p", Progress("src.in", "topic/0", 1), KNOWN)) == [Name("lane", "p", "src.in", "topic/0")]
    assert list(strange_names("p", Progress("src.out", "", 1), KNOWN)) == []
    tally = Tally("src.dead", 0, 1, 0, Sketch(), replay="again")
    assert list(strange_names("p", tally, KNOWN)) == [
        Name("checkpoint", "p", "src.dead"),
        Name("replay", "p", "", "again"),
    ]


def test_a_pipeline_may_have_so_many_emitters_and_others_have_room_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undeclared, "EMITTERS_A_PIPELINE", 3)
    names = UndeclaredNames(emitters={"flooded": 1}, declared={"flooded", "other"})
    assert [names.admit_emitter("flooded") for _ in range(3)] == [True, True, False]
    assert names.admit_emitter("other")


def test_pipelines_without_definition_share_the_room_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undeclared, "EMITTERS_A_PIPELINE", 3)
    names = UndeclaredNames(emitters={"forged-1": 1, "forged-2": 1}, declared={"real"})
    assert [names.admit_emitter(f"forged-{at}") for at in (3, 4)] == [True, False]
    assert [names.admit_emitter("real") for _ in range(4)] == [True, True, True, False]


def test_who_fills_the_room_for_names_leaves_the_others_their_share() -> None:
    limit = LIMITS["lane"]
    flood = {Name("lane", "flooded", "src.in", str(at)): at.to_bytes(4) for at in range(limit.in_all)}
    strangers = UndeclaredNames(flood, declared={"flooded", "other"})
    assert not strangers.admit(Name("lane", "flooded", "src.in", "one more"), b"new", 1)
    assert strangers.admit(Name("lane", "other", "src.in", "t/0"), b"new", 1)


@given(st.integers(1, 30), st.lists(st.integers(0, 5)))
def test_a_room_is_bounded_and_refuses_nobody_who_has_less_than_a_share(in_all: int, payers: list[int]) -> None:
    room = FairRoom(in_all)
    for number in payers:
        payer, before = str(number), room.by_payer[str(number)]
        if room.has_room(payer, 6):
            room.take(payer)
        else:
            assert before >= in_all // 6
            assert room.taken >= in_all
        assert room.taken == sum(room.by_payer.values())
        assert room.taken <= 2 * in_all
