"""Proof from tallies: windows in which no message can be missing, found without reading a block.

Every tally holds how many beacons an emitter sent and the sum of their id hashes modulo 2^64. Summed over a node's
emitters, they say of a checkpoint how many beacons there are, n, and the sum of their ids, s. A window is proven where,
for x = n and x = s alike,

    x(N.in) = x(N.out...) + x(N.filtered) + x(N.dead)    for every node N: each message took exactly one exit,
    x(M.in) = sum of x(N's out for M) over all links N -> M    for every node M but the first: each was taken in,

and every account is complete (rule 7) with all its beacons counted. By induction along the graph, the beacons at the
first checkpoint are, one by one, those at the last exits: nothing is missing anywhere, and nothing was doubled on the
way.

The chance of a false proof: an equation holds wrongly only if some ids are missing on one side, as many others are too
many there, and both have the same sum: 2^-64 = 5e-20 for hashes of independent texts. A pipeline of ten nodes has 19
equations: over ten years of its minutes, were something wrong at every link in each of them, 5e-12.

What no equation can see is a message that its source sent twice under one id and that went twice through everything. It
counts twice here, and `duplicates` is None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lagloss.wire.format import SAMPLE_ALL
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.evidence import Evidence, TallyState
from lagloss_server.judging.facts import CheckpointFacts, WindowFacts
from lagloss_server.model.graph import Graph

MODULUS = 1 << 64


def proves(graph: Graph, evidence: Evidence) -> bool:
    """Return whether the tallies prove that no message of the window is missing. Where messages of several sources
    meet, they cannot say what became of those of each."""
    tallies = evidence.tallies
    return (
        all(len(side.sources) == 1 for side in graph.sides)
        and not evidence.version_changed
        and all(_is_plain(graph, tally) for tally in tallies)
        and not evidence.incomplete(graph, {tally.account: tally.beacons for tally in tallies}, ())
        and _adds_up(graph, tallies)
    )


def proven_facts(graph: Graph, tallies: Iterable[tuple[TallyState, Sketch]]) -> WindowFacts:
    """Return the facts of a window that is proven, with the tallies' own lag sketches."""
    tallies = list(tallies)
    lags: dict[str, list[Sketch]] = {}
    beacons: Counter[str] = Counter()
    for tally, sketch in tallies:
        lags.setdefault(tally.checkpoint, []).append(sketch)
        beacons[tally.checkpoint] += tally.beacons
    checkpoints = {
        name: CheckpointFacts(beacons[name], 0, beacons[name], None, Sketch.merged(lags[name]))
        for name in graph.checkpoints
        if beacons[name]
    }
    arrivals = tuple(checkpoints[name].lags if name in checkpoints else Sketch() for name in graph.delivery)
    sides = [graph.side_of(source) for source in graph.sources]  # one each
    by_source = [
        Sketch.merged(
            lags for destination, lags in zip(graph.destinations, arrivals, strict=True) if destination.at & side.mask
        )
        for side in sides
    ]
    return WindowFacts(
        checkpoints=checkpoints,
        arrivals=arrivals,
        source_arrivals=tuple(by_source) if len(sides) > 1 else (),
        read={tally.account: tally.beacons for tally, _ in tallies},
        proven=True,
    )


def sized_links(graph: Graph, tallies: Iterable[TallyState]) -> list[tuple[str, str]]:
    """Return the links, as (out, in), where both sides reported payload sizes: those that may carry checksums, too.
    Only blocks show what is corrupted, so a user of a proof has to check whether they do."""
    sized = {tally.checkpoint for tally in tallies if tally.payload_bytes}
    ends = ((link.out, f"{link.target}.in") for link in graph.links)
    return [(out, into) for out, into in ends if out in sized and into in sized]


def _is_plain(graph: Graph, tally: TallyState) -> bool:
    """Return whether a tally is of live traffic, whole, at a checkpoint where the equations hold."""
    if tally.replay is not None or tally.sample != SAMPLE_ALL or tally.checkpoint not in graph.bit:
        return False
    return not tally.beacons or not graph.unprovable_mask >> graph.bit[tally.checkpoint] & 1


def _adds_up(graph: Graph, tallies: Iterable[TallyState]) -> bool:
    count: Counter[str] = Counter()
    id_sum: Counter[str] = Counter()
    for tally in tallies:
        count[tally.checkpoint] += tally.beacons
        id_sum[tally.checkpoint] += tally.id_sum

    def same(those_list: Iterable[str], this: str) -> bool:
        those_list = list(those_list)
        return (
            sum(count[name] for name in those_list) == count[this]
            and (sum(id_sum[name] for name in those_list) - id_sum[this]) % MODULUS == 0
        )

    incoming: dict[str, list[str]] = {}
    for link in graph.links:
        incoming.setdefault(link.target, []).append(link.out)
    return all(same(exits, f"{node}.in") for node in graph.steps if (exits := graph.exits(node))) and all(
        same(outs, f"{node}.in") for node, outs in incoming.items()
    )
