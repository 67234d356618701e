"""Where a repair sends: the topics before a place, by taps or by name, and the nodes behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lagloss.errors import UsageError
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.model.place import Place
from lagloss_server.repair.records import TopicRecord
from lagloss_server.repair.site import HEADERS, RepairSite, find_site, not_idempotent, parse_place

ROOT = Path(__file__).parents[4]
COPIED = [("lagloss-replay", b"earlier"), ("lagloss-id", b"orders/2/40")]
SDK = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: a, to: [b]}
    - {name: b, to: [c, d], group: enrich, cluster: west, retries: again, idempotent: true}
    - {name: c, idempotent: false}
    - {name: d}
    - {name: again, idempotent: true}
"""
TAPPED = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: a, to: [b], taps: {out: {topic: orders, id: $.id, eventTime: $.at}}}
    - name: b
      to: [c]
      taps:
        in: {group: enrich}
        out: {topic: enriched, id: 'header:id', eventTime: 'header:at'}
        dead: {topic: orders-dead}
    - {name: c, taps: {in: {group: sink}}}
"""
FILES = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: scores-files}
spec:
  nodes:
    - {name: landing, to: [db-queue, index-import], copy: all}
    - {name: db-queue, to: [db-import]}
    - {name: db-import, to: [db-done], queue: "https://sqs.eu-central-1.amazonaws.com/1/db"}
    - {name: db-done}
    - {name: index-import, to: [index-done], queue: "https://sqs.eu-central-1.amazonaws.com/1/index"}
    - {name: index-done}
"""


def sdk() -> Definition:
    return parse_definition(SDK)


def tapped() -> Definition:
    return parse_definition(TAPPED)


def site(definition: Definition, at: str, from_topic: str | None = None) -> Any:
    return find_site(definition, parse_place(at, definition.graph), from_topic)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("link:a->b", Place("link", "a->b")),
        ("node:b", Place("node", "b")),
        ("node:again", Place("retrier", "again")),
    ],
)
def test_a_place_is_named_as_on_the_command_line(text: str, place: Place) -> None:
    assert parse_place(text, sdk().graph) == place


@pytest.mark.parametrize("text", ["", "b", "node:", "node:x", "link:a->c", "link:b", "link a->b", "retrier:again"])
def test_an_unknown_place_is_answered_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match=r"places: link:a->b, link:b->c, .*node:b.*"):
        parse_place(text, sdk().graph)


def test_a_node_with_the_sdk_needs_the_topic_by_name_and_has_ids_in_headers() -> None:
    with pytest.raises(UsageError, match="does not name the topic that b reads; name it with --from-topic"):
        site(sdk(), "link:a->b")
    with pytest.raises(UsageError, match="--from-topic; its consumer group reads orders, more"):
        find_site(sdk(), parse_place("link:a->b", sdk().graph), None, ["orders", "more"])
    named = site(sdk(), "link:a->b", "orders")
    assert [(source.topic, source.target, source.extraction) for source in named.sources] == [
        ("orders", "orders", HEADERS)
    ]
    assert (named.cluster, named.targets) == ("west", ("orders",))
    assert HEADERS.id.written == "header:lagloss-id"


@pytest.mark.parametrize(
    ("at", "topics", "ids"),
    [
        ("link:a->b", ["orders"], ["$.id"]),
        ("node:b", ["orders", "orders-dead"], ["$.id", "$.id"]),
        ("link:b->c", ["enriched"], ["header:id"]),
        ("node:c", ["enriched"], ["header:id"]),
    ],
)
def test_taps_name_the_topic_before_a_place_and_how_its_ids_are_read(
    at: str, topics: list[str], ids: list[str]
) -> None:
    found = site(tapped(), at)
    assert [source.topic for source in found.sources] == topics
    assert [source.extraction.id.written for source in found.sources] == ids
    assert found.targets == (topics[0],)


@pytest.mark.parametrize(
    ("at", "conditions"),
    [
        ("link:event-router->conn-ga", ["not exists header:tries"]),
        ("node:conn-ga", ["not exists header:tries", "exists header:tries"]),
        ("node:global-retrier", ['header:back-to == "conn-ga"', 'header:back-to == "conn-fb"']),
    ],
)
def test_of_a_topic_with_several_taps_each_way_to_read_it_is_tried_and_of_a_link_that_of_its_source(
    at: str, conditions: list[str]
) -> None:
    clicks = parse_definition((ROOT / "pipeline_under_test/stream/clicks-tapped.yaml").read_text())
    sources = [source for source in site(clicks, at).sources if source.topic == source.target]
    assert [source.extraction.where.written for source in sources if source.extraction.where] == conditions
    assert len(site(clicks, at).targets) == 1


def test_records_of_another_topic_are_sent_into_the_topic_before_the_place() -> None:
    (source,) = site(tapped(), "link:a->b", "backup").sources
    assert (source.topic, source.target, source.extraction.id.written) == ("backup", "orders", "$.id")
    (same,) = site(tapped(), "node:b", "orders").sources[:1]
    assert (same.topic, same.target) == ("orders", "orders")


@pytest.mark.parametrize(
    ("at", "name"),
    [
        ("link:landing->db-queue", "db"),
        ("node:db-queue", "db"),
        ("link:db-queue->db-import", "db"),
        ("node:db-import", "db"),
        ("link:landing->index-import", "index"),
        ("node:index-import", "index"),
    ],
)
def test_files_come_from_the_queue_of_the_node_or_of_the_node_that_the_queue_stands_before(at: str, name: str) -> None:
    files = parse_definition(FILES)
    url = f"https://sqs.eu-central-1.amazonaws.com/1/{name}"
    place = parse_place(at, files.graph)
    assert find_site(files, place, None) == RepairSite(place, "", (), url)
    with pytest.raises(UsageError, match=f"--from-topic: .* receives files from a queue .{url}., not from a topic"):
        site(files, at, "orders")


@pytest.mark.parametrize("at", ["node:landing", "link:db-import->db-done", "node:db-done"])
def test_a_place_before_or_behind_the_importer_has_no_queue(at: str) -> None:
    with pytest.raises(UsageError, match="does not name the topic"):
        site(parse_definition(FILES), at)


def test_a_node_that_reads_a_topic_does_not_stand_for_the_queue_behind_it() -> None:
    text = FILES.replace("name: db-queue, to", "name: db-queue, group: g, to")
    with pytest.raises(UsageError, match="does not name the topic"):
        site(parse_definition(text), "link:landing->db-queue")


def test_a_tapped_topic_comes_before_a_queue() -> None:
    tap = "taps: {'out:index-import': {topic: files, id: $.id, eventTime: $.at}}"
    definition = parse_definition(FILES.replace("copy: all", f"copy: all, {tap}"))
    assert site(definition, "link:landing->index-import").targets == ("files",)


def test_a_copy_has_all_that_its_record_has_and_the_replays_name() -> None:
    (source,) = site(tapped(), "link:a->b").sources
    headers = [("lagloss-replay", b"earlier"), ("x", None), ("x", b"1"), ("lagloss-id", b"7")]
    record = TopicRecord(2, 40, 0, b"key", b"value", headers)
    assert record.headers_to_send("orders", source.extraction, "repair-1") == [
        *headers[1:],
        ("lagloss-replay", b"repair-1"),
    ]


def test_a_copy_of_a_record_whose_position_is_its_id_names_that_position() -> None:
    text = TAPPED.replace("id: $.id", "id: partition-offset").replace("'header:id'", "'partition-offset(header:from)'")
    definition = parse_definition(text.replace("dead: {topic: orders-dead}", ""))
    (first,), (later,) = (site(definition, at).sources for at in ("link:a->b", "link:b->c"))
    original, copied = TopicRecord(2, 40, 0, None, None, []), TopicRecord(2, 90, 0, None, None, COPIED)
    assert original.headers_to_send("orders", first.extraction, "repair-1") == [
        ("lagloss-replay", b"repair-1"),
        ("lagloss-id", b"orders/2/40"),
    ]
    assert copied.headers_to_send("orders", first.extraction, "repair-1") == [
        COPIED[1],
        ("lagloss-replay", b"repair-1"),
    ]
    assert original.headers_to_send("enriched", later.extraction, "repair-1") == [("lagloss-replay", b"repair-1")]


@pytest.mark.parametrize(
    ("node", "nodes"), [("a", ("a", "c", "d")), ("b", ("c", "d")), ("c", ("c",)), ("d", ("d",)), ("again", ("c", "d"))]
)
def test_nodes_behind_a_place_that_do_not_say_they_are_idempotent_are_named(node: str, nodes: tuple[str, ...]) -> None:
    assert not_idempotent(sdk(), node) == nodes


def test_what_is_made_of_a_message_that_is_sent_again_is_made_again() -> None:
    text = SDK.replace("retries: again, ", "ids: new, ").replace("    - {name: again, idempotent: true}\n", "")
    assert not_idempotent(parse_definition(text), "b") == ("c", "d")
    assert not_idempotent(parse_definition(text), "b-new") == ("c", "d")


def test_a_changed_declaration_of_idempotence_leaves_the_node_as_it_was() -> None:
    changed = parse_definition(SDK.replace("idempotent: false", "idempotent: true"))
    assert sdk().graph.same_node(changed.graph, "c")
    assert sdk() != changed


@pytest.mark.parametrize("value", ["yes please", "1", "'true'"])
def test_idempotent_is_true_or_false(value: str) -> None:
    with pytest.raises(Exception, match="idempotent"):
        parse_definition(SDK.replace("idempotent: false", f"idempotent: {value}"))
