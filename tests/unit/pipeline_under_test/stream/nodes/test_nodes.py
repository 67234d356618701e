"""What the reference nodes decide, and which offsets they may commit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lagloss_server.model.definition import load_definition
from pipeline_under_test.stream.event_faults import NO_FAULT, Plan, corrupted, poisoned
from pipeline_under_test.stream.events.event import NOT_ACKNOWLEDGED, Event
from pipeline_under_test.stream.events.routes import Routes, TopicRoute
from pipeline_under_test.stream.events.schema import Schema, SchemaReader, Unreadable, packaged
from pipeline_under_test.stream.nodes.col_service import Acceptor, IntakeOutcome, Unacceptable, identified, status_of
from pipeline_under_test.stream.nodes.connector import Deliverer
from pipeline_under_test.stream.nodes.decision import Dead, Filtered, Lost, Pass, decided, ledger_entries
from pipeline_under_test.stream.nodes.relays import Normaliser, Router
from pipeline_under_test.stream.nodes.retrier import TierChoice
from pipeline_under_test.stream.topology import ALL_NEXT, DEFINITION, GLOBAL_RETRIER, RETRIED

NOW_MS = 1_700_000_000_000


READER = SchemaReader(packaged())


def event(**content: Any) -> Event:
    return Event("a", NOW_MS, packaged().encode({"url": "https://shop.example/cart", "kind": "Click", **content}))


def test_clicks_yaml_names_the_nodes_and_links_of_the_topology() -> None:
    nodes = load_definition(DEFINITION).spec.nodes
    assert {node.name: node.to for node in nodes if node.name != GLOBAL_RETRIER} == ALL_NEXT
    assert {node.name for node in nodes if node.retries == GLOBAL_RETRIER} == set(RETRIED)


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


@pytest.mark.parametrize(
    "fields",
    [{"url": "u"}, {"kind": "click"}, {"url": 7, "kind": "click"}, {"url": "u", "kind": "k", "vendors": "ga"}, [], 7],
    ids=["no-kind", "no-url", "url-of-another-type", "vendors-of-another-type", "a-list", "a-number"],
)
def test_an_event_that_does_not_fit_the_schema_is_handed_back(fields: Any) -> None:
    raw = Event("a", NOW_MS, json.dumps(fields).encode())
    assert Acceptor(packaged())(raw) == Filtered("malformed")


def test_an_event_is_passed_on_as_avro_with_defaults_and_without_unknown_fields() -> None:
    raw = Event("a", NOW_MS, json.dumps({"url": "u", "kind": "click", "colour": "red"}).encode())
    passed = Acceptor(packaged())(raw)
    assert isinstance(passed, Pass)
    assert READER.decode(passed.event.body) == {
        "url": "u",
        "kind": "click",
        "bot": False,
        "vendors": ["ga", "fb"],
        "host": None,
        "path": None,
    }


@pytest.mark.parametrize(
    ("reasons", "status"),
    [(["", ""], 200), (["", "malformed"], 207), (["malformed"], 422), (["malformed", NOT_ACKNOWLEDGED, ""], 503)],
)
def test_the_status_of_an_answer_tells_the_worst_of_it(reasons: list[str], status: int) -> None:
    assert status_of([IntakeOutcome(index, "a", reason) for index, reason in enumerate(reasons)]) == status


def test_event_norm_takes_urls_apart_filters_robots_and_sets_poison_aside() -> None:
    normalise = Normaliser(READER)
    passed = normalise(event(kind=" Click"))
    assert isinstance(passed, Pass)
    content = READER.decode(passed.event.body)
    assert (content["kind"], content["host"], content["path"]) == ("click", "shop.example", "/cart")
    assert normalise(event(bot=True)) == Filtered("robot")
    assert normalise(event(kind="  ")) == Filtered("no kind")
    assert isinstance(normalise(event(url="https://[broken")), Dead)
    assert isinstance(normalise(poisoned(event())), Dead)


def test_event_router_sends_to_every_route_that_fits_and_filters_what_fits_none() -> None:
    router = Router(READER, Routes())
    assert router(event(vendors=["fb", "fb"])) == Pass(event(vendors=["fb", "fb"]), ("conn-fb",))
    assert router(event()) == Pass(event(), ("conn-ga", "conn-fb"))
    assert router(event(vendors=["elsewhere"])) == Filtered("no route")
    assert isinstance(router(poisoned(event())), Dead)


def test_routes_change_one_by_one_and_a_bad_definition_leaves_its_route_as_it_was() -> None:
    routes = Routes()
    carts = TopicRoute(to="conn-ga", when={"path": "/cart"})
    routes.change(
        [("carts", carts.model_dump_json().encode()), ("ga", None), ("fb", b"{not json"), ("x", b'{"to":"y"}')]
    )
    assert routes.destinations({"path": "/cart", "vendors": ["ga", "fb"]}) == ("conn-fb", "conn-ga")
    assert routes.destinations({"path": "/item", "vendors": ["ga"]}) == ()
    routes.change([("all", b'{"to": "conn-ga"}')])
    assert routes.destinations({}) == ("conn-ga",)


def test_a_connector_sets_aside_what_it_cannot_read() -> None:
    assert Deliverer(READER)(event()) == Pass(event())
    assert isinstance(Deliverer(READER)(poisoned(event())), Dead)


def test_an_event_waits_in_a_longer_tier_each_time_and_is_dead_after_the_last() -> None:
    choose = TierChoice("clicks", (10, 60))
    back = [Event("a", NOW_MS, b"", back_to="conn-ga", tries=tries, reason="HTTP 503") for tries in range(3)]
    assert choose(back[0]) == Pass(back[0], ("clicks.global-retrier.10s",))
    assert choose(back[1]) == Pass(back[1], ("clicks.global-retrier.60s",))
    assert choose(back[2]) == Dead("HTTP 503, after 2 returns")
    assert isinstance(choose(Event("a", NOW_MS, b"")), Dead)


def test_a_body_written_by_a_newer_producer_is_read_by_an_older_consumer_and_the_other_way_round() -> None:
    told = json.loads(packaged().text)
    told["fields"].append({"name": "campaign", "type": "string", "default": "none"})
    newer = Schema(json.dumps(told))
    body = newer.encode({"url": "u", "kind": "k", "campaign": "spring"})
    known = {newer.fingerprint: newer}
    assert "campaign" not in SchemaReader(packaged(), known.get).decode(body)
    with pytest.raises(Unreadable, match="unknown schema"):
        READER.decode(body)
    forward = SchemaReader(newer, {packaged().fingerprint: packaged()}.get)
    assert forward.decode(event().body)["campaign"] == "none"


@pytest.mark.parametrize("body", [b"", b"\xc3\x01", b"{}", b"\xc3\x01" + packaged().fingerprint + b"\x7f"])
def test_bytes_that_are_no_event_are_unreadable(body: bytes) -> None:
    with pytest.raises(Unreadable):
        READER.decode(body)


def test_a_body_with_bytes_too_many_is_unreadable() -> None:
    with pytest.raises(Unreadable, match="more bytes"):
        READER.decode(event().body + b"x")


def test_a_corrupted_event_is_readable_and_has_another_checksum() -> None:
    changed = corrupted(event())
    assert changed.crc != event().crc
    assert READER.decode(changed.body)["url"] != READER.decode(event().body)["url"]


def test_an_event_travels_through_headers_unchanged() -> None:
    class Record:
        def __init__(self, sent: Event) -> None:
            self._sent = sent

        def headers(self) -> list[tuple[str, bytes]]:
            return [(name, text if isinstance(text, bytes) else text.encode()) for name, text in self._sent.headers()]

        def value(self) -> bytes:
            return self._sent.body

    for sent in (Event("a", 7, b"x"), Event("b", 7, b"", "r1", "conn-ga", 2, "HTTP 503")):
        assert Event.from_record(Record(sent)) == sent  # type: ignore[arg-type]  # what a Message has to have for this


def test_a_fault_decides_before_the_node_does() -> None:
    def never(_event: Event) -> Pass:
        raise AssertionError("the node was asked")

    assert decided(event(), Plan(swallow=True, filtered=True), never) == Lost()
    assert decided(event(), Plan(filtered=True), never) == Filtered("injected")
    assert decided(event(), Plan(dead=True), never) == Dead("injected")


def test_the_ledger_names_only_links_that_the_event_would_have_taken() -> None:
    plan = Plan(lost_links=frozenset({"conn-ga", "conn-fb"}))
    link = "link event-router->conn-fb"
    entries = list(ledger_entries("event-router", event(), plan, Pass(event(), ("conn-fb",))))
    assert [(entry.fate, entry.place) for entry in entries] == [("routed", link), ("lost", link)]


def test_the_ledger_tells_where_a_node_with_several_next_ones_sends_an_event() -> None:
    entries = list(ledger_entries("event-router", event(), NO_FAULT, Pass(event(), ("conn-fb",))))
    assert [(entry.fate, entry.place) for entry in entries] == [("routed", "link event-router->conn-fb")]
    assert list(ledger_entries("event-norm", event(), NO_FAULT, Pass(event(), ("event-router",)))) == []
