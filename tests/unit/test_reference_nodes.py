"""What the reference nodes decide, and which offsets they may commit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lagloss.definition import load_definition
from pipeline_under_test.col_service import Outcome, Unacceptable, accept, identified, status_of
from pipeline_under_test.decision import Dead, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.event import NOT_ACKNOWLEDGED, Event
from pipeline_under_test.faults import NO_FAULT, Plan
from pipeline_under_test.relay import normalise, route
from pipeline_under_test.topology import DEFINITION, NEXT

NOW_MS = 1_700_000_000_000


def event(**content: Any) -> Event:
    return Event("a", NOW_MS, json.dumps(content).encode())


def test_clicks_yaml_names_the_nodes_and_links_of_the_topology() -> None:
    definition = load_definition(DEFINITION)
    assert {node.name: node.to for node in definition.spec.nodes} == NEXT


def test_an_event_gets_an_id_and_a_time_where_it_brings_none() -> None:
    made = identified({"url": "u"}, NOW_MS)
    assert len(made.id) == 36
    assert made.event_time_ms == NOW_MS


@pytest.mark.parametrize(
    "fields",
    [
        {"event_id": 7},
        {"event_id": "x" * 256},
        {"event_id": "\ud800"},
        {"event_time": "now"},
        {"event_time": True},
        {"event_time": NOW_MS + 60_001},
        {"event_time": NOW_MS - 7 * 86_400_000 - 1},
    ],
)
def test_an_event_with_an_unusable_id_or_time_is_not_counted(fields: dict[str, Any]) -> None:
    with pytest.raises(Unacceptable):
        identified(fields, NOW_MS)


def test_an_event_without_url_or_kind_is_handed_back() -> None:
    assert isinstance(accept(event(url="u")), Filtered)
    assert isinstance(accept(event(url="u", kind="click")), Pass)


@pytest.mark.parametrize(
    ("reasons", "status"),
    [(["", ""], 200), (["", "malformed"], 207), (["malformed"], 422), (["malformed", NOT_ACKNOWLEDGED, ""], 503)],
)
def test_the_status_of_an_answer_tells_the_worst_of_it(reasons: list[str], status: int) -> None:
    assert status_of([Outcome(index, "a", reason) for index, reason in enumerate(reasons)]) == status


def test_event_norm_filters_robots_and_sets_poison_aside() -> None:
    passed = normalise(event(url="https://shop.example/cart", kind="Click"))
    assert isinstance(passed, Pass)
    assert passed.event.content() == {
        "url": "https://shop.example/cart",
        "kind": "click",
        "host": "shop.example",
        "path": "/cart",
    }
    assert normalise(event(url="https://shop.example", kind="Click", bot=True)) == Filtered("robot")
    assert isinstance(normalise(event(url="https://[broken", kind="Click")), Dead)
    assert isinstance(normalise(Event("a", NOW_MS, b"\xff")), Dead)


def test_event_router_sends_to_the_vendors_named_and_to_all_where_none_is() -> None:
    assert route(event(vendors=["fb", "fb"])) == Pass(event(vendors=["fb", "fb"]), ("conn-fb",))
    assert route(event()) == Pass(event(), ("conn-ga", "conn-fb"))
    assert route(event(vendors=[])) == Filtered("no vendor")
    assert isinstance(route(event(vendors=["elsewhere"])), Dead)


def test_a_fault_decides_before_the_node_does() -> None:
    def never(_event: Event) -> Pass:
        raise AssertionError("the node was asked")

    assert decided(event(), Plan(swallow=True, filtered=True), never) == Lost()
    assert decided(event(), Plan(filtered=True), never) == Filtered("injected")
    assert decided(event(), Plan(dead=True), never) == Dead("injected")


def test_the_ledger_names_only_links_that_the_event_would_have_taken() -> None:
    plan = Plan(lost_links=frozenset({"conn-ga", "conn-fb"}))
    entries = list(ledger_entries("event-router", event(), plan, Pass(event(), ("conn-fb",))))
    assert [(entry.fate, entry.place) for entry in entries] == [("lost", "link event-router->conn-fb")]
    assert list(ledger_entries("event-router", event(), NO_FAULT, Pass(event(), ("conn-fb",)))) == []
