"""Of what the ledger knows, taps show what topics and commits hold, at the place where they hold it."""

from __future__ import annotations

import pytest

from pipeline_under_test.harness.ledger import Fate, LedgerEntry
from pipeline_under_test.stream.scenario import stream_definition
from pipeline_under_test.stream.truth import StreamTruth, StreamWindow, as_tapped, truth_as_tapped

MINUTE_MS = 60_000
TO_GA, TO_FB = "link event-router->conn-ga", "link event-router->conn-fb"
Fact = tuple[Fate, str]


def truth_of(*facts: Fact) -> StreamTruth:
    found = StreamTruth()
    found.add(LedgerEntry(fate, "m", MINUTE_MS, place) for fate, place in [("answered", ""), *facts])
    return found


def tapped(*facts: Fact) -> StreamWindow:
    return as_tapped(truth_of(*facts).windows[60])


def outcome_of(*facts: Fact) -> str:
    (found,) = [outcome for outcome, ids in tapped(*facts).outcomes().items() if ids] or ["no message"]
    return found


@pytest.mark.parametrize("fact", [("lost", "link col-service->event-norm"), ("lost", "node col-service")])
def test_what_never_came_into_the_first_topic_is_no_message(fact: Fact) -> None:
    assert tapped(fact).messages == set()
    assert outcome_of(fact) == "no message"


def test_what_was_handed_back_and_came_through_all_the_same_is_a_message() -> None:
    handed_back: Fact = ("filtered", "node col-service")
    assert outcome_of(handed_back) == "no message"
    assert outcome_of(handed_back, ("dead", "node event-norm")) == "dead"


def test_a_loss_on_a_link_shows_at_the_node_that_did_not_send() -> None:
    assert tapped(("lost", "link event-norm->event-router")).lost_at == {"node event-norm": {"m"}}
    assert tapped(("routed", TO_GA), ("lost", TO_GA)).lost_at == {"node event-router": {"m"}}


def test_a_loss_on_one_of_two_routes_does_not_show() -> None:
    facts: list[Fact] = [("routed", TO_GA), ("lost", TO_GA), ("routed", TO_FB), ("delivered", "vendor fb")]
    assert tapped(*facts).lost_at == {}
    assert outcome_of(*facts) == "delivered"
    assert tapped(*facts, ("lost", TO_FB)).lost_at == {"node event-router": {"m"}}


@pytest.mark.parametrize("fate", ["lost", "dead", "filtered"])
def test_a_connector_has_delivered_what_it_committed(fate: Fate) -> None:
    assert outcome_of(("routed", TO_GA), (fate, "node conn-ga")) == "delivered"
    assert outcome_of(("routed", TO_GA), ("routed", TO_FB), (fate, "node conn-ga")) == "pending"


@pytest.mark.parametrize("fate", ["lost", "dead", "filtered"])
def test_what_a_connector_committed_twice_without_delivering_it_is_delivered_twice(fate: Fate) -> None:
    facts: list[Fact] = [("routed", TO_GA), (fate, "node conn-ga")]
    assert tapped(*facts).duplicates("conn-ga.out") == {}
    assert tapped(*facts, (fate, "node conn-ga")).duplicates("conn-ga.out") == {"m": 1}


def test_what_a_connector_handed_to_the_retrier_it_has_committed() -> None:
    handed: list[Fact] = [("routed", TO_GA), ("retried", "node conn-ga")]
    assert outcome_of(*handed) == "delivered"
    assert tapped(*handed).duplicates("conn-ga.out") == {}
    assert tapped(*handed, ("delivered", "vendor ga")).duplicates("conn-ga.out") == {"m": 1}
    given_up: list[Fact] = [*handed, ("dead", "node global-retrier")]
    assert outcome_of(*given_up) == "delivered"
    assert tapped(*given_up).duplicates("conn-ga.out") == {}
    again = tapped(*given_up, ("delivered", "vendor ga"))
    assert (again.duplicates("conn-ga.out"), again.duplicates("conn-fb.out")) == ({"m": 1}, {})


def test_what_no_fault_touched_is_the_same_with_taps() -> None:
    facts: list[Fact] = [("filtered", "node event-norm"), ("routed", TO_GA), ("delivered", "vendor ga")]
    for count in range(len(facts) + 1):
        whole = truth_of(*facts[:count])
        assert truth_as_tapped(whole).documents() == whole.documents()


def test_each_tapped_topic_and_group_is_of_the_pipeline_of_its_definition() -> None:
    taps = stream_definition("other", taps=True).taps
    assert {tap.pipeline for tap in taps} == {"other"}
    assert all(tap.topic.startswith("other.") for tap in taps)
    assert all(tap.group is None or tap.group.startswith("other.") for tap in taps)
