"""Windows proven from tallies: never against the beacons, and the same result where nothing was doubled."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import CutInsidePattern, judge
from lagloss_server.judging.evidence import EmitterState, Evidence, TallyState
from lagloss_server.judging.facts import WindowFacts
from lagloss_server.judging.tally_proof import proven_facts, proves, sized_links
from lagloss_server.model.definition import Definition
from lagloss_server.model.graph import Graph
from tests.oracle import oracle
from tests.oracle.evidence import World
from tests.oracle.plan import START_S, Plan
from tests.oracle.topologies import TOPOLOGIES
from tests.oracle.worlds import build_world, draw_plan
from tests.support.in_memory import follow, known_in_memory

MISLEADING = {"stale_tallies", "unreported", "blocks_missing", "aged_out"}
"""What a proof cannot know (emitters that count less than they send), and what it knows better than the beacons: those
that were lost in the log."""
ALLOWED = ("other_windows", "filtered", "dead", "several_emitters", "unchanged_tallies", "ahead_tallies", "huge_lags")


def proven(world: World) -> dict[str, Any] | None:
    """The result of the window from its tallies alone, or None where they prove nothing."""
    name, known = known_in_memory(world, START_S)
    graph, evidence = known.graph(name, START_S), known.evidence(name, START_S)
    if not proves(graph, evidence):
        return None
    sketches = {
        (emitter, checkpoint, replay or None): Sketch.from_bytes(found.tally.lag_sketch)
        for (owner, start, emitter, checkpoint, replay), found in follow(world.reports).tallies.items()
        if (owner, start) == (name, START_S)
    }
    facts = proven_facts(graph, [(tally, sketches[tally.account]) for tally in evidence.tallies])
    return judge(graph, WindowFacts.unpack(facts.pack()), evidence).document()


def test_what_is_proven_is_never_missing() -> None:
    found = 0
    for seed in range(200):
        plan = draw_plan(random.Random(10_000 + seed))
        world = build_world(plan)
        if plan.phenomena & MISLEADING or proven(world) is None:
            continue
        found += 1
        expected = oracle.judge(world, START_S)
        assert expected["lost"]["max"] == expected["pending"] == expected["unexplained"] == 0
    assert found > 2


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_proven_window_is_what_its_beacons_say(topology: str) -> None:
    found = 0
    for seed, extra in itertools.product(range(2), ALLOWED):
        world = build_world(Plan(topology, 8, 8, frozenset({extra}), seed))
        document, expected = proven(world), oracle.judge(world, START_S)
        if document is None:
            continue
        found += 1
        assert document.pop("proof") == "tallies"
        expected.pop("proof")
        assert document.pop("reasons_by_node") is None
        expected.pop("reasons_by_node")
        for row in (*document["checkpoints"], *expected["checkpoints"]):
            row.pop("duplicates")
        for row in (*document["nodes"], *expected["nodes"]):
            row.pop("process_duration_ms")
        for row in (*document["links"], *expected["links"]):
            row.pop("queue_time_ms")
            row.pop("corrupted")
            row.pop("checked")
        assert document == expected
    assert found or topology not in ("chain", "alone", "cut_chain"), (
        "elsewhere most worlds let messages take several exits"
    )


def evidence(**counts: tuple[int, int]) -> tuple[Graph, Evidence]:
    """Two nodes a -> b, all final; `a_in=(beacons, id_sum)`."""
    spec = {"nodes": [{"name": "a", "to": ["b"]}, {"name": "b"}]}
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "p"}, "spec": spec}
    emitters = [EmitterState(node.encode() * 16, node, 0, 200_000, False, 180, 200_000, 120) for node in "ab"]
    tallies = [
        TallyState(place[0].encode() * 16, place[0], place.replace("_", "."), None, n, 0, id_sum=id_sum)
        for place, (n, id_sum) in counts.items()
    ]
    return Definition.model_validate(document).graph, Evidence(60, 200_000, emitters, tallies)


WHOLE = {"a_in": (3, 2**63 - 1), "a_out": (3, 2**63 - 1), "b_in": (3, 2**63 - 1), "b_out": (3, 2**63 - 1)}


def test_counts_and_sums_must_agree_at_every_step() -> None:
    assert proves(*evidence(**WHOLE))
    assert proves(*evidence(**{**WHOLE, "b_out": (2, 2**63 - 6), "b_filtered": (1, 5)}))
    for place, (n, id_sum) in WHOLE.items():
        assert not proves(*evidence(**{**WHOLE, place: (n - 1, id_sum)}))
        assert not proves(*evidence(**{**WHOLE, place: (n, id_sum - 1)})), "one lost and another doubled"
    assert proves(*evidence(**{**WHOLE, "b_out": (3, -(2**63) - 1)})), "sums are modulo 2^64"


def test_where_a_message_takes_one_of_several_ways_they_add_up() -> None:
    spec = {"nodes": [{"name": "a", "to": ["b", "c"]}, {"name": "b", "to": ["c"]}, {"name": "c"}]}
    document = {"apiVersion": "lagloss/v1", "kind": "Pipeline", "metadata": {"name": "p"}, "spec": spec}
    _, some = evidence()
    states = [replace(some.emitters[0], emitter=node.encode() * 16, node=node) for node in "abc"]
    counts = {"a.in": 5, "a.out:b": 2, "a.out:c": 3, "b.in": 2, "b.out": 2, "c.in": 5, "c.out": 5}

    def of(counts: dict[str, int]) -> Evidence:
        tallies = [
            TallyState(name[0].encode() * 16, name[0], name, None, n, 0, id_sum=7 * n) for name, n in counts.items()
        ]
        return replace(some, emitters=states, tallies=tallies)

    graph = Definition.model_validate(document).graph
    assert proves(graph, of(counts))
    assert not proves(graph, of({**counts, "a.out:b": 3})), "one took both ways"
    spec["nodes"][0]["copy"] = "all"
    assert not proves(Definition.model_validate(document).graph, of(counts)), "each takes all ways"


def test_nothing_is_proven_of_what_tallies_cannot_vouch_for() -> None:
    graph, whole = evidence(**WHOLE)
    silent = replace(whole.emitters[1], final_through_s=60)
    for doubtful in (
        replace(whole, emitters=[whole.emitters[0], silent]),
        replace(whole, emitters=whole.emitters[:1], tallies=whole.tallies[:2]),
        replace(whole, version_changed=True),
        replace(whole, tallies=[*whole.tallies[:3], replace(whole.tallies[3], dropped=1)]),
        replace(whole, tallies=[*whole.tallies[:3], replace(whole.tallies[3], replay="again")]),
        replace(whole, tallies=[replace(tally, sample=2**31) for tally in whole.tallies]),
        replace(whole, tallies=[*whole.tallies, replace(whole.tallies[0], checkpoint="a.out:c")]),
    ):
        assert not proves(graph, doubtful)
    sized = [replace(tally, payload_bytes=10) for tally in whole.tallies if tally.checkpoint != "b.out"]
    assert sized_links(graph, sized) == [("a.out", "b.in")]
    assert sized_links(graph, whole.tallies) == sized_links(graph, sized[:2]) == []
    facts = proven_facts(graph, [(tally, Sketch()) for tally in whole.tallies])
    with pytest.raises(CutInsidePattern):
        judge(graph, facts, replace(whole, emitters=[whole.emitters[0], silent]))
