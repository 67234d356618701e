"""Coverage: what a definition names of the topics and groups that there are, by prefix and label."""

from __future__ import annotations

import io

from rich.console import Console

from lagloss_server.cli.coverage_table import coverage_table, not_measured_lines
from lagloss_server.groups.coverage import (
    ClusterCoverage,
    KafkaName,
    is_grouping,
    is_own,
    named_groups,
    named_topics,
    prefix_of,
    share_text,
)
from lagloss_server.model.definition import parse_definition

NAMED = """apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: orders, labels: {team: web}}
spec:
  nodes:
    - {name: shop, to: [enrich], taps: {out: {topic: orders, id: $.id, eventTime: $.at}}}
    - {name: enrich, to: [mail], taps: {in: {group: enrich}, out: {topic: enriched, cluster: eu}}}
    - {name: mail, group: mailer, cluster: eu}
"""
COVERAGE = ClusterCoverage(
    {
        KafkaName("", "orders"): ["orders"], KafkaName("eu", "orders"): ["orders", "returns"],
        KafkaName("", "orders.dlt"): [], KafkaName("", "audit-a"): [], KafkaName("", "audit_b"): [],
    },
    {KafkaName("", "enrich"): ["orders"], KafkaName("", "audit-etl"): []},
    {"orders": {"team": "web"}, "returns": {"team": "shop", "tier": "1"}},
    {"": 1_000_000, "eu": None},
)  # fmt: skip


def test_taps_spans_and_nodes_name_topics_and_groups() -> None:
    definition = parse_definition(NAMED)
    assert named_topics(definition) == {KafkaName("", "orders"), KafkaName("eu", "enriched")}
    assert named_groups(definition) == {KafkaName("", "enrich"), KafkaName("eu", "mailer")}
    spans = parse_definition(
        "apiVersion: lagloss/v1\nkind: Pipeline\nmetadata: {name: s}\nspec: {nodes: [{name: a, to: [b], spans: "
        "{out: {service: shop, topic: sold}}}, {name: b, spans: {in: {service: mail, topic: sold}}}]}"
    )
    assert named_topics(spans) == {KafkaName("", "sold")}
    assert named_groups(spans) == set()


def test_shares_are_by_prefix_what_lacks_most_first() -> None:
    rows = [(row["value"], row["topics"], row["groups"]) for row in COVERAGE.rows("prefix")]
    assert rows == [
        ("audit", {"total": 2, "measured": 0}, {"total": 1, "measured": 0}),
        ("orders", {"total": 3, "measured": 2}, {"total": 0, "measured": 0}),
        ("enrich", {"total": 0, "measured": 0}, {"total": 1, "measured": 1}),
    ]


def test_shares_are_by_the_labels_of_the_pipelines_that_name_a_topic() -> None:
    rows = {row["value"]: (row["topics"]["total"], row["groups"]["total"]) for row in COVERAGE.rows("label:team")}
    assert rows == {"web": (2, 1), "shop": (1, 0), None: (3, 1)}
    assert COVERAGE.label_names == ["team", "tier"]


def test_what_no_definition_names_is_listed_by_name() -> None:
    document = COVERAGE.document("prefix")
    assert document["topics"] == {"total": 5, "measured": 2}
    assert [each["name"] for each in document["not_measured"]["topics"]] == ["audit-a", "audit_b", "orders.dlt"]
    assert [each["name"] for each in document["not_measured"]["groups"]] == ["audit-etl"]
    assert document["clusters"] == [
        {"cluster": "", "asked_at": "1970-01-01T00:16:40Z"}, {"cluster": "eu", "asked_at": None},
    ]  # fmt: skip
    assert COVERAGE.not_current(1_100) == ["eu"]
    assert COVERAGE.not_current(2_000) == ["", "eu"]


def test_a_terminal_shows_shares_and_names() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(coverage_table(COVERAGE, "prefix"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "0 of 2 (0 %)" in text
    assert "2 of 5 (40 %)" in text
    many = ClusterCoverage(
        {KafkaName("", f"t{number:02}"): [] for number in range(25)} | {KafkaName("eu", "odd\n"): []}, {}
    )
    lines = list(not_measured_lines(many))
    assert lines[:2] == ["Topics that no definition names:", "  t00"]
    assert lines[-1] == "  and 6 more"
    assert list(not_measured_lines(ClusterCoverage({KafkaName("eu", "odd\n"): []}, {}))) == [
        "Topics that no definition names:",
        "  eu/'odd\\n'",
    ]


def test_own_topics_and_prefixes() -> None:
    assert [is_own(name) for name in ("__consumer_offsets", "lagloss.beacons", "lagloss-demo", "orders")] == [
        True, True, False, False,
    ]  # fmt: skip
    assert [prefix_of(name) for name in ("a.b-c", "a_b", "a", "..", "-a-b")] == ["a", "a", "a", "..", "a"]
    assert [is_grouping(by) for by in ("prefix", "label:team", "label:", "team")] == [True, True, False, False]
    assert share_text({"total": 0, "measured": 0}) == "–"
