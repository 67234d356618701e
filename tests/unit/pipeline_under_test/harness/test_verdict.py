"""Ledger and lagloss agree only where they say the same of every message; whatever differs is told, with its ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lagloss.wire.format import SAMPLE_ALL, BeaconBlock, hash_id, pack_ids
from lagloss_server.model.definition import load_definition
from lagloss_server.model.window import rfc3339
from lagloss_server.queries.window_blocks import WindowBlocks
from lagloss_server.store.store import MissingMessage
from pipeline_under_test.harness.ledger import Fate, LedgerEntry
from pipeline_under_test.harness.measured import Measured, as_measured
from pipeline_under_test.harness.verdict import LATEST_S, Verdict, compared
from pipeline_under_test.stream.topology import DEFINITION
from pipeline_under_test.stream.truth import StreamTruth
from tests.support.window_documents import window_of as listed

START_S = 1_795_250_400
CLICKS = load_definition(DEFINITION)
GRAPH = CLICKS.graph
LATEST = START_S + 60 + 60 + 15 * 60 + LATEST_S
LINK, NODE = "link event-norm->event-router", "node conn-ga"
TO_GA, TO_FB = "link event-router->conn-ga", "link event-router->conn-fb"
Trail = tuple[tuple[tuple[Fate, str], ...], tuple[str, ...], str, tuple[str, ...]]
"""What the ledger says of a message besides `answered`, where its beacons are, its outcome, where it is lost."""
NORMAL = ("col-service.in", "col-service.out", "event-norm.in", "event-norm.out")
ROUTED = (*NORMAL, "event-router.in", "event-router.out:conn-ga", "event-router.out:conn-fb")
BOTH: tuple[tuple[Fate, str], ...] = (("routed", TO_GA), ("routed", TO_FB))
GA: tuple[tuple[Fate, str], ...] = (("delivered", "vendor ga"),)
FB: tuple[tuple[Fate, str], ...] = (("delivered", "vendor fb"),)
OUT_GA, OUT_FB = ("conn-ga.in", "conn-ga.out"), ("conn-fb.in", "conn-fb.out")
TRAILS: dict[str, Trail] = {
    "delivered to both": ((*BOTH, *GA, *FB), (*ROUTED, *OUT_GA, *OUT_FB), "delivered", ()),
    "delivered twice": ((*BOTH, *GA, *GA, *FB), (*ROUTED, *OUT_GA, "conn-ga.out", *OUT_FB), "delivered", ()),
    "a second delivery that was never acknowledged": (
        (*BOTH, *GA, *GA, *FB),
        (*ROUTED, *OUT_GA, *OUT_FB),
        "delivered",
        (),
    ),
    "filtered": ((("filtered", "node event-norm"),), (*NORMAL[:3], "event-norm.filtered"), "filtered", ()),
    "dead": ((("dead", "node event-norm"),), (*NORMAL[:3], "event-norm.dead"), "dead", ()),
    "dead for one vendor": (
        (*BOTH, *GA, ("dead", "node conn-fb")),
        (*ROUTED, *OUT_GA, "conn-fb.in", "conn-fb.dead"),
        "delivered",
        (),
    ),
    "lost for all": ((("lost", LINK),), NORMAL, "lost", (LINK,)),
    "lost for one vendor": (
        (*BOTH, ("lost", NODE), *FB),
        (*ROUTED, "conn-ga.in", *OUT_FB),
        "lost",
        (NODE,),
    ),
    "pending": ((), NORMAL, "pending", ()),
    "pending for one vendor": ((*BOTH, *FB), (*ROUTED, *OUT_FB), "pending", ()),
    "with the global retrier": (
        (*BOTH, *FB),
        (*ROUTED, "conn-ga.in", "conn-ga.out:global-retrier", "global-retrier.in", *OUT_FB),
        "pending",
        (),
    ),
}
WORLDS = st.lists(st.sampled_from(sorted(TRAILS)), min_size=1, max_size=12)


def truth_of(kinds: Iterable[str]) -> StreamTruth:
    found = StreamTruth()
    for number, kind in enumerate(kinds):
        facts: list[tuple[Fate, str]] = [("generated", ""), ("answered", ""), *TRAILS[kind][0]]
        found.add(LedgerEntry(fate, f"m{number}", START_S * 1000, place) for fate, place in facts)
    return found


def measured_of(
    kinds: Iterable[str], changes: Mapping[str, Any] | None = None, *, keeps_names: bool = True, lost: str = "lost"
) -> Measured:
    """What lagloss says where it is right, but for `changes` of the window's document; `lost`: what it calls the
    lost."""
    blocks: dict[str, list[BeaconBlock]] = {}
    missing, trails = [], [TRAILS[kind] for kind in kinds]
    for number, (_, checkpoints, outcome, places) in enumerate(trails):
        name = f"m{number}"
        if outcome in ("lost", "pending"):
            kind = lost if outcome == "lost" else outcome
            missing.append(MissingMessage(START_S, hash_id(name), name, kind, list(places), checkpoints[-1], 0.0))
        for seq, checkpoint in enumerate(checkpoints):
            is_first = checkpoint in GRAPH.entrances
            block = BeaconBlock(
                "clicks", checkpoint, bytes(16), number * 100 + seq, START_S, 1,
                np.array([hash_id(name)], np.uint64), np.array([1], np.float32),
                event_offset_ms=np.array([0], np.uint16) if is_first else None,
                message_ids=pack_ids([name.encode()]) if is_first else None,
            )  # fmt: skip
            blocks.setdefault(checkpoint, []).append(block)
    window = listed(window_of(trails) | dict(changes or {}))
    return as_measured(window, WindowBlocks(GRAPH, START_S, blocks, SAMPLE_ALL), missing if keeps_names else [])


def window_of(trails: list[Trail]) -> dict[str, Any]:
    count = {what: sum(trail[2] == what for trail in trails) for what in ("delivered", "dead", "filtered", "pending")}
    lost = {place: sum(place in trail[3] for trail in trails) for place in (LINK, NODE)}
    in_all = sum(lost.values())
    found: dict[str, Any] = {"window_start": rfc3339(START_S), "state": "closed", "verdict": "ok", **count}
    found |= {"messages": len(trails), "lost": {"min": in_all, "max": in_all}, "reasons": []}
    found["nodes"] = [{"name": "conn-ga", "lost": {"min": lost[NODE], "max": lost[NODE]}}]
    link = {"from": "event-norm", "to": "event-router", "corrupted": None}
    found["links"] = [{**link, "lost": {"min": lost[LINK], "max": lost[LINK]}}]
    return found


def verdict_on(truth: StreamTruth, measured: Measured | None, now_s: float = LATEST) -> Verdict:
    windows = [measured.window] if measured is not None else []
    read: Callable[[Any], Any] = lambda _window: measured  # noqa: E731 (it is handed on)
    return compared(CLICKS, truth, windows, read, now_s)


def told(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    return {difference.what: difference.ids for difference in verdict.differences}


@given(WORLDS)
def test_a_lagloss_that_is_right_agrees_with_the_ledger(kinds: list[str]) -> None:
    assert verdict_on(truth_of(kinds), measured_of(kinds)).differences == ()


@given(WORLDS, st.sampled_from(sorted(TRAILS)), st.data())
def test_a_lagloss_that_is_wrong_about_one_message_is_told_which(
    kinds: list[str], other: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(kinds) - 1))
    wrong = [*kinds[:place], other, *kinds[place + 1 :]]
    differing = TRAILS[kinds[place]][2:] != TRAILS[other][2:]
    differences = told(verdict_on(truth_of(kinds), measured_of(wrong)))
    assert {name for names in differences.values() for name in names} - {f"m{place}"} == set()
    if differing:
        assert any(names == (f"m{place}",) for names in differences.values())


def test_a_duplicate_that_the_ledger_does_not_know_is_a_difference_and_the_other_way_round_is_none() -> None:
    once, twice = ["delivered to both"], ["delivered twice"]
    assert told(verdict_on(truth_of(once), measured_of(twice))) == {"duplicates at conn-ga.out": ("m0",)}
    assert verdict_on(truth_of(twice), measured_of(once)).agrees


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"delivered": 3}, ["number of delivered"]),
        ({"messages": 5}, ["number of messages"]),
        ({"lost": {"min": 0, "max": 1}}, ["number of lost", "number of pending"]),
        ({"pending": 1}, ["number of pending"]),
        ({"links": []}, [f"number of messages lost at {LINK}"]),
        ({"nodes": [{"name": "conn-ga", "lost": {"min": 1, "max": 1}}]}, [f"number of messages lost at {NODE}"]),
    ],
)
def test_a_window_whose_numbers_are_not_those_of_its_blocks_differs(changes: dict[str, Any], what: list[str]) -> None:
    kinds = ["delivered to both", "delivered to both", "lost for all", "dead"]
    assert list(told(verdict_on(truth_of(kinds), measured_of(kinds, changes)))) == what


@pytest.mark.parametrize("kinds", [["lost for all", "lost for one vendor", "dead"], ["pending", "delivered to both"]])
def test_messages_beyond_those_that_a_window_names_are_lost_or_pending_as_its_numbers_say(kinds: list[str]) -> None:
    assert verdict_on(truth_of(kinds), measured_of(kinds, keeps_names=False)).differences == ()


def test_what_is_overdue_is_pending_to_the_ledger() -> None:
    kinds = ["pending", "lost for all"]
    changes: dict[str, Any] = {"pending": 0, "lost": {"min": 1, "max": 2}}
    changes["links"] = [{"from": "event-norm", "to": "event-router", "corrupted": 0, "lost": {"min": 1, "max": 2}}]
    assert verdict_on(truth_of(kinds), measured_of(kinds, changes)).agrees


def test_what_is_lost_perhaps_at_a_node_that_died_is_lost_to_the_ledger_and_elsewhere_it_is_not() -> None:
    kinds = ["lost for one vendor", "delivered to both", "lost for one vendor"]
    interval = {"min": 0, "max": 2}
    unsure = {"lost": interval, "nodes": [{"name": "conn-ga", "lost": interval}]}
    for keeps_names in (True, False):
        died = measured_of(kinds, unsure | {"reasons": ["crash:conn-ga"]}, lost="perhaps", keeps_names=keeps_names)
        assert verdict_on(truth_of(kinds), died).differences == ()
    more = measured_of(kinds, unsure | {"reasons": ["crash:conn-ga"], "lost": {"min": 0, "max": 3}}, lost="perhaps")
    assert told(verdict_on(truth_of(kinds), more)).keys() == {"number of pending"}
    alive = measured_of(kinds, unsure, lost="perhaps")
    assert {"lost", "number of lost", f"number of messages lost at {NODE}"} <= told(
        verdict_on(truth_of(kinds), alive)
    ).keys()


def test_what_nobody_answered_for_may_or_may_not_have_come_in() -> None:
    kinds = ["delivered to both", "lost for all"]
    for unanswered in (["m1"], ["m1", "m2"]):
        truth = truth_of(["delivered to both"])
        truth.add(LedgerEntry("unanswered", name, START_S * 1000) for name in unanswered)
        assert verdict_on(truth, measured_of(kinds)).agrees
    assert not verdict_on(truth_of(["delivered to both"]), measured_of(kinds)).agrees


def test_what_was_changed_on_the_way_is_counted_by_link() -> None:
    truth = truth_of(["delivered to both"])
    truth.add([LedgerEntry("corrupted", "m0", START_S * 1000, TO_GA)])
    link = {"from": "event-router", "to": "conn-ga", "corrupted": 1, "lost": {"min": 0, "max": 0}}
    assert verdict_on(truth, measured_of(["delivered to both"], {"links": [link]})).agrees
    assert list(told(verdict_on(truth, measured_of(["delivered to both"])))) == ["number of corrupted messages"]


@pytest.mark.parametrize("changes", [{"state": "open"}, {"pending": 1}, {"verdict": "unknown"}])
def test_a_window_that_may_still_change_is_waited_for_until_lagloss_has_had_its_time(changes: dict[str, Any]) -> None:
    truth = truth_of(["delivered to both", "delivered to both"])
    measured = measured_of(["delivered to both", "pending"], changes)
    early = verdict_on(truth, measured, LATEST - 1)
    assert (early.waiting, early.differences) == ((START_S,), ())
    late = verdict_on(truth, measured)
    assert late.waiting == ()
    assert not late.agrees


def test_a_window_that_only_one_of_them_knows_differs() -> None:
    assert list(told(verdict_on(truth_of(["dead"]), None))) == ["state"]
    assert "messages" in told(verdict_on(StreamTruth(), measured_of(["dead"])))


def test_the_document_adds_up_over_windows() -> None:
    kinds = ["lost for all", "lost for one vendor", "delivered twice", "dead"]
    document = verdict_on(truth_of(kinds), measured_of(kinds)).document()
    assert document["agree"]
    assert document["injected"] | {"lost_at": None} == {
        "messages": 4,
        "lost": 2,
        "pending": 0,
        "delivered": 1,
        "dead": 1,
        "filtered": 0,
        "duplicates": 1,
        "lost_at": None,
    }
    assert document["injected"]["lost_at"] == {LINK: 1, NODE: 1}
    assert document["measured"]["lost"] == {"min": 2, "max": 2}
    assert document["measured"]["lost_at"] == {LINK: {"min": 1, "max": 1}, NODE: {"min": 1, "max": 1}}
    assert document["measured"]["duplicates"] == 1
    assert [row["window_start"] for row in document["windows"]] == [rfc3339(START_S)]
