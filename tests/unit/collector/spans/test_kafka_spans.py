"""Spans of Kafka clients, as instrumentations send them, are beacons of the messages that they are about."""

from __future__ import annotations

import time

import pytest

from collector.spans.answer import UnusableSpan
from collector.spans.kafka import (
    MAX_LINKS,
    MAX_ORIGINS,
    MAX_SERVICE,
    MAX_TOPIC,
    NO_MESSAGE,
    NO_SERVICE,
    NO_TIME,
    NO_TOPIC,
    TOO_LONG,
    TOO_MANY_LINKS,
)
from collector.spans.messages import PairingScope, WaitingSpan
from collector.spans.otlp import JSON, PROTOBUF
from collector.spans.pairing import OUT_OF_RANGE, Pairing
from tests.support.kafka_spans import (
    CONSUMER,
    INSTRUMENTATIONS,
    PRODUCER,
    Instrumentation,
    TestSpan,
    consumed,
    http_span,
    produced,
)
from tests.support.span_pairs import MAILER, MAILER_RECEIVES, SHOP, Pairs, SpanBeacon, beacons_in, parsed

NOW_MS = time.time_ns() // 1_000_000
JAVA, CONFLUENT = INSTRUMENTATIONS["java"], INSTRUMENTATIONS["confluent-kafka"]
BY_NAME = pytest.mark.parametrize("instrumentation", INSTRUMENTATIONS.values(), ids=INSTRUMENTATIONS)
DAY_MS = 86_400_000
TOPIC = "messaging.destination.name"


def id_of(instrumentation: Instrumentation, number: int) -> str:
    """The id that the producer's span gives: of the record where it has an offset, else of itself."""
    with_offset = instrumentation in (JAVA, INSTRUMENTATIONS["java with receiving"], INSTRUMENTATIONS["franz-go"])
    if with_offset or instrumentation is INSTRUMENTATIONS["convention-1.24"]:
        return f"orders/{number % 3}/{number}"
    trace = 0xA000_0000 + number
    return f"{trace:032x}-{trace:016x}"


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
@BY_NAME
def test_a_producer_and_a_consumer_agree_on_a_message(instrumentation: Instrumentation, media_type: str) -> None:
    pairs = Pairs(SHOP, MAILER if instrumentation.verb == "process" else MAILER_RECEIVES)
    name = id_of(instrumentation, 7)
    sent = produced(instrumentation, 7, NOW_MS)
    taken = consumed(instrumentation, 7, NOW_MS + 100, NOW_MS + 250)
    at_shop = [SpanBeacon("shop.in", name, NOW_MS, NOW_MS), SpanBeacon("shop.out", name, NOW_MS, NOW_MS + 5)]
    received_ms = NOW_MS + (100 if instrumentation.verb == "process" else 250)
    at_mailer = [
        SpanBeacon("mailer.in", name, NOW_MS, received_ms),
        SpanBeacon("mailer.out", name, NOW_MS, NOW_MS + 250),
    ]
    assert pairs.beacons(http_span(1, NOW_MS), sent, media_type=media_type) == at_shop
    assert pairs.beacons(taken, media_type=media_type) == at_mailer
    assert pairs.pairing.waiting == 0


@BY_NAME
def test_a_consumer_s_span_waits_for_the_producer_s(instrumentation: Instrumentation) -> None:
    pairs = Pairs(SHOP, MAILER if instrumentation.verb == "process" else MAILER_RECEIVES)
    assert pairs.beacons(consumed(instrumentation, 7, NOW_MS + 100, NOW_MS + 250)) == []
    assert pairs.pairing.waiting == 1
    paired = pairs.beacons(produced(instrumentation, 7, NOW_MS))
    assert [beacon.checkpoint for beacon in paired] == ["shop.in", "shop.out", "mailer.in", "mailer.out"]
    assert {beacon.event_ms for beacon in paired} == {NOW_MS}
    assert pairs.pairing.waiting == 0


def test_records_are_paired_without_a_trace_that_goes_on() -> None:
    pairs = Pairs()
    apart = consumed(JAVA, 7, NOW_MS + 100, NOW_MS + 250, trace=5, span=6, parent=0)
    assert len(pairs.beacons(produced(JAVA, 7, NOW_MS), apart)) == 4
    other = consumed(JAVA, 8, NOW_MS + 100, NOW_MS + 250, trace=7, span=8, parent=0)
    assert pairs.beacons(other) == []


def test_a_message_has_the_trace_of_its_producer() -> None:
    pairs = Pairs()
    traces = {seen.traceparent for pair in pairs.paired(produced(JAVA, 7, NOW_MS)) for seen in pair.seen}
    trace = 0xA000_0007
    assert traces == {f"00-{trace:032x}-{trace:016x}-01"}


def test_a_span_of_several_messages_is_a_beacon_of_each() -> None:
    """confluent-kafka's `consume`: links to all producers, and the topic of the first record alone."""
    pairs = Pairs()
    pairs.beacons(*(produced(CONFLUENT, number, NOW_MS) for number in range(3)))
    links = tuple((0xA000_0000 + number, 0xA000_0000 + number) for number in (0, 2))
    attributes = {key: value for key, value in CONFLUENT.consumed.items() if "PARTITION" not in str(value)}
    attributes = {key: value for key, value in attributes.items() if key != "messaging.message.id"}
    batch = TestSpan("mailer", "orders process", CONSUMER, attributes, 9, 9, NOW_MS + 50, NOW_MS + 90, links=links)
    beacons = pairs.beacons(batch)
    assert [beacon.checkpoint for beacon in beacons] == ["mailer.in", "mailer.out"] * 2
    assert [beacon.id for beacon in beacons[::2]] == [id_of(CONFLUENT, 0), id_of(CONFLUENT, 2)]


def test_receiving_and_processing_are_one_arrival_and_two_processings_are_two() -> None:
    pairs = Pairs()
    pairs.beacons(produced(JAVA, 7, NOW_MS))
    received = JAVA.consumed | {"messaging.operation": "receive"}
    poll = Instrumentation(JAVA.produced, received, "link", verb="receive")

    def checkpoints(span: TestSpan) -> list[str]:
        return [beacon.checkpoint for beacon in pairs.beacons(span)]

    assert checkpoints(consumed(poll, 7, NOW_MS, NOW_MS + 10)) == ["mailer.in"]
    assert checkpoints(consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 20, attempt=1)) == ["mailer.out"]
    assert checkpoints(consumed(JAVA, 7, NOW_MS + 30, NOW_MS + 40, attempt=2)) == ["mailer.in", "mailer.out"]
    assert checkpoints(consumed(poll, 7, NOW_MS + 29, NOW_MS + 30, attempt=3)) == []


def test_a_span_that_is_sent_again_changes_nothing() -> None:
    pairs = Pairs()
    spans = produced(JAVA, 7, NOW_MS), consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 20)
    waiting = consumed(JAVA, 8, NOW_MS + 10, NOW_MS + 20)
    assert len(pairs.beacons(*spans, waiting, waiting)) == 4
    assert pairs.beacons(*spans) == []
    assert len(pairs.beacons(produced(JAVA, 8, NOW_MS))) == 4


def test_what_failed_was_not_sent_and_not_delivered() -> None:
    pairs = Pairs()
    sent = pairs.beacons(produced(JAVA, 7, NOW_MS, failed=True))
    assert [beacon.checkpoint for beacon in sent] == ["shop.in"]
    failed = consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 20, failed=True)
    assert [beacon.checkpoint for beacon in pairs.beacons(failed)] == ["mailer.in"]
    again = consumed(JAVA, 7, NOW_MS + 30, NOW_MS + 40, attempt=1)
    assert [beacon.checkpoint for beacon in pairs.beacons(again)] == ["mailer.in", "mailer.out"]


def test_a_topic_that_was_made_again_has_new_messages_at_old_offsets() -> None:
    pairs = Pairs()
    pairs.beacons(produced(JAVA, 7, NOW_MS))
    pairs.beacons(produced(JAVA, 7, NOW_MS + 1_000, trace=1, span=1))
    taken = pairs.beacons(consumed(JAVA, 7, NOW_MS + 1_100, NOW_MS + 1_200, trace=1, parent=1))
    assert {beacon.event_ms for beacon in taken} == {NOW_MS + 1_000}


def test_a_trace_is_a_message_over_several_topics() -> None:
    nodes = (
        "{name: shop, to: [enrich], spans: {out: {service: shop-app, topic: orders, id: trace}}}",
        (
            "{name: enrich, to: [mailer], spans: {in: {service: enricher, topic: orders}, "
            "out: {service: enricher, topic: enriched, id: trace}}}"
        ),
        "{name: mailer, spans: {in: {service: mailer, topic: enriched}}}",
    )
    enriched = {"messaging.destination.name": "enriched", "messaging.destination.partition.id": "0"}
    trace = 0xA000_0007
    spans = [
        produced(JAVA, 7, NOW_MS),
        consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 30, service="enricher"),
        produced(
            JAVA,
            7,
            NOW_MS + 20,
            service="enricher",
            span=2,
            parent=0xC000_0007,
            attributes=produced(JAVA, 7, 0).attributes | enriched,
        ),
        consumed(JAVA, 7, NOW_MS + 40, NOW_MS + 60, span=3, parent=2, attributes=JAVA.consumed | enriched),
    ]
    expected = ["shop.in", "shop.out", "enrich.in", "enrich.out", "mailer.in", "mailer.out"]
    for order in (spans, spans[::-1]):
        beacons = Pairs(*nodes).beacons(*order)
        assert sorted(beacon.checkpoint for beacon in beacons) == sorted(expected)
        assert {(beacon.id, beacon.event_ms) for beacon in beacons} == {(f"{trace:032x}", NOW_MS)}


def test_new_ids_begin_with_the_record_that_a_node_produces() -> None:
    nodes = (
        "{name: shop, to: [enrich], spans: {out: {service: shop-app, topic: orders}}}",
        (
            "{name: enrich, to: [mailer], ids: new, spans: {in: {service: enricher, topic: orders}, "
            "out: {service: enricher, topic: enriched}}}"
        ),
        "{name: mailer, spans: {in: {service: mailer, topic: enriched}}}",
    )
    enriched = {"messaging.destination.name": "enriched"}
    pairs = Pairs(*nodes)
    pairs.beacons(produced(JAVA, 7, NOW_MS))
    taken = pairs.beacons(consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 30, service="enricher"))
    made = pairs.beacons(
        produced(JAVA, 9, NOW_MS + 20, service="enricher", attributes=produced(JAVA, 9, 0).attributes | enriched)
    )
    assert [(beacon.checkpoint, beacon.id) for beacon in taken] == [("enrich.in", "orders/1/7")]
    assert [(beacon.checkpoint, beacon.id) for beacon in made] == [
        ("enrich-new.in", "enriched/0/9"),
        ("enrich-new.out", "enriched/0/9"),
    ]
    assert {beacon.event_ms for beacon in made} == {NOW_MS + 20}


def test_beacons_that_did_not_arrive_are_made_again() -> None:
    pairs = Pairs()
    taken = consumed(JAVA, 7, NOW_MS + 10, NOW_MS + 20)
    pairs.beacons(taken)
    paired = pairs.paired(produced(JAVA, 7, NOW_MS))
    pairs.pairing.undo(paired)
    again = pairs.paired(produced(JAVA, 7, NOW_MS))
    assert beacons_in(again) == beacons_in(paired)
    later = consumed(JAVA, 7, NOW_MS + 30, NOW_MS + 40, attempt=1)
    pairs.pairing.undo(pairs.paired(later))
    assert pairs.pairing.waiting == 0
    assert len(pairs.beacons(later)) == 2


def test_spans_that_wait_are_bounded_and_end_to_wait() -> None:
    now_s = 0.0
    pairing = Pairing(max_waiting=10, wait_s=60, clock=lambda: now_s)
    pairs = Pairs(pairing=pairing)
    pairs.beacons(*(consumed(JAVA, number, NOW_MS, NOW_MS) for number in range(11)))
    assert (pairing.waiting, pairing.take_unpaired()) == (10, 1)
    assert len(pairs.beacons(produced(JAVA, 0, NOW_MS))) == 2  # the one that made room
    assert len(pairs.beacons(produced(JAVA, 1, NOW_MS))) == 4
    now_s = 61.0
    assert len(pairs.beacons(produced(JAVA, 2, NOW_MS))) == 2
    assert (pairing.waiting, pairing.take_unpaired(), pairing.take_unpaired()) == (0, 9, 0)


@pytest.mark.parametrize("number", [0, 1, MAX_LINKS])
def test_a_message_is_looked_for_by_its_record_whatever_links_there_are(number: int) -> None:
    (span,) = parsed([consumed(JAVA, 7, NOW_MS, NOW_MS, links=tuple((at, at) for at in range(1, number + 1)))])
    (origins,) = span.messages
    assert (len(origins), origins[-1]) == (min(number + 2, MAX_ORIGINS), "orders/1/7")


def test_waiting_for_many_origins_takes_time_for_each_of_them_and_not_for_each_pair() -> None:
    hashed = 0

    class Counted(bytes):
        def __hash__(self) -> int:
            nonlocal hashed
            hashed += 1
            return super().__hash__()

    (span,) = parsed([consumed(JAVA, 7, NOW_MS, NOW_MS)])
    origins = tuple(Counted(number.to_bytes(24, "big")) for number in range(1_000))
    point, scope = Pairs().points["mailer", "orders", False][0][1], PairingScope()
    waiting = WaitingSpan(point, span, origins, 0.0)
    assert scope.wait(waiting)
    assert not scope.wait(WaitingSpan(point, span, origins, 1.0))
    scope.release(waiting)
    assert (scope.waiting, scope.by_key) == ({}, {})
    assert hashed < 10 * len(origins)


def test_messages_are_forgotten_of_the_topic_that_has_most() -> None:
    nodes = (
        (
            "{name: shop, to: [mailer, b], spans: {out: {service: shop-app, topic: orders}, "
            "'out:b': {service: shop-app, topic: few}}}"
        ),
        MAILER,
        "{name: b, spans: {in: {service: b, topic: few}}}",
    )
    pairs = Pairs(*nodes, pairing=Pairing(max_messages=100))
    few = {"messaging.destination.name": "few"}
    pairs.beacons(produced(JAVA, 999, NOW_MS, attributes=produced(JAVA, 999, 0).attributes | few))
    pairs.beacons(*(produced(JAVA, number, NOW_MS) for number in range(200)))
    taken = consumed(JAVA, 999, NOW_MS, NOW_MS, service="b", attributes=JAVA.consumed | few)
    assert len(pairs.beacons(taken)) == 2
    assert pairs.beacons(consumed(JAVA, 1, NOW_MS, NOW_MS)) == []
    assert len(pairs.beacons(consumed(JAVA, 199, NOW_MS, NOW_MS))) == 2


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (produced(JAVA, 7, NOW_MS, attributes={"messaging.system": "kafka"}), NO_TOPIC),
        (produced(JAVA, 7, NOW_MS, service=""), NO_SERVICE),
        (produced(JAVA, 7, NOW_MS, service="s" * (MAX_SERVICE + 1)), TOO_LONG),
        (produced(JAVA, 7, NOW_MS, attributes=JAVA.produced | {TOPIC: "t" * (MAX_TOPIC + 1)}), TOO_LONG),
        (consumed(JAVA, 7, NOW_MS, NOW_MS, links=((1, 1),) * (MAX_LINKS + 1)), TOO_MANY_LINKS),
        (produced(CONFLUENT, 7, NOW_MS, trace=0, span=0), NO_MESSAGE),
        (consumed(INSTRUMENTATIONS["kafka-python"], 7, NOW_MS, NOW_MS, parent=0), NO_MESSAGE),
        (produced(JAVA, 7, 0), NO_TIME),
        (produced(JAVA, 7, NOW_MS - 8 * DAY_MS), OUT_OF_RANGE),
        (produced(JAVA, 7, NOW_MS + DAY_MS), OUT_OF_RANGE),
    ],
)
def test_a_span_that_names_no_message_is_refused_with_a_reason(span: TestSpan, reason: str) -> None:
    with pytest.raises(UnusableSpan) as unusable:
        Pairs().beacons(span)
    assert unusable.value.reason == reason


@pytest.mark.parametrize(
    "span",
    [
        http_span(1, NOW_MS),
        consumed(JAVA, 7, NOW_MS, NOW_MS, attributes=JAVA.consumed | {"messaging.operation": "settle"}),
        # aiokafka's `getmany`: a span of the poll, without a topic, and Java's, without links
        consumed(JAVA, 7, NOW_MS, NOW_MS, attributes={"messaging.system": "kafka", "messaging.batch.message_count": 2}),
        consumed(
            JAVA,
            7,
            NOW_MS,
            NOW_MS,
            parent=0,
            attributes={
                "messaging.system": "kafka",
                "messaging.destination.name": "orders",
                "messaging.operation": "receive",
                "messaging.batch.message_count": 2,
            },
        ),
        produced(JAVA, 7, NOW_MS, resource={"lagloss.pipeline": "orders"}),
        produced(JAVA, 7, NOW_MS, kind=PRODUCER, attributes={"messaging.system": "rabbitmq"}),
    ],
)
def test_spans_of_no_message_of_kafka_are_left_to_others(span: TestSpan) -> None:
    assert parsed([span]) == []


def test_links_of_a_poll_lead_to_spans_of_its_records_and_do_not_wait() -> None:
    """aiokafka's `getmany` has a span for each topic, with links to those that it makes for the records."""
    attributes = {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.operation.type": "receive",
        "messaging.batch.message_count": 1,
    }
    poll = TestSpan("mailer", "orders receive", CONSUMER, attributes, 9, 9, NOW_MS, NOW_MS, links=((0xA, 0xB),))
    pairs = Pairs()
    assert pairs.beacons(poll) == []
    assert pairs.pairing.waiting == 0
