"""Labels of places. They are stored (incidents, roll-ups, missing messages), printed and in URLs: none may change."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerting.incidents.evidence import _place as breach_document
from alerting.rules.assessment import BreachPlace
from lagloss_server.base.fields import NAME_PATTERN
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.flow import Flow
from lagloss_server.model.hops import hop_labels, hops
from lagloss_server.model.place import Place, PlaceKind, ends_of, link_label, link_name, node_label, place_of
from lagloss_server.model.rule_places import places_of
from lagloss_server.model.window import Interval
from lagloss_server.sums.quality import stages_of
from tests.support.window_documents import window_of

YAML = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: src-, to: [mid_1]}
    - {name: mid_1, to: [a, b], retries: again}
    - {name: a}
    - {name: b}
    - {name: again}
"""


@pytest.fixture(scope="module")
def definition() -> Definition:
    return parse_definition(YAML)


def test_labels_at_which_a_message_can_go_missing(definition: Definition) -> None:
    assert [place.label for place in definition.graph.places] == [
        "node src-",
        "node mid_1",
        "node a",
        "node b",
        "link src-->mid_1",
        "link mid_1->a",
        "link mid_1->b",
        "retrier again",
    ]


def test_labels_of_what_may_hold_a_message(definition: Definition) -> None:
    assert hop_labels(definition.graph) == (
        "source",
        "node src-",
        "node mid_1",
        "node a",
        "node b",
        "node again",
        "link src-->mid_1",
        "link mid_1->a",
        "link mid_1->b",
    )


def test_labels_of_stages_and_destinations(definition: Definition) -> None:
    assert [(stage.kind, stage.name, stage.label) for stage in stages_of(definition.graph)] == [
        ("node", "src-", "node src-"),
        ("link", "src-->mid_1", "link src-->mid_1"),
        ("node", "mid_1", "node mid_1"),
        ("link", "mid_1->a", "link mid_1->a"),
        ("link", "mid_1->b", "link mid_1->b"),
        ("node", "a", "node a"),
        ("node", "b", "node b"),
        ("node", "again", "node again"),
        ("destination", "a", "destination a"),
        ("destination", "b", "destination b"),
    ]


def test_hops_are_named_as_charts_and_documents_have_them(definition: Definition) -> None:
    assert [(hop.label, hop.uid) for hop in hops(definition.graph)] == [
        ("arrival at src-", "arrival-None-src-"),
        ("process src-", "process-None-src-"),
        ("queue src- → mid_1", "queue-src--mid_1"),
        ("process mid_1", "process-None-mid_1"),
        ("queue mid_1 → a", "queue-mid_1-a"),
        ("process a", "process-None-a"),
        ("queue mid_1 → b", "queue-mid_1-b"),
        ("process b", "process-None-b"),
    ]
    assert hops(definition.graph)[2].document() == {"kind": "queue", "from": "src-", "node": "mid_1"}


def test_names_of_rules_and_texts_about_places(definition: Definition) -> None:
    flow: Flow = definition.graph
    assert {kind: [(str(place), place.rule("lag")) for place in places_of(flow, kind)][-1] for kind in _KINDS} == {
        "destination": ("destination b", "lag/destination/b"),
        "node": ("node again", "lag/node/again"),
        "link": ("link mid_1->b", "lag/link/mid_1->b"),
        "checkpoint": ("checkpoint again.dead", "lag/checkpoint/again.dead"),
    }


_KINDS = ("destination", "node", "link", "checkpoint")


def test_the_document_of_a_breach() -> None:
    found = breach_document(BreachPlace("link", "a->b", 0.5, "3 lost", 3))
    assert found == {"kind": "link", "name": "a->b", "share": 0.5, "text": "3 lost", "lost": 3}
    found = breach_document(BreachPlace("checkpoint", "a.in", None, "late"))
    assert found == {"kind": "checkpoint", "name": "a.in", "share": None, "text": "late"}
    assert list(found) == ["kind", "name", "share", "text"]


def test_labels_of_losses_in_a_window() -> None:
    lost = {"min": 1, "max": 2}
    window = {
        "nodes": [{"name": "a-", "lost": lost}, {"name": "b", "lost": None}],
        "links": [{"from": "a-", "to": "b", "lost": lost, "corrupted": 1, "checked": 3}],
    }
    assert window_of(window).losses == [("node a-", Interval(1, 2)), ("link a-->b", Interval(1, 2))]


NAMES = st.from_regex(re.compile(NAME_PATTERN, re.ASCII), fullmatch=True)
KINDS = st.sampled_from(get_args(PlaceKind))


@given(KINDS, st.one_of(NAMES, st.builds(link_name, NAMES, NAMES), NAMES.map("{}.out".format)))
def test_a_label_reads_back_as_its_place(kind: PlaceKind, name: str) -> None:
    assert place_of(Place(kind, name).label) == Place(kind, name)


@given(NAMES, NAMES)
def test_a_link_reads_back_as_its_ends(source: str, target: str) -> None:
    assert ends_of(link_name(source, target)) == (source, target)
    assert link_label(source, target) == Place("link", link_name(source, target)).label
    assert node_label(source) == Place("node", source).label


@pytest.mark.parametrize("text", ["", "node", "node ", "vendor a", "source", "a->b"])
def test_another_text_is_no_label(text: str) -> None:
    assert place_of(text) is None
