"""Who else gets a message that is sent again, and what a topic makes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from lagloss.errors import UsageError
from lagloss_server.base.errors import UnknownPipeline
from lagloss_server.groups.cluster_groups import ClusterGroup, NamedBy, TopicLag
from lagloss_server.model.definition import Definition, parse_definition
from lagloss_server.repair import preparation
from lagloss_server.repair.ledger import RepairPlan
from lagloss_server.repair.site import find_site, parse_place

SHOP = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: shop}
spec:
  nodes:
    - {name: a, to: [b, c], copy: all, taps: {out: {topic: orders, id: $.id, eventTime: timestamp}}}
    - {name: b, idempotent: true, taps: {in: {group: billing}}}
    - {name: c, taps: {in: {group: mail}}}
"""
OTHER = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: audit}
spec:
  nodes:
    - {name: reader, group: audit, to: [writer]}
    - {name: writer, idempotent: true}
"""


def group(name: str, *named: NamedBy, topic: str = "orders", cluster: str = "") -> ClusterGroup:
    lag = TopicLag(topic, 1, 0, 0.0, None)
    return ClusterGroup(
        cluster, name, "consumer", "Stable", 1, None, 0, 0.0, None, None, None, None, None, (lag,), named
    )


def plan_of(definition: Definition, at: str) -> RepairPlan:
    place = find_site(definition, parse_place(at, definition.graph), None)
    return RepairPlan(place.cluster, place.sources, {}, (), queue=place.queue)


def again(
    monkeypatch: pytest.MonkeyPatch, groups: list[ClusterGroup], settings: dict[str, str] | None = None
) -> tuple[Any, RepairPlan]:
    monkeypatch.setattr(preparation, "settings_of", lambda _cluster, topics: dict.fromkeys(topics, settings or {}))
    definition = parse_definition(SHOP)
    store = MagicMock()

    def pipeline(name: str) -> Any:
        if name != "audit":
            raise UnknownPipeline(pipeline=name, known="audit, shop")
        return SimpleNamespace(definition=parse_definition(OTHER))

    store.pipeline = pipeline
    return preparation._Again(cast("Any", store), "broker", definition, "b", groups), plan_of(definition, "link:a->b")


def test_every_node_that_reads_the_topic_gets_what_is_sent_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    its, plan = again(monkeypatch, [])
    assert its.undeclared(plan) == ("c",)


def test_nodes_of_other_pipelines_and_groups_that_nobody_names_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    its, plan = again(
        monkeypatch,
        [
            group("audit", NamedBy("audit", "reader")),
            group("deleted", NamedBy("gone", "x")),
            group("billing", NamedBy("shop", "b")),
            group("mirror"),
            group("elsewhere", topic="other"),
            group("far", cluster="west"),
        ],
    )
    assert its.undeclared(plan) == ("c", "reader of audit")
    assert its.other_groups(plan) == ("mirror",)


def test_a_compacted_topic_has_to_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    its, plan = again(monkeypatch, [], {"cleanup.policy": "delete,compact"})
    *_, topic = its.undeclared(plan)
    assert topic.startswith("topic orders (compacted")


def test_a_topic_that_gives_records_another_event_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    its, plan = again(monkeypatch, [], {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(UsageError, match="would be other messages, of now"):
        its.undeclared(plan)
