"""What proves that a message arrived: what was seen behind the place that it was sent to, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lagloss_server.judging.arithmetic import has_passed, missing_places
from lagloss_server.model.definition import parse_definition
from lagloss_server.model.graph import Graph
from lagloss_server.queries.matrix import Presence
from lagloss_server.repair.arrivals import Arrivals, _outcomes

COPIED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: a, to: [b, c], copy: all}
    - {name: b, to: [d]}
    - {name: c}
    - {name: d}
"""
RETRIED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: a, to: [b, c]}
    - {name: b, retries: again}
    - {name: c, retries: again}
    - {name: again}
"""
KEY = (0, 7)


def graph(text: str = COPIED) -> Graph:
    return parse_definition(text).graph


def arrivals(made: Graph, label: str, *seen: str) -> Arrivals:
    """The arrivals of a message at a place, seen there since."""
    store = SimpleNamespace(definition_at=lambda _pipeline, _start: SimpleNamespace(graph=made, table_taps=()))
    its = Arrivals(cast("Any", store), cast("Any", None), "shop", label, "repair-1", [0], 0)
    its._masks[KEY] = made.mask(seen)
    return its


@pytest.mark.parametrize(
    ("label", "seen", "arrived", "ended"),
    [
        ("link a->b", ["b.in", "b.out", "d.in", "d.out"], True, True),
        ("link a->b", ["c.in", "c.out"], False, False),
        ("link a->b", ["c.in", "c.out", "b.in", "b.out"], False, False),
        ("link a->b", ["d.in", "d.out"], True, True),
        ("link a->b", ["b.in", "b.filtered"], False, True),
        ("node b", ["b.in", "b.out", "d.in", "d.out"], True, True),
        ("node b", ["b.in"], False, False),
        ("node a", ["a.in", "a.out:b", "a.out:c", "c.in", "c.out"], False, False),
        ("node a", ["a.in", "a.out:b", "a.out:c", "c.in", "c.out", "b.in", "b.out", "d.in", "d.out"], True, True),
        ("link a->c", ["c.in", "c.out"], True, True),
        ("link a->c", [], False, False),
    ],
)
def test_a_message_arrives_at_every_destination_behind_the_place_and_what_came_to_others_is_no_proof(
    label: str, seen: list[str], *, arrived: bool, ended: bool
) -> None:
    its = arrivals(graph(), label, *seen)
    assert (its.has_arrived(KEY), its.has_ended(KEY)) == (arrived, ended)


def test_only_places_behind_the_place_can_lose_a_message_again() -> None:
    assert arrivals(graph(), "link a->b").behind == {"node b", "link b->d", "node d"}
    assert arrivals(graph(), "node d").behind == frozenset()


def test_what_a_retrier_gets_again_comes_back_to_the_node_that_handed_it_over() -> None:
    handed = ["again.in", "again.out:b", "b.in", "b.out"]
    assert arrivals(graph(RETRIED), "retrier again", *handed).has_arrived(KEY)
    assert not arrivals(graph(RETRIED), "retrier again", "again.in", "again.out:b").has_arrived(KEY)


@pytest.mark.parametrize("label", ["link a->b", "node b", "link b->d", "node d", "link a->c", "node c"])
def test_whoever_has_passed_a_place_is_missing_nowhere_behind_it(label: str) -> None:
    made = graph()
    (place,) = (place for place in made.places if place.label == label)
    for mask in range(1 << len(made.checkpoints)):
        if has_passed(made, place, mask):
            whole = mask & place.beyond | place.origin
            behind = [lost for lost in missing_places(made, whole) if lost == place or lost.origin & place.beyond]
            assert behind == []
            assert mask & place.beyond


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        (["a.in", "a.out:b", "a.out:c", "c.in", "c.out"], None),
        (["a.in", "a.out:b", "a.out:c", "c.in", "c.out", "b.in"], "elsewhere"),
        (["a.in", "a.out:b", "a.out:c", "c.in", "c.out", "b.in", "b.dead"], "arrived"),
        (["a.in", "a.out:b", "a.out:c", "c.in", "c.out", "b.in", "b.out", "d.in", "d.out"], "arrived"),
        (["a.in", "a.filtered"], "elsewhere"),
    ],
)
def test_what_came_meanwhile_has_arrived_or_is_elsewhere(seen: list[str], outcome: str | None) -> None:
    made = graph()
    mask = made.mask(seen)
    presence = SimpleNamespace(patterns=([0], [mask]), missing_of=([0], [missing_places(made, mask)]), graph=made)
    assert _outcomes(cast("Presence", presence), "link a->b") == [outcome]
