"""Spans of a definition: which service's spans of which topic are beacons of which checkpoints, and what is refused."""

from __future__ import annotations

import pytest

from lagloss_server.base.errors import BadDefinition
from lagloss_server.model.definition import Definition, as_document, parse_definition
from lagloss_server.model.spans import SpanPoint

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"
SHOP = "{name: shop, to: [mailer], spans: {out: {service: shop-app, topic: orders, id: record}}}"
MAILER = "{name: mailer, spans: {in: {service: mailer, topic: orders}}}"


def definition(*nodes: str) -> Definition:
    return parse_definition(HEAD + "\n".join(f"  - {node}" for node in nodes))


def problem(*nodes: str) -> str:
    with pytest.raises(BadDefinition) as refused:
        definition(*nodes)
    return str(refused.value)


def test_a_source_takes_in_where_it_produces_and_a_sink_delivers_at_its_end() -> None:
    shop, mailer = definition(SHOP, MAILER).span_points
    assert shop == SpanPoint("shop", "shop-app", "orders", ("in", "out"), True, True, "record", "orders")
    assert mailer == SpanPoint("mailer", "mailer", "orders", ("in", "out"), False, False, "record", "orders")


def test_the_id_is_the_record_by_default_and_a_sink_can_deliver_when_it_has_received() -> None:
    nodes = (
        "{name: shop, to: [mailer], spans: {out: {service: shop-app, topic: orders}}}",
        "{name: mailer, spans: {in: {service: mailer, topic: orders, delivered: receive}}}",
    )
    shop, mailer = definition(*nodes).span_points
    assert (shop.id, mailer.delivered) == ("record", "receive")


def test_one_out_holds_for_all_next_nodes_that_consume_its_topic() -> None:
    nodes = (
        "{name: shop, to: [a, b, c], spans: {out: {service: s, topic: orders}, 'out:c': {service: s, topic: audit}}}",
        "{name: a, spans: {in: {service: a, topic: orders}}}",
        "{name: b, spans: {in: {service: b, topic: orders}}}",
        "{name: c, spans: {in: {service: c, topic: audit}}}",
    )
    points = definition(*nodes).span_points
    produced = [(point.topic, point.places) for point in points if point.produces]
    assert produced == [("orders", ("in", "out:a", "out:b")), ("audit", ("in", "out:c"))]


def test_a_definition_with_spans_is_stored_and_read_back() -> None:
    original = definition(SHOP, MAILER)
    assert Definition.of_stored(as_document(original)) == original
    assert original.graph.spanned == {"shop", "mailer"}
    schema = Definition.model_json_schema(mode="serialization")
    assert set(schema["$defs"]["SpanSpec"]["properties"]) == {"service", "topic", "id", "delivered"}


def test_a_node_with_new_ids_consumes_as_one_node_and_produces_as_another() -> None:
    nodes = (
        "{name: shop, to: [e], spans: {out: {service: shop-app, topic: orders}}}",
        "{name: e, to: [m], ids: new, spans: {in: {service: e, topic: orders}, out: {service: e, topic: made}}}",
        "{name: m, spans: {in: {service: m, topic: made}}}",
    )
    points = definition(*nodes).span_points
    assert [(point.node, point.places, point.begins) for point in points] == [
        ("shop", ("in", "out"), True),
        ("e", ("in",), False),
        ("e-new", ("in", "out"), True),
        ("m", ("in", "out"), False),
    ]
    assert definition(*nodes).graph.spanned == {"shop", "e", "e-new", "m"}


TRACE = "{out: {service: shop-app, topic: orders, id: trace}}"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (("{name: shop, to: [mailer], spans: {out: {topic: orders}}}", MAILER), "out.service: expected a value"),
        (("{name: shop, to: [mailer], spans: {out: {service: s}}}", MAILER), "out.topic: expected a value"),
        (
            ("{name: shop, to: [mailer], spans: {out: {service: s, topic: t, id: key}}}", MAILER),
            "spans.out.id: expected 'record' or 'trace', found 'key'",
        ),
        (("{name: shop, to: [mailer], spans: {out: {service: s, topic: 'a b'}}}", MAILER), "a topic name of 1 to 249"),
        (("{name: shop, to: [mailer], spans: {dead: {service: s, topic: t}}}", MAILER), "one of in, out or out:NODE"),
        ((SHOP, "{name: mailer}"), "nodes[0].spans.out: expected `spans` for `in` of mailer, too"),
        (("{name: shop, to: [mailer]}", MAILER), "nodes[1].spans.in: expected `spans` for `out` of shop, too"),
        ((SHOP, MAILER.replace("orders", "others")), "nodes[1].spans.in: expected the topic orders, which shop"),
        ((SHOP.replace("out:", "in:"), MAILER), "nodes[0].spans.in: expected only `out`, since no node leads to shop"),
        ((SHOP, MAILER.replace("in:", "out:")), "nodes[1].spans.out: expected only `in` for a node without `to`"),
        ((SHOP.replace("out:", "'out:mailer':"), MAILER), "expected one of in, out"),
        ((SHOP, MAILER.replace("topic:", "id: record, topic:")), "spans.in: expected `id` only for `out`"),
        ((SHOP.replace("id: record", "delivered: process"), MAILER), "expected `delivered` only for `in`"),
        (
            (SHOP.replace("spans:", "taps: {out: {topic: orders, id: key, eventTime: $.at}}, spans:"), MAILER),
            "expected either a tap or `spans` for out, found both",
        ),
        (
            (
                "{name: shop, to: [e], spans: {out: {service: shop-app, topic: orders}}}",
                "{name: e, to: [m], spans: {in: {service: e, topic: orders}, out: {service: e, topic: made}}}",
                "{name: m, spans: {in: {service: m, topic: made}}}",
            ),
            "nodes[1].spans.out: expected `id: trace`, or `ids: new` for e",
        ),
        (
            (
                f"{{name: shop, to: [e], spans: {TRACE}}}",
                "{name: e, to: [m], spans: {in: {service: e, topic: orders}}}",
                "{name: m}",
            ),
            "nodes[1].spans.in: expected `spans` for `out` of e, too",
        ),
        (
            (
                "{name: shop, to: [e], spans: {out: {service: shop-app, topic: orders}}}",
                "{name: e, to: [m], ids: new, contract: split, spans: {in: {service: e, topic: orders}}}",
                "{name: m}",
            ),
            "nodes[1].spans.in: expected no `contract` for e",
        ),
        (
            (
                SHOP.replace("[mailer]", "[mailer, again]"),
                MAILER,
                "{name: again, spans: {in: {service: mailer, topic: orders}}}",
            ),
            "nodes[2].spans.in: expected another service or topic than those of mailer",
        ),
        (
            (SHOP, MAILER.replace("{name: mailer", "{name: mailer, retries: r"), ("{name: r, spans: {in: {service: r,"
             " topic: t}}}")),
            "nodes[2].spans.in: expected no `spans` for a retrier",
        ),
    ],
)  # fmt: skip
def test_spans_that_cannot_be_used_are_refused_with_their_place(nodes: tuple[str, ...], expected: str) -> None:
    assert expected in problem(*nodes)
