"""The hops of a pipeline, and the slowest path through it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lagloss_server.model import hops
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.hops import Hop, HopLags
from tests.support.window_documents import chain, clicks, document, window_of

START = 1_795_250_400
DIAMOND = parse_definition(
    """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: diamond}
spec:
  nodes:
    - {name: a, to: [b, c]}
    - {name: b, to: [d, e]}
    - {name: c, to: [d]}
    - {name: d}
    - {name: e}
"""
)
WAYS = {"d": (("a", "b", "d"), ("a", "c", "d")), "e": (("a", "b", "e"),)}
"""Every path of the diamond, by hand."""


def test_the_hops_of_the_talks_example_add_up_in_the_order_of_the_flow() -> None:
    lags = {"src.in": 1.0, "src.out": 2.0, "mid.in": 3.0, "mid.out": 4.0, "snk.in": 8.0, "snk.out": 10.0}
    graph = chain().graph
    path = hops.path_ms(hops.of_window(window_of(document(chain(), START, lags_ms=lags)), graph), graph)
    assert [(hop.label, value) for hop, value in path.items()] == [
        ("arrival at src", 1.0),
        ("process src", 1.0),
        ("queue src → mid", 1.0),
        ("process mid", 1.0),
        ("queue mid → snk", 4.0),
        ("process snk", 2.0),
    ]


def test_sketches_and_documents_tell_the_same_hops() -> None:
    lags = {"col-service.in": 10.0, "col-service.out": 20.0, "event-norm.in": -50.0, "event-norm.out": 60.0}
    lags |= {"event-router.in": 100.0, "event-router.out:conn-ga": 110.0, "event-router.out:conn-fb": 110.0}
    graph = clicks().graph

    def p95_ms(names: tuple[str, ...]) -> float | None:
        return max((lags[name] for name in names if name in lags), default=None)

    of_window = hops.of_window(window_of(document(clicks(), START, lags_ms=lags)), graph)
    assert hops.of_checkpoints(p95_ms, graph) == of_window


values = st.none() | st.floats(-1e6, 1e6).map(lambda value: round(value, 3))


@given(data=st.data(), delivery=st.sampled_from([None, "d", "e"]))
def test_the_path_is_the_one_that_adds_up_to_most_of_all_that_are_known_whole(
    data: st.DataObject, delivery: str | None
) -> None:
    graph = DIAMOND.graph
    known = {hop: value for hop in hops.hops(graph) if (value := data.draw(values)) is not None}
    delivered = {end: value for end in WAYS if (value := data.draw(values)) is not None}
    found = hops.path_ms(HopLags(known, lag_out=delivered), graph, delivery)
    sums = {}
    for end, ways in WAYS.items():
        for way in ways:
            needed = [Hop("arrival", "a"), *(Hop("queue", to, source) for source, to in pairwise(way))]
            if end in delivered and all(hop in known for hop in needed):
                taken = [*needed, *(hop for node in way if (hop := Hop("process", node)) in known)]
                sums.setdefault(end, []).append(sum(known[hop] for hop in taken))
    end = delivery or max(sums, key=lambda one: delivered[one], default=None)
    if end not in sums:
        assert found == {}
    else:
        assert abs(sum(found.values()) - max(sums[end])) < 1e-3
        assert next(iter(found)) == Hop("arrival", "a")
        assert list(found)[-1].node == end
