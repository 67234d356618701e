"""Live numbers: what the tallies alone say about a window that is not closed yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lagloss.wire.format import SAMPLE_ALL, share_of
from lagloss.wire.sketch import Sketch
from lagloss_server.judging.arithmetic import Scale
from lagloss_server.model.graph import Graph, Side
from lagloss_server.model.window import (
    CheckpointCounts,
    DestinationCounts,
    Lags,
    LinkCounts,
    NodeCounts,
    Percentiles,
    SideCounts,
    SourceCounts,
    Window,
    rfc3339,
)


@dataclass(frozen=True, slots=True)
class LiveTally:
    """One tally of an open window."""

    checkpoint: str
    replay: str | None
    beacons: int
    sample: int
    lags: Sketch


def live_result(graph: Graph, window_start_s: int, tallies: Iterable[LiveTally]) -> Window:
    """Return an open window: counts and lags from tallies. Counts are beacons, so `distinct` and `duplicates` are None,
    and so is whatever only a closing can determine. Where an emitter's sample changed within the window, its counts are
    scaled as if it had been the lowest all the time."""
    tallies = list(tallies)
    sample = min((tally.sample for tally in tallies), default=SAMPLE_ALL)
    counted: dict[str, list[int]] = {}
    lags: dict[str, list[Sketch]] = {}
    for tally in tallies:
        scale = Scale(tally.sample, 0)
        live_and_replayed = counted.setdefault(tally.checkpoint, [0, 0])
        live_and_replayed[tally.replay is not None] += scale.count(tally.beacons)
        if tally.replay is None:
            lags.setdefault(tally.checkpoint, []).append(tally.lags)

    def merged(*checkpoints: str) -> Sketch:
        return Sketch.merged(sketch for name in checkpoints for sketch in lags.get(name, ()))

    def seen(names: Iterable[str]) -> int:
        return sum(counted.get(name, (0, 0))[0] for name in names)

    def node(name: str) -> NodeCounts:
        lag_in, lag_out = merged(f"{name}.in").quantile_ms(0.95), merged(*graph.outs(name)).quantile_ms(0.95)
        process = None if lag_in is None or lag_out is None else lag_out - lag_in
        return NodeCounts(name, lag_in, lag_out, process, Percentiles.of(Sketch()), lost=None, complete=False)

    def link(source: str, target: str, out: str) -> LinkCounts:
        sent, taken = merged(out).quantile_ms(0.95), merged(f"{target}.in").quantile_ms(0.95)
        queued = None if sent is None or taken is None else taken - sent
        return LinkCounts(source, target, queued, Percentiles.of(Sketch()), lost=None, corrupted=None, checked=None)

    def source(name: str) -> SourceCounts:
        nothing = Lags.of(Sketch())  # which of the messages that arrived were its own, only a closing can determine
        return SourceCounts(name, seen([f"{name}.in"]), None, None, None, None, None, None, None, nothing)

    def side(side_: Side) -> SideCounts:
        messages = seen(f"{name}.in" for name in side_.sources)
        return SideCounts(side_.name, side_.nodes, None, messages, *[None] * 7)

    return Window(
        pipeline=graph.definition.name,
        window_start=rfc3339(window_start_s),
        verdict=None,
        reasons=("sample",) if sample < SAMPLE_ALL else (),
        proof="tallies",
        sample=share_of(sample),
        messages=seen(graph.entrances),
        # beacons at several delivery checkpoints may be of the same messages: only a closing can determine that
        delivered=seen(graph.delivery) if len(graph.delivery) == 1 else None,
        filtered=seen(graph.names(graph.filtered_mask)),
        dead=seen(graph.names(graph.dead_mask)),
        pending=None,
        unexplained=None,
        clock_skew_ms=None,
        lost=None,
        loss_ratio=None,
        on_time_share=None,
        on_time_of=None,
        e2e_lag_ms=Lags.of(merged(*graph.delivery)),
        checkpoints=tuple(
            CheckpointCounts(name, counted[name][0], None, None, counted[name][1], Percentiles.of(merged(name)))
            for name in graph.checkpoints
            if name in counted
        ),
        nodes=tuple(node(name) for name in graph.nodes),
        links=tuple(link(link_.source, link_.target, link_.out) for link_ in graph.links),
        destinations=tuple(
            DestinationCounts(
                name=destination.name,
                messages=None,
                delivered=seen(graph.names(destination.at)),
                filtered=seen(graph.names(destination.filtered)),
                dead=seen(graph.names(destination.dead)),
                pending=None,
                lost=None,
                on_time_share=None,
                e2e_lag_ms=Lags.of(merged(*graph.names(destination.at))),
            )
            for destination in graph.destinations
        ),
        sides=tuple(map(side, graph.sides)) if len(graph.sides) > 1 else (),
        sources=tuple(source(name) for name in graph.sources) if len(graph.sources) > 1 else (),
        reasons_by_node=None,
        staleness_ms={},
        crashes=(),
        unknown_checkpoints=(),
    )
