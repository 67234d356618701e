"""Taps of a definition: which topics and groups are read for which checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lagloss_server.base.errors import BadDefinition
from lagloss_server.model.definition import Definition, as_document, load_definition, parse_definition
from lagloss_server.model.expressions import IdExpression, TimeExpression
from lagloss_server.model.taps import Extraction, OffsetStorage, Tap

HEAD = "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: orders}\nspec:\n  nodes:\n"


def extraction(message_id: str, event_time: str) -> Extraction:
    return Extraction(IdExpression.parse(message_id), TimeExpression.parse(event_time))


ORDERS = extraction("$.order_id", "$.created_at")
SHOP = "{topic: orders, id: $.order_id, eventTime: $.created_at}"


def taps(*nodes: str) -> list[Tap]:
    return list(parse_definition(HEAD + "\n".join(f"  - {node}" for node in nodes)).taps)


def problem(*nodes: str) -> str:
    with pytest.raises(BadDefinition) as refused:
        taps(*nodes)
    return str(refused.value)


def test_a_source_takes_in_where_it_sends_out_and_a_sink_delivers_by_its_commits() -> None:
    found = taps(
        f"{{name: shop, to: [enrich], taps: {{out: {SHOP}}}}}",
        "{name: enrich, to: [warehouse], taps: {in: {group: e}, out: {topic: enriched, id: 'header:order-id'}}}",
        "{name: warehouse, taps: {in: {group: w}}}",
    )
    enriched = extraction("header:order-id", "$.created_at")
    assert found == [
        Tap("orders", "shop", "", "orders", None, ("in", "out"), ORDERS, True),
        Tap("orders", "enrich", "", "enriched", None, ("out",), enriched, False),
        Tap("orders", "enrich", "", "orders", "e", ("in",), ORDERS, False),
        Tap("orders", "warehouse", "", "enriched", "w", ("in", "out"), enriched, False),
    ]


def test_only_a_sink_at_its_default_or_by_its_word_has_delivered_what_its_group_has_committed() -> None:
    nodes = (
        f"{{name: shop, to: [a, b, c, d], copy: all, taps: {{out: {SHOP}}}}}",
        "{name: a, taps: {in: {group: of-a}}}",
        "{name: b, taps: {in: {group: of-b}, out: beacons}}",
        "{name: c, taps: {in: {group: of-c}, out: commit}}",
        "{name: d, taps: {in: {group: of-d}, out: {topic: sent, id: $.id, eventTime: $.at}}}",
    )
    found = parse_definition(HEAD + "\n".join(f"  - {node}" for node in nodes))
    assert found.committed_by == {"a": "of-a", "c": "of-c"}


def test_one_topic_for_several_next_nodes_is_read_once_and_by_a_filter_for_each() -> None:
    found = taps(
        f"{{name: shop, to: [a, b], copy: all, taps: {{out: {SHOP}}}}}",
        "{name: a, taps: {in: {group: a}}}",
        "{name: b, taps: {in: {group: b}, out: beacons}}",
    )
    assert [(tap.topic, tap.group, tap.places) for tap in found] == [
        ("orders", None, ("in", "out:a", "out:b")),
        ("orders", "a", ("in", "out")),
        ("orders", "b", ("in",)),
    ]
    filtered = taps(
        f"{{name: shop, to: [a, b], taps: {{'out:a': {SHOP[:-1]}, where: '$.kind == \"a\"'}}, 'out:b': {SHOP}}}}}",
        "{name: a, taps: {in: {group: a}}}",
        "{name: b}",
    )
    assert [(tap.places, tap.extraction.where and tap.extraction.where.written) for tap in filtered] == [
        (("in", "out:a"), '$.kind == "a"'),
        (("in", "out:b"), None),
        (("in", "out"), '$.kind == "a"'),
    ]


def test_taps_and_instrumented_nodes_mix() -> None:
    found = taps(
        "{name: shop, to: [enrich]}",
        "{name: enrich, to: [sink], taps: {in: {group: e, topic: orders, id: key, eventTime: $.at}}}",
        "{name: sink}",
    )
    assert found == [Tap("orders", "enrich", "", "orders", "e", ("in",), extraction("key", "$.at"), False)]


def test_a_tapped_group_is_watched_as_any_other() -> None:
    definition = parse_definition(
        HEAD + f"  - {{name: shop, to: [s], taps: {{out: {SHOP}}}}}\n  - {{name: s, taps: {{in: {{group: w}}}}}}"
    )
    assert definition.groups == {"s": "w"}
    assert Definition.model_validate(as_document(definition)) == definition


def test_a_connector_s_offsets_take_the_place_of_a_group_s_commits() -> None:
    mirror = (
        "{name: m, taps: {in: {connector: mirror, offsets: connect-offsets, offsetsCluster: b}, out: {topic: a.t}}}"
    )
    definition = parse_definition(HEAD + f"  - {{name: shop, to: [m], taps: {{out: {SHOP}}}}}\n  - {mirror}")
    tap = next(tap for tap in definition.taps if tap.node == "m" and tap.places == ("in",))
    assert (tap.group, tap.offsets) == ("mirror", OffsetStorage("b", "connect-offsets"))
    assert tap.source == f"connector mirror of topic {tap.topic}"
    assert Tap.of(json.loads(json.dumps(tap.document()))) == tap
    assert definition.groups == {"m": "mirror"}
    assert Definition.model_validate(as_document(definition)) == definition


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("{name: shop, taps: {out: {topic: orders, eventTime: $.at}}}", "taps.out: expected an `id`"),
        ("{name: shop, taps: {out: {topic: orders, id: key}}}", "taps.out: expected an `eventTime`"),
        ("{name: shop, taps: {out: {id: key}}}", "expected a `topic`, a `group` or a `connector`"),
        ("{name: shop, taps: {in: {group: g}}}", "taps.in: expected a `topic` for the group"),
        ("{name: shop, taps: {out: {group: g}}}", "taps.out: expected a `topic`, found a group"),
        ("{name: shop, taps: {in: {topic: t}}}", "taps.in: expected a `group` or `connector`, found only a topic"),
        ("{name: shop, taps: {out: {connector: c, offsets: o}}}", "taps.out: expected a `topic`, found a connector"),
        ("{name: shop, taps: {in: {connector: c}}}", "expected `offsets`, the topic of the Connect workers'"),
        ("{name: shop, taps: {in: {group: g, connector: c, offsets: o}}}", "a `group` or a `connector`, found both"),
        ("{name: shop, taps: {in: {group: g, offsets: o}}}", "`offsets` and `offsetsCluster` only with a `connector`"),
        (
            "{name: shop, taps: {in: {connector: c, offsets: o}, out: {topic: t, id: key, eventTime: $.at}}}",
            "a database, such as Debezium, is a source",
        ),
        (
            "{name: shop, taps: {in: {connector: c, offsets: o, topic: t, id: key, eventTime: $.at}}}",
            "taps.out: expected the topic that the connector writes",
        ),
        ("{name: shop, taps: {out: commit}}", "taps.out: expected an `in` tap, since `out` is `commit`"),
        ("{name: shop, taps: {'out:nowhere': {topic: t}}}", "expected one of in, out, filtered, dead"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(node: str, expected: str) -> None:
    assert expected in problem(node)


def test_a_schema_s_file_becomes_part_of_the_definition(tmp_path: Path) -> None:
    schema = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "string"}]}'
    (tmp_path / "order.avsc").write_text(schema)
    node = "  - {name: a, taps: {out: {topic: t, id: $.id, eventTime: timestamp, format: avro, schema: order.avsc}}}"
    (tmp_path / "orders.yaml").write_text(HEAD + node)
    definition = load_definition(tmp_path / "orders.yaml")
    assert [tap.extraction.schema for tap in definition.taps] == [schema]
    assert Definition.model_validate(as_document(definition)) == definition
    with pytest.raises(BadDefinition, match=r"taps\.out.*only `lagloss apply` reads schema files"):
        parse_definition(HEAD + node)


def test_a_record_s_timestamp_is_not_inherited() -> None:
    shop = "{name: shop, to: [s], taps: {out: {topic: orders, id: key, eventTime: timestamp}}}"
    assert "the preceding tap uses the record timestamp" in problem(shop, "{name: s, taps: {out: {topic: o}}}")


PLACED = "{topic: orders, id: partition-offset, eventTime: $.at}"
MORE_PLACED = PLACED.replace("orders", "more")
HEADERS = "partition-offset(header:topic, header:partition, header:offset)"


def test_positions_are_of_the_first_topic_and_later_ones_say_what_carries_them() -> None:
    found = taps(
        f"{{name: shop, to: [enrich], taps: {{out: {PLACED}}}}}",
        f"{{name: enrich, to: [mail], taps: {{in: {{group: e}}, out: {{topic: rich, id: '{HEADERS}'}}}}}}",
        "{name: mail, taps: {in: {group: m}, out: {topic: sent}}}",
    )
    named = {(tap.topic, tap.group): (tap.extraction.id.written, tap.extraction.origins) for tap in found}
    assert named == {
        ("orders", None): ("partition-offset", ("orders",)),
        ("orders", "e"): ("partition-offset", ("orders",)),
        ("rich", None): (HEADERS, ("orders",)),
        ("rich", "m"): (HEADERS, ("orders",)),
        ("sent", None): (HEADERS, ("orders",)),
    }
    assert [Tap.of(tap.document()) for tap in found] == found


def test_two_sources_have_positions_of_their_own_and_the_first_group_may_name_them() -> None:
    found = taps(
        f"{{name: a, to: [c], taps: {{out: {PLACED}}}}}",
        f"{{name: b, to: [c], taps: {{out: {PLACED.replace('orders', 'returns')}}}}}",
        "{name: c, taps: {in: {group: c}, out: {topic: all, id: 'partition-offset(header:o)'}}}",
    )
    assert {tap.topic: tap.extraction.origins for tap in found} == {
        "orders": ("orders",), "returns": ("returns",), "all": ("orders", "returns"),
    }  # fmt: skip
    (tap,) = taps("{name: a, to: [b]}", f"{{name: b, taps: {{in: {{group: g, {PLACED[1:]}, out: beacons}}}}")
    assert (tap.extraction.origins, tap.places) == (("orders",), ("in",))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (  # the position in the second topic is another one
            (f"{{name: a, to: [b], taps: {{out: {PLACED}}}}}", "{name: b, taps: {in: {group: g}, out: {topic: t}}}"),
            "expected `partition-offset` at the first topic alone, and at later ones",
        ),
        (  # nor is there any other id than the first's
            (f"{{name: a, to: [b], taps: {{out: {PLACED}}}}}", "{name: b, taps: {out: {topic: t, id: $.id}}}"),
            "expected `partition-offset` at the first topic alone, and at later ones",
        ),
        (
            (f"{{name: a, to: [b], taps: {{out: {SHOP}}}}}", f"{{name: b, taps: {{out: {PLACED}}}}}"),
            "expected `partition-offset` only for `out` of a source",
        ),
        (
            (f"{{name: a, to: [b], taps: {{out: {SHOP}}}}}", f"{{name: b, taps: {{in: {{group: g, {PLACED[1:]}}}}}"),
            "expected `partition-offset` at the first topic alone",
        ),
        (
            (f"{{name: a, to: [b], taps: {{dead: {PLACED}}}}}", "{name: b}"),
            "expected `partition-offset` only for `out` of a source",
        ),
        (
            (
                "{name: a, to: [b], taps: {out: {topic: t, id: partition-offset(header:o), eventTime: $.at}}}",
                "{name: b}",
            ),
            "expected a preceding tap with the id `partition-offset`",
        ),
        (
            (f"{{name: a, to: [b], taps: {{out: {PLACED.replace('orders', 'o' * 224)}}}}}", "{name: b}"),
            "expected a topic of up to 223 characters",
        ),
        (
            (
                f"{{name: a, to: [b, c], copy: all, taps: {{'out:b': {PLACED}, 'out:c': {MORE_PLACED}}}}}",
                "{name: b}",
                "{name: c}",
            ),
            "expected one topic with the id `partition-offset` for `copy`",
        ),
        (
            (
                f"{{name: a, to: [c], taps: {{out: {PLACED}}}}}",
                f"{{name: b, to: [c], taps: {{out: {PLACED[:-1]}, cluster: eu}}}}}}",
                "{name: c}",
            ),
            "expected topics of different names with the id `partition-offset`",
        ),
    ],
)
def test_a_position_that_would_not_name_the_same_message_everywhere_is_refused(
    nodes: tuple[str, ...], expected: str
) -> None:
    assert expected in problem(*nodes)
